use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

/// Compressed stretches of lists, kept so that they are made once and not for every client: bounded, the oldest go
/// first.
#[derive(Debug, Default)]
pub struct Segments {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_name: HashMap<u128, Arc<Segment>>,
    order: VecDeque<u128>,
    bytes: usize,
}

/// One stretch, compressed on its own.
#[derive(Debug)]
pub struct Segment {
    /// DEFLATE (RFC 1951), flushed to a byte boundary and without a final block.
    pub deflated: Bytes,
    /// CRC-32 and length of what it stands for.
    pub crc: u32,
    pub len: u64,
}

/// What one feed may keep.
const BYTES_MAX: usize = 64 << 20;

impl Segments {
    /// The segment of that name, made if nobody has it. A name stands for the bytes themselves: a hash of what they are
    /// made from.
    pub fn get_or_make<E>(&self, name: u128, make: impl FnOnce() -> Result<Segment, E>) -> Result<Arc<Segment>, E> {
        if let Some(segment) = self.kept.lock().by_name.get(&name) {
            return Ok(segment.clone());
        }
        // Not under the lock: of two who come at once both make it.
        let made = Arc::new(make()?);
        self.kept.lock().keep(name, &made);
        Ok(made)
    }

    /// Lets everything go: what versions stand for may be something else from now on.
    pub(super) fn clear(&self) {
        *self.kept.lock() = Kept::default();
    }

    pub fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }
}

impl Kept {
    fn keep(&mut self, name: u128, segment: &Arc<Segment>) {
        let len = segment.deflated.len();
        if len > BYTES_MAX || self.by_name.insert(name, segment.clone()).is_some() {
            return;
        }
        self.order.push_back(name);
        self.bytes += len;
        while self.bytes > BYTES_MAX {
            let Some(oldest) = self.order.pop_front().and_then(|name| self.by_name.remove(&name)) else { return };
            self.bytes -= oldest.deflated.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn kept(segments: &Segments, name: u128, len: usize) -> Arc<Segment> {
        let make = || Ok::<_, Infallible>(Segment { deflated: vec![0; len].into(), crc: 0, len: 0 });
        let Ok(segment) = segments.get_or_make(name, make);
        segment
    }

    #[test]
    fn a_segment_is_made_once_and_the_oldest_go_when_there_are_too_many_bytes() {
        let segments = Segments::default();
        let first = kept(&segments, 1, BYTES_MAX / 2);
        let Ok(again) = segments.get_or_make(1, || -> Result<Segment, Infallible> { panic!("it is there") });
        assert!(Arc::ptr_eq(&first, &again));
        kept(&segments, 2, BYTES_MAX / 2);
        assert_eq!(segments.bytes(), BYTES_MAX);
        kept(&segments, 3, 1);
        assert_eq!(segments.bytes(), BYTES_MAX / 2 + 1, "the first is gone");
        kept(&segments, 4, BYTES_MAX + 1);
        assert_eq!(segments.bytes(), BYTES_MAX / 2 + 1, "too large to be kept");
    }
}
