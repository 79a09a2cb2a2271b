use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::LruEviction;
use base::{MemoryAccount, MemoryCharge};

/// The shared frames that watches were sent recently, each with a name.
///
/// A compressed frame may refer to the frame that the watch was sent right before it, so both names are its cache key.
/// A watch keeps a name instead of the frame, so an idle watch keeps no frame alive.
#[derive(Debug, Default)]
pub(super) struct FrameNames(Mutex<FrameNameTable>);

/// A name of one frame. Its number is never reused, unlike the address of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameName {
    address: FrameAddress,
    pub(super) number: u64,
}

/// The address and the length of a frame.
type FrameAddress = (usize, usize);

#[derive(Debug, Default)]
struct FrameNameTable {
    frames: HashMap<FrameAddress, NamedFrame>,
    /// The named frames, oldest first.
    order: VecDeque<(FrameAddress, Instant)>,
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
    _charge: MemoryCharge,
}

/// The maximum length of all named frames of a feed in bytes. Most of them are in the store or the ring too.
const BYTES_MAX: usize = 16 << 20;
/// The number of bytes that are charged for a name beside its frame.
const NAME_BYTES: usize = 256;
/// The maximum number of predecessors that a frame is compressed after. Watches with other predecessors share one form
/// that refers to none, so the watches of one frame cause at most one compression more than this.
pub(super) const PREDECESSORS_MAX: usize = 4;
/// The age at which a name is dropped.
pub(super) const AGE_MAX: Duration = Duration::from_secs(60);

impl FrameNames {
    /// Returns the name of a frame, and `previous` if the compressed form may refer to that frame.
    pub(super) fn name(
        &self,
        frame: &Bytes,
        previous: Option<FrameName>,
        account: &Arc<MemoryAccount>,
    ) -> (FrameName, Option<FrameName>) {
        let address = (frame.as_ptr().addr(), frame.len());
        let mut guard = self.0.lock();
        let table = &mut *guard;
        let previous = previous.filter(|previous| table.frame(*previous).is_some());
        let named = table.frames.entry(address).or_insert_with(|| {
            table.names += 1;
            table.bytes += frame.len() + NAME_BYTES;
            table.order.push_back((address, Instant::now()));
            NamedFrame {
                number: table.names,
                frame: frame.clone(),
                previous: Vec::new(),
                _charge: account.charge(NAME_BYTES),
            }
        });
        let previous = previous.filter(|previous| {
            let is_known = named.previous.contains(&previous.number);
            if !is_known && named.previous.len() < PREDECESSORS_MAX {
                named.previous.push(previous.number);
                return true;
            }
            is_known
        });
        let name = FrameName { address, number: named.number };
        let dropped = table.drop_while(|table, _| table.bytes > BYTES_MAX && table.order.len() > 1);
        drop(guard);
        drop(dropped);
        (name, previous)
    }

    /// Returns a named frame.
    pub(super) fn frame(&self, name: FrameName) -> Option<Bytes> {
        self.0.lock().frame(name).cloned()
    }

    /// Returns the number of bytes of the names, without their frames.
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().order.len() * NAME_BYTES
    }

    pub(super) fn clear(&self) {
        let _dropped = self.0.lock().drop_while(|_, _| true);
    }

    /// Drops names that are too old.
    pub(super) fn expire(&self, now: Instant) {
        let Some(oldest) = now.checked_sub(AGE_MAX) else { return };
        let _dropped = self.0.lock().drop_while(|_, since| since < oldest);
    }
}

impl LruEviction for FrameNames {
    fn oldest(&self) -> Option<Instant> {
        self.0.lock().order.front().map(|(_, since)| *since)
    }

    fn drop_oldest(&self) {
        let _dropped = self.0.lock().drop_oldest();
    }
}

impl FrameNameTable {
    fn frame(&self, name: FrameName) -> Option<&Bytes> {
        self.frames.get(&name.address).filter(|named| named.number == name.number).map(|named| &named.frame)
    }

    /// Removes the oldest names while `condition` is true for them. The caller drops them after it has unlocked the
    /// table, because that may free their frames.
    fn drop_while(&mut self, condition: impl Fn(&Self, Instant) -> bool) -> Vec<NamedFrame> {
        let mut dropped = Vec::new();
        while self.order.front().is_some_and(|(_, since)| condition(self, *since)) {
            dropped.extend(self.drop_oldest());
        }
        dropped
    }

    fn drop_oldest(&mut self) -> Option<NamedFrame> {
        let (address, _) = self.order.pop_front()?;
        self.bytes -= address.1 + NAME_BYTES;
        self.frames.remove(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl FrameNames {
        fn numbers(&self, frame: &Bytes, previous: Option<FrameName>) -> (u64, Option<u64>) {
            let (name, previous) = self.name(frame, previous, &MemoryAccount::new());
            (name.number, previous.map(|previous| previous.number))
        }

        fn named(&self, frame: &Bytes) -> FrameName {
            self.name(frame, None, &MemoryAccount::new()).0
        }
    }

    #[test]
    fn frame_keeps_its_name_and_few_predecessors() {
        let names = FrameNames::default();
        let frames: Vec<Bytes> = (0..=2 * PREDECESSORS_MAX).map(|n| Bytes::from(vec![0; 10 + n])).collect();
        let (last, before) = frames.split_last().expect("there are some");
        assert_eq!(names.numbers(last, None), (1, None));
        let before: Vec<FrameName> = before.iter().map(|frame| names.named(frame)).collect();
        for round in 0..2 {
            for (at, previous) in before.iter().enumerate() {
                let expected = (at < PREDECESSORS_MAX).then_some(previous.number);
                assert_eq!(names.numbers(last, Some(*previous)), (1, expected), "round {round}");
            }
        }
    }

    #[test]
    fn dropped_name_is_not_reused_for_the_same_address() {
        let names = FrameNames::default();
        let (frame, next) = (Bytes::from(vec![1; 100]), Bytes::from(vec![2; 100]));
        let first = names.named(&frame);
        names.drop_oldest();
        let second = names.named(&frame);
        assert!(first.address == second.address && first != second);
        assert_eq!(names.numbers(&next, Some(first)), (3, None), "nothing refers to the dropped name");
        assert_eq!(names.numbers(&next, Some(second)), (3, Some(2)));
    }

    #[test]
    fn named_frames_are_bounded_and_released() {
        let names = FrameNames::default();
        let (frame, account) = (Bytes::from(vec![0; BYTES_MAX / 4]), MemoryAccount::new());
        for n in 0..100 {
            names.name(&frame.slice(n..), None, &account);
        }
        assert_eq!((account.bytes(), names.bytes()), (3 * NAME_BYTES, 3 * NAME_BYTES));
        assert!(names.0.lock().bytes <= BYTES_MAX && names.0.lock().frames.len() == 3);
        names.expire(Instant::now() + AGE_MAX + Duration::from_secs(1));
        assert!(names.0.lock().frames.is_empty() && names.0.lock().bytes == 0 && account.bytes() == 0);
    }
}
