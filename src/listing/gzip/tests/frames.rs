//! A compressed watch contains its frames, each readable before the next, and shares what it sends with other watches.

use std::collections::{HashSet, VecDeque};
use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use flate2::{Decompress, FlushDecompress, Status};

use super::{base64, gunzipped, incompressible, repetitive};
use crate::cache::tests::fixture::{self, rv};
use crate::cache::{CacheConfig, CacheReader, CacheWriter, FeedSnapshot};
use crate::listing::gzip::GzipFrames;
use crate::listing::{CallerCpuSlices, ScanBudget};
use base::random;

fn feed() -> (CacheWriter, CacheReader) {
    fixture::pods(CacheConfig::default())
}

/// The compressed stream of one watch and the text that it must contain.
struct Stream {
    frames: GzipFrames,
    /// The bytes of the member so far.
    sent: Vec<u8>,
    plain: Vec<u8>,
    read: Vec<u8>,
    inflate: Decompress,
    polls: usize,
}

impl Stream {
    fn new(reader: &CacheReader) -> Self {
        Self::with(reader, &CallerCpuSlices::new(1), false)
    }

    fn with(reader: &CacheReader, slices: &CallerCpuSlices, is_secret: bool) -> Self {
        let budget = ScanBudget::new(slices.clone(), None, false);
        let (frames, inflate) = (GzipFrames::new(reader.clone(), budget, is_secret), Decompress::new(false));
        Self { frames, sent: Vec::new(), plain: Vec::new(), read: Vec::new(), inflate, polls: 0 }
    }

    /// Sends frames, and returns the pieces of the response.
    async fn send(&mut self, frames: impl IntoIterator<Item = Bytes>) -> Vec<Bytes> {
        let mut frames: Vec<Bytes> = frames.into_iter().collect();
        frames.iter().for_each(|frame| self.plain.extend_from_slice(frame));
        self.frames.push(&mut frames, &[]);
        let mut pieces = Vec::new();
        loop {
            let was_empty = self.frames.is_empty();
            let (frames, polls) = (&mut self.frames, &mut self.polls);
            let polled = poll_fn(|cx| {
                *polls += 1;
                frames.poll(cx)
            });
            let Some(piece) = polled.await else { break };
            assert!(!was_empty, "an idle watch has nothing to send");
            self.sent.extend_from_slice(&piece);
            pieces.push(piece);
        }
        self.inflate();
        assert!(self.read == self.plain, "everything that was sent can be read");
        // Go's reader waits for it.
        assert!(self.sent.ends_with(&[0, 0, 0xff, 0xff]), "an empty block ends each flush");
        pieces
    }

    /// Reads what a client can read so far.
    fn inflate(&mut self) {
        const HEADER_BYTES: u64 = 10;
        self.read.reserve(self.plain.len() + 1_000 - self.read.len());
        loop {
            let at = usize::try_from(HEADER_BYTES + self.inflate.total_in()).expect("short");
            let before = self.inflate.total_out();
            let rest = self.sent.get(at..).unwrap_or_default();
            let status = self.inflate.decompress_vec(rest, &mut self.read, FlushDecompress::Sync).expect("valid");
            if status == Status::StreamEnd || self.inflate.total_out() == before {
                break;
            }
        }
    }

    fn end(mut self) {
        let end = self.frames.end();
        assert_eq!(end.is_some(), !self.plain.is_empty(), "without a frame, nothing is sent");
        self.sent.extend(end.into_iter().flatten());
        assert!(self.frames.end().is_none(), "it ends once");
        assert!(self.plain.is_empty() || gunzipped(&self.sent) == self.plain);
    }
}

/// Returns a frame that others have too, of any kind of text.
fn shared_frame() -> Bytes {
    let len = [1, 100, 1_000, 5_000, 40_000, 400_000][random::usize(..6)];
    let text = [incompressible, base64, repetitive, repetitive][random::usize(..4)](len);
    Bytes::from_owner(text)
}

/// Watches join at any time, are sent frames of their own in between, and lag.
#[tokio::test(start_paused = true)]
async fn random_watches_are_whole_members_that_are_readable_at_once() {
    let (_writer, reader) = feed();
    let mut watches: Vec<(Stream, VecDeque<Bytes>)> = Vec::new();
    for _ in 0..60 {
        if watches.len() < 6 || random::usize(..8) == 0 {
            watches.push((Stream::new(&reader), VecDeque::new()));
        }
        let frame = shared_frame();
        for (watch, unsent) in &mut watches {
            unsent.push_back(frame.clone());
            match random::usize(..8) {
                0 => unsent.push_back(repetitive(1 + random::usize(..2_000)).into()),
                1 => unsent.push_back(incompressible(1 + random::usize(..200_000)).into()),
                2 => continue,
                _ => {}
            }
            watch.send(unsent.drain(..)).await;
            if random::usize(..4) == 0 {
                watch.frames.release_idle();
            }
        }
        if random::usize(..8) == 0 {
            watches.swap_remove(random::usize(..watches.len())).0.end();
        }
    }
    watches.into_iter().for_each(|(watch, _)| watch.end());
    Stream::new(&reader).end();
}

#[tokio::test(start_paused = true)]
async fn event_is_compressed_once_for_all_watches() {
    let (_writer, reader) = feed();
    let mut watches: Vec<Stream> = std::iter::repeat_with(|| Stream::new(&reader)).take(1_000).collect();
    let object = repetitive(5_000);
    let (mut plain, mut sent) = (0, 0);
    for event in 0..3 {
        let frame = Bytes::from_owner([object.as_slice(), format!("{event}").as_bytes()].concat());
        let mut pieces = Vec::new();
        for watch in &mut watches {
            pieces.extend(watch.send([frame.clone()]).await);
        }
        assert_eq!(pieces.len(), watches.len());
        if event > 0 {
            let addresses: HashSet<_> = pieces.iter().map(|piece| piece.as_ptr()).collect();
            assert_eq!(addresses.len(), 1, "the bytes are shared");
            (plain, sent) = (plain + frame.len(), sent + pieces[0].len());
        }
    }
    assert!(sent * 50 < plain, "{sent} of {plain} bytes, because the object was sent before");
    watches.into_iter().for_each(Stream::end);
}

/// 100 watches that were sent other frames before cause five compressions.
#[tokio::test(start_paused = true)]
async fn watches_with_different_predecessors_share_few_compressions() {
    let (_writer, reader) = feed();
    let mut watches: Vec<Stream> = std::iter::repeat_with(|| Stream::new(&reader)).take(100).collect();
    let frame = Bytes::from_owner(repetitive(5_000));
    let mut addresses = HashSet::new();
    for watch in &mut watches {
        let before: Vec<_> = (0..3).map(|_| Bytes::from_owner(repetitive(1_000 + random::usize(..1_000)))).collect();
        watch.send(before).await;
        let pieces = watch.send([frame.clone()]).await;
        addresses.extend(pieces.iter().map(|piece| piece.as_ptr()));
    }
    assert!(addresses.len() <= 5, "{}", addresses.len());
    watches.into_iter().for_each(Stream::end);
}

#[tokio::test(start_paused = true)]
async fn large_frames_are_compressed_in_turns_and_idle_watch_holds_nothing() {
    let (mut writer, reader) = feed();
    let account = reader.chunks().account().clone();
    let mut watch = Stream::new(&reader);
    for frame in [Bytes::from_owner(base64(1 << 20)), base64(1 << 20).into()] {
        let before = watch.polls;
        watch.send([frame]).await;
        assert!(watch.polls - before >= 2 * 6, "{} polls for seven pieces", watch.polls - before);
    }
    assert!(account.bytes() > 700_000, "the shared frame is kept for the next watch");
    watch.frames.release_idle();
    assert!(watch.frames.holds_nothing());
    writer.replace(FeedSnapshot::from_objects(rv(9), Vec::new()));
    assert_eq!(account.bytes(), 0);
    watch.end();
}

/// The length of a frame of Secrets must not show what it has in common with an earlier one.
#[tokio::test(start_paused = true)]
async fn frames_of_secrets_refer_to_no_earlier_frame() {
    let (_writer, reader) = feed();
    let text = base64(5_000);
    for make in [|text: &[u8]| Bytes::from_owner(text.to_vec()), |text: &[u8]| Bytes::from(text.to_vec())] {
        for is_secret in [false, true] {
            let (mut watch, mut sent) = (Stream::with(&reader, &CallerCpuSlices::new(1), is_secret), Vec::new());
            for _ in 0..3 {
                sent.push(watch.send([make(&text)]).await.concat().len());
            }
            assert!(if is_secret { sent[2] > 3_700 } else { sent[2] < 100 }, "{is_secret}: {sent:?}");
            watch.end();
        }
    }
}

/// A caller cannot use more of the CPU by being the first to compress what others share.
#[tokio::test(start_paused = true)]
async fn first_watch_to_compress_a_shared_frame_waits_for_a_slice() {
    let (_writer, reader) = feed();
    let busy = CallerCpuSlices::new(1);
    let (mut first, mut other) = (Stream::with(&reader, &busy, false), Stream::new(&reader));
    let frame = Bytes::from_owner(repetitive(30_000));
    first.send([frame.clone()]).await;
    other.send([frame]).await;
    let slice = busy.take(&None).expect("none is taken");
    let frame = Bytes::from_owner(repetitive(30_000));
    let waiting = tokio::time::timeout(Duration::from_secs(1), first.send([frame.clone()]));
    assert!(waiting.await.is_err(), "its budget is used up");
    other.send([frame]).await;
    first.send([]).await;
    drop(slice);
    first.end();
}

#[tokio::test(start_paused = true)]
async fn frames_after_the_end_of_the_feed_are_not_kept() {
    let (writer, reader) = feed();
    let (mut watch, account) = (Stream::new(&reader), reader.chunks().account().clone());
    let mut send = async || {
        watch.send([Bytes::from_owner(repetitive(5_000)), Bytes::from_owner(repetitive(5_000))]).await;
    };
    send().await;
    assert!(account.bytes() > 0);
    drop(writer);
    send().await;
    assert_eq!(account.bytes(), 0);
    watch.end();
}

/// Each compressed watch has one.
#[test]
fn state_of_a_compressed_watch_is_small() {
    assert!(size_of::<GzipFrames>() <= 320, "{} bytes", size_of::<GzipFrames>());
}
