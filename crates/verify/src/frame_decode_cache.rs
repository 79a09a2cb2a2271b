use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::decode::{self, DecodedEvent};
use crate::record::RecordedEncoding;

/// A decoder of watch frames with a cache. Most frames are received repeatedly with the same bytes, and are decoded
/// once.
#[derive(Default)]
pub(crate) struct FrameDecodeCache(Mutex<HashMap<RecordedEncoding, DecodedFrames>>);

/// Decoded frames of one encoding, in two generations. When the newer one is full, the older one is dropped.
#[derive(Default)]
struct DecodedFrames {
    recent: HashMap<Box<[u8]>, Arc<DecodedEvent>>,
    before: HashMap<Box<[u8]>, Arc<DecodedEvent>>,
}

/// The number of frames in a generation. If all have the maximum size, a generation takes 8 MiB.
const RECENT_MAX: usize = 512;
/// The maximum size of a cached frame.
const FRAME_BYTES_MAX: usize = 16 << 10;

impl FrameDecodeCache {
    /// Decodes an event of a watch; `None` if it is malformed.
    pub(crate) fn event(&self, encoding: RecordedEncoding, frame: &[u8]) -> Option<Arc<DecodedEvent>> {
        if let Some(known) = self.0.lock().get(&encoding).and_then(|decoded| decoded.find(frame)) {
            return Some(known);
        }
        let event = Arc::new(decode::event(encoding, frame)?);
        if frame.len() <= FRAME_BYTES_MAX {
            self.0.lock().entry(encoding).or_default().keep(frame, event.clone());
        }
        Some(event)
    }
}

impl DecodedFrames {
    fn find(&self, frame: &[u8]) -> Option<Arc<DecodedEvent>> {
        self.recent.get(frame).or_else(|| self.before.get(frame)).cloned()
    }

    fn keep(&mut self, frame: &[u8], event: Arc<DecodedEvent>) {
        if self.recent.len() >= RECENT_MAX {
            self.before = std::mem::take(&mut self.recent);
        }
        self.recent.insert(frame.into(), event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(version: u64) -> String {
        let metadata = format!(r#"{{"name":"x","namespace":"a","resourceVersion":"{version}"}}"#);
        format!(r#"{{"type":"ADDED","object":{{"metadata":{metadata}}}}}"#)
    }

    fn decoded(frames: &FrameDecodeCache, version: u64) -> Arc<DecodedEvent> {
        frames.event(RecordedEncoding::Json, frame(version).as_bytes()).expect("an event")
    }

    #[test]
    fn identical_frames_are_decoded_once() {
        let frames = FrameDecodeCache::default();
        let first = decoded(&frames, 7);
        assert!(Arc::ptr_eq(&first, &decoded(&frames, 7)));
        assert_eq!((first.item.version, decoded(&frames, 8).item.version), (7, 8));
        assert_eq!(*first, decode::event(RecordedEncoding::Json, frame(7).as_bytes()).expect("an event"));
    }

    #[test]
    fn decoded_frames_are_cached_per_encoding() {
        let frames = FrameDecodeCache::default();
        decoded(&frames, 7);
        assert_eq!(frames.event(RecordedEncoding::Protobuf, frame(7).as_bytes()), None);
        assert!(!frames.0.lock().contains_key(&RecordedEncoding::Metadata), "each encoding for itself");
        assert_eq!(frames.event(RecordedEncoding::Json, b"{}"), None);
    }

    #[test]
    fn decoded_frame_cache_is_bounded_and_keeps_the_latest() {
        let frames = FrameDecodeCache::default();
        (1..=10 * RECENT_MAX as u64).for_each(|version| drop(decoded(&frames, version)));
        let long = frame(1).replace("\"x\"", &format!("\"{}\"", "x".repeat(FRAME_BYTES_MAX)));
        assert!(frames.event(RecordedEncoding::Json, long.as_bytes()).is_some());
        let decoded = frames.0.into_inner().remove(&RecordedEncoding::Json).expect("it is JSON");
        let cached = decoded.recent.len() + decoded.before.len();
        assert!(cached <= 2 * RECENT_MAX, "{cached}");
        let is_held = |frame: &str| decoded.find(frame.as_bytes()).is_some();
        assert!(is_held(&frame(10 * RECENT_MAX as u64)));
        assert!(!is_held(&frame(1)) && !is_held(&long), "an old one, and a long one");
    }
}
