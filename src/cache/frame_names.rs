use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::LruEviction;

/// The shared frames that watches were sent recently, each with a name.
///
/// A compressed frame may refer to the frame that the watch was sent right before it, so both names are its cache key.
/// A watch keeps a name instead of the frame, so an idle watch keeps no frame alive.
#[derive(Debug, Default)]
pub(super) struct FrameNames(Mutex<FrameNameTable>);

/// A name of one frame. Its number is never reused, unlike the address of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameName {
    place: FramePlace,
    pub(super) number: u64,
}

/// The address and the length of a frame.
type FramePlace = (usize, usize);

#[derive(Debug, Default)]
struct FrameNameTable {
    frames: HashMap<FramePlace, NamedFrame>,
    /// The named frames, oldest first.
    order: VecDeque<(FramePlace, Instant)>,
    bytes: usize,
    names: u64,
}

#[derive(Debug)]
struct NamedFrame {
    number: u64,
    /// The frame itself, so that no other frame can have its address.
    frame: Bytes,
    /// The frames that it was compressed after.
    previous: Vec<u64>,
}

/// The maximum length of all named frames of a feed in bytes. Most of them are in the store or the ring too.
const BYTES_MAX: usize = 16 << 20;
/// The number of bytes that are counted for a name beside its frame.
const NAME_BYTES: usize = 256;
/// The maximum number of predecessors that a frame is compressed after. Watches with other predecessors share one form
/// that refers to none, so the watches of one frame cause at most one compression more than this.
pub(super) const PREDECESSORS_MAX: usize = 4;
/// The age at which a name is dropped.
pub(super) const AGE_MAX: Duration = Duration::from_secs(60);

impl FrameNames {
    /// Returns the name of a frame, and the frame `previous` if the compressed form may refer to it.
    pub(super) fn name(&self, frame: &Bytes, previous: Option<FrameName>) -> (FrameName, Option<(u64, Bytes)>) {
        let place = (frame.as_ptr().addr(), frame.len());
        let mut table = self.0.lock();
        let table = &mut *table;
        let before = previous.and_then(|previous| {
            let named = table.frames.get(&previous.place).filter(|named| named.number == previous.number)?;
            Some((named.number, named.frame.clone()))
        });
        let named = table.frames.entry(place).or_insert_with(|| {
            table.names += 1;
            table.bytes += frame.len() + NAME_BYTES;
            table.order.push_back((place, Instant::now()));
            NamedFrame { number: table.names, frame: frame.clone(), previous: Vec::new() }
        });
        let before = before.filter(|(number, _)| {
            let is_known = named.previous.contains(number);
            if !is_known && named.previous.len() < PREDECESSORS_MAX {
                named.previous.push(*number);
                return true;
            }
            is_known
        });
        let name = FrameName { place, number: named.number };
        while table.bytes > BYTES_MAX && table.order.len() > 1 {
            table.drop_oldest();
        }
        (name, before)
    }

    pub(super) fn clear(&self) {
        let mut table = self.0.lock();
        while !table.order.is_empty() {
            table.drop_oldest();
        }
    }

    /// Drops names that are too old.
    pub(super) fn expire(&self, now: Instant) {
        let Some(oldest) = now.checked_sub(AGE_MAX) else { return };
        let mut table = self.0.lock();
        while table.order.front().is_some_and(|(_, since)| *since < oldest) {
            table.drop_oldest();
        }
    }
}

impl LruEviction for FrameNames {
    fn oldest(&self) -> Option<Instant> {
        self.0.lock().order.front().map(|(_, since)| *since)
    }

    fn drop_oldest(&self) {
        self.0.lock().drop_oldest();
    }
}

impl FrameNameTable {
    fn drop_oldest(&mut self) {
        let Some((place, _)) = self.order.pop_front() else { return };
        self.bytes -= place.1 + NAME_BYTES;
        self.frames.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(named: (FrameName, Option<(u64, Bytes)>)) -> (u64, Option<u64>) {
        (named.0.number, named.1.map(|(number, _)| number))
    }

    #[test]
    fn frame_keeps_its_name_and_few_predecessors() {
        let names = FrameNames::default();
        let frames: Vec<Bytes> = (0..=2 * PREDECESSORS_MAX).map(|n| Bytes::from(vec![0; 10 + n])).collect();
        let (last, before) = frames.split_last().expect("there are some");
        assert_eq!(numbered(names.name(last, None)), (1, None));
        let before: Vec<FrameName> = before.iter().map(|frame| names.name(frame, None).0).collect();
        for round in 0..2 {
            for (at, previous) in before.iter().enumerate() {
                let expected = (at < PREDECESSORS_MAX).then_some(previous.number);
                assert_eq!(numbered(names.name(last, Some(*previous))), (1, expected), "round {round}");
            }
        }
    }

    #[test]
    fn dropped_name_is_not_reused_for_the_same_address() {
        let names = FrameNames::default();
        let (frame, next) = (Bytes::from(vec![1; 100]), Bytes::from(vec![2; 100]));
        let first = names.name(&frame, None).0;
        names.drop_oldest();
        let second = names.name(&frame, None).0;
        assert!(first.place == second.place && first != second);
        assert_eq!(numbered(names.name(&next, Some(first))), (3, None), "nothing refers to the dropped name");
        assert_eq!(numbered(names.name(&next, Some(second))), (3, Some(2)));
    }

    #[test]
    fn named_frames_are_bounded_and_released() {
        let names = FrameNames::default();
        let frame = Bytes::from(vec![0; BYTES_MAX / 4]);
        for n in 0..100 {
            names.name(&frame.slice(n..), None);
        }
        assert!(names.0.lock().bytes <= BYTES_MAX && names.0.lock().frames.len() == 3);
        names.expire(Instant::now() + AGE_MAX + Duration::from_secs(1));
        assert!(names.0.lock().frames.is_empty() && names.0.lock().bytes == 0);
    }
}
