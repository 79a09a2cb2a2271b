use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::CONTENT_ENCODING;
use http::{HeaderValue, StatusCode};
use tokio::time::{Instant, sleep};

use super::frame_classifier::ClassifiedFrame;
use super::gzip_inflater::{FlushCounter, GzipInflater};
use super::objects::with;
use super::option_values::WatchStartMode;
use super::shared::WatchFleetState;
use super::stream_outcome::StreamOutcome;
use super::tally::WatchTallyShard;
use base::{now_ns, random};
use probe::{HttpRequestSender, PendingResponse, RequestSpec, StreamFrameSplitter, StreamFraming};

/// The number of bytes of a LIST that are searched for its version.
const LIST_HEAD_BYTES: usize = 1024;
/// The timeout of each watch request, longer than any run, so that the server does not end the watch.
const TIMEOUT_SECONDS: u64 = 3600;
/// The lifetime below which an empty stream counts as failed. Reopening it at once would overload the server.
const SHORT: Duration = Duration::from_secs(1);

/// How the watch reads its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatcherRole {
    Reads,
    /// A reader that counts compressed events after the initial state without decompressing them.
    Raw,
    /// A reader that reads this many bytes per second.
    Slow(u32),
    Stuck,
}

/// One measured watch, from its first stream to the end of the fleet.
pub(super) struct BenchWatcher {
    shared: Arc<WatchFleetState>,
    /// The watch's index among all watches, its index within its kind, and its kind.
    pub(super) index: usize,
    nth: usize,
    kind: usize,
    /// The index of the recorder that the watch uses.
    lane: usize,
    role: WatcherRole,
    /// The last received version; `None` means that the watch must relist.
    version: Option<u64>,
    /// Whether the watch has received all initial objects.
    live: bool,
    /// The storm in which the watch was last synced.
    synced_in: u64,
    was_opened: bool,
    events: u64,
    ours: u64,
    repeated: u64,
}

impl BenchWatcher {
    pub(super) fn new(
        shared: &Arc<WatchFleetState>,
        index: usize,
        (kind, nth): (usize, usize),
        lane: usize,
        role: WatcherRole,
    ) -> Self {
        let seen = &shared.tally.seen[index];
        seen.lags.store(role != WatcherRole::Reads, Ordering::Relaxed);
        Self {
            shared: shared.clone(),
            index,
            nth,
            kind,
            lane,
            role,
            version: None,
            live: false,
            synced_in: 0,
            was_opened: false,
            events: 0,
            ours: 0,
            repeated: 0,
        }
    }

    /// Opens streams one after another and reads them. Over HTTP/2 it never returns, because its connection ends first.
    pub(super) async fn follow(&mut self, sender: &HttpRequestSender) {
        loop {
            let ended = self.stream(sender).await;
            let pause = self.note(&ended);
            if let Some(pause) = pause {
                sleep(pause.mul_f64(0.5 + random::f64())).await;
            }
            if !matches!(sender, HttpRequestSender::H2(_)) {
                return;
            }
        }
    }

    /// Counts the end of a stream; returns how long to wait before the next one.
    fn note(&mut self, ended: &StreamOutcome) -> Option<Duration> {
        let counts = &mut self.shared.tally.shard(self.lane).counts;
        match ended {
            StreamOutcome::Clean => {
                counts.resumed += 1;
                None
            }
            StreamOutcome::Expired => {
                counts.relisted += 1;
                self.version = None;
                self.shared.tally.seen[self.index].broken.store(true, Ordering::Relaxed);
                None
            }
            StreamOutcome::Refused(status) => {
                counts.refused += 1;
                self.shared.complain(&format!("a watch was refused: {status}"));
                Some(Duration::from_millis(500))
            }
            StreamOutcome::Broken(why) => {
                counts.broken += 1;
                self.shared.complain(why);
                Some(Duration::from_millis(200))
            }
        }
    }

    async fn stream(&mut self, sender: &HttpRequestSender) -> StreamOutcome {
        match self.open(sender).await {
            Ok(answer) => {
                let open = OpenWatchGuard::new(&self.shared.clone(), self.lane);
                let ended = self.read(answer).await;
                drop(open);
                ended
            }
            Err(ended) => ended,
        }
    }

    /// Opens one stream; its body is not read yet.
    pub(super) async fn open(&mut self, sender: &HttpRequestSender) -> Result<PendingResponse, StreamOutcome> {
        let shared = self.shared.clone();
        shared.gate_open().await;
        let _permit = shared.opening.acquire().await;
        let (target, kind) = (&shared.target, &shared.kinds[self.kind]);
        let question = shared.objects.question(&kind.kind, self.nth);
        let fresh = self.version.is_none();
        match (self.version, shared.start) {
            (None, WatchStartMode::List) => self.list(sender, &question).await?,
            // The last version has expired, or none is known yet.
            (None, WatchStartMode::Now) => {
                let known = shared.version.filter(|_| !self.was_opened);
                self.version = match known {
                    Some(version) => Some(version),
                    None => Some(shared.version_now(sender, &kind.kind.path).await?),
                };
            }
            (Some(_), _) | (None, WatchStartMode::WatchList) => {}
        }
        let path = request(&question, self.version);
        let request = RequestSpec {
            accept_encoding: shared.accept_encoding,
            ..RequestSpec::get(&path, kind.kind.encoding.of_watch())
        };
        let answer = sender.get(target, &request).await?;
        match answer.status {
            status if status.is_success() => {}
            StatusCode::GONE => return Err(StreamOutcome::Expired),
            status => return Err(StreamOutcome::Refused(status)),
        }
        self.was_opened = true;
        self.live = !(fresh && shared.start == WatchStartMode::WatchList);
        if self.live {
            let mut shard = shared.tally.shard(self.lane);
            self.note_synced(&mut shard, now_ns());
        }
        Ok(answer)
    }

    /// Sends the LIST of an informer, reads all of it, and stores its version.
    async fn list(&mut self, sender: &HttpRequestSender, question: &str) -> Result<(), StreamOutcome> {
        let kind = &self.shared.kinds[self.kind];
        // client-go's reflectors send the same parameter, which permits any version.
        let path = with(question, "resourceVersion=0");
        let mut answer =
            sender.get(&self.shared.target, &RequestSpec::get(&path, kind.kind.encoding.of_list())).await?;
        if !answer.status.is_success() {
            return Err(StreamOutcome::Refused(answer.status));
        }
        let (head, bytes) = answer.body.read(LIST_HEAD_BYTES).await?;
        let counts = &mut self.shared.tally.shard(self.lane).counts;
        counts.bytes += bytes;
        counts.plain_bytes += bytes;
        let version = kind.recogniser.list_version(&head);
        self.version = Some(version.ok_or_else(|| StreamOutcome::Broken("a LIST without a version".to_owned()))?);
        Ok(())
    }

    async fn read(&mut self, answer: PendingResponse) -> StreamOutcome {
        let PendingResponse { headers, mut body, .. } = answer;
        if self.role == WatcherRole::Stuck {
            let _unread = body;
            return pending().await;
        }
        let shared = self.shared.clone();
        let mut inflater = match headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
            None => None,
            Some(b"gzip") => {
                shared.tally.shard(self.lane).counts.compressed += 1;
                Some(GzipInflater::new())
            }
            Some(_) => return StreamOutcome::Broken("a stream with an unknown Content-Encoding".to_owned()),
        };
        let is_protobuf = shared.kinds[self.kind].kind.encoding.is_protobuf();
        let framing = match (body.is_of_messages(), is_protobuf) {
            (true, _) => StreamFraming::Messages,
            (false, true) => StreamFraming::Lengths,
            (false, false) => StreamFraming::Lines,
        };
        let (began, mut is_empty, mut frames) = (Instant::now(), true, StreamFrameSplitter::new(framing));
        let mut flushes = FlushCounter::default();
        while let Some(chunk) = body.chunk().await {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => return error.into(),
            };
            is_empty &= chunk.is_empty();
            if self.role == WatcherRole::Raw && self.live && inflater.is_some() {
                let counts = &mut shared.tally.shard(self.lane).counts;
                counts.bytes += chunk.len() as u64;
                counts.deliveries += flushes.feed(&chunk);
                continue;
            }
            if let Some(ended) = self.take(&shared, inflater.as_mut(), &mut frames, &chunk) {
                return ended;
            }
            if let WatcherRole::Slow(bytes_per_s) = self.role {
                sleep(Duration::from_secs_f64(chunk.len() as f64 / f64::from(bytes_per_s))).await;
            }
        }
        if self.role != WatcherRole::Raw && inflater.is_some_and(|inflater| !inflater.is_whole()) {
            return StreamOutcome::Broken("a stream that ended within a gzip member".to_owned());
        }
        if !self.live {
            // An incomplete initial set gives no version at which to resume.
            self.version = None;
        }
        if is_empty && began.elapsed() < SHORT {
            return StreamOutcome::Broken("a stream that ended at once, with nothing in it".to_owned());
        }
        StreamOutcome::Clean
    }

    /// Processes the bytes of one read from the connection.
    fn take(
        &mut self,
        shared: &WatchFleetState,
        inflater: Option<&mut GzipInflater>,
        frames: &mut StreamFrameSplitter,
        chunk: &[u8],
    ) -> Option<StreamOutcome> {
        let arrived_ns = now_ns();
        let window = shared.tally.window.read();
        let mut ended = None;
        shared.tally.shard(self.lane).counts.bytes += chunk.len() as u64;
        // Not held while a chunk is decompressed: other watches would wait for a thread that the system has suspended.
        let mut plain = |text: &[u8]| {
            let mut shard = shared.tally.shard(self.lane);
            shard.counts.plain_bytes += text.len() as u64;
            let fed = frames.feed(text, |frame| {
                let end = self.frame(shared, frame, arrived_ns, &window, &mut shard);
                ended = ended.take().or(end);
            });
            if fed.is_err() {
                ended = Some(StreamOutcome::Broken("a frame that is too long".to_owned()));
            }
        };
        match inflater.map(|inflater| inflater.feed(chunk, &mut plain)) {
            None => plain(chunk),
            Some(Ok(spent)) => {
                let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
                shared.tally.shard(self.lane).counts.inflate_ns += spent;
            }
            Some(Err(error)) => ended = Some(StreamOutcome::Broken(format!("invalid gzip data: {error}"))),
        }
        let seen = &shared.tally.seen[self.index];
        seen.events.store(self.events, Ordering::Relaxed);
        seen.ours.store(self.ours, Ordering::Relaxed);
        seen.repeated.store(self.repeated, Ordering::Relaxed);
        ended
    }

    fn frame(
        &mut self,
        shared: &WatchFleetState,
        frame: &[u8],
        arrived_ns: u64,
        window: &std::ops::Range<u64>,
        shard: &mut WatchTallyShard,
    ) -> Option<StreamOutcome> {
        let recogniser = &shared.kinds[self.kind].recogniser;
        let found = recogniser.classify(frame);
        match found {
            ClassifiedFrame::Written | ClassifiedFrame::Deleted if self.live => {
                shard.counts.deliveries += 1;
                self.events += 1;
                if found == ClassifiedFrame::Written
                    && let Some(written_ns) = recogniser.written_at_ns(frame).filter(|at| *at >= shared.began_ns)
                {
                    self.ours += 1;
                    if window.contains(&written_ns) {
                        shard.latency.saturating_record(arrived_ns.saturating_sub(written_ns) / 1000);
                    }
                }
            }
            ClassifiedFrame::Written | ClassifiedFrame::Deleted => shard.counts.initial += 1,
            ClassifiedFrame::Bookmark { initial_end } => {
                shard.counts.bookmarks += 1;
                self.live |= initial_end;
                if initial_end {
                    self.note_synced(shard, arrived_ns);
                }
            }
            ClassifiedFrame::Expired => return Some(StreamOutcome::Expired),
            ClassifiedFrame::Error => return Some(StreamOutcome::Broken("an ERROR event".to_owned())),
            ClassifiedFrame::Unknown => {
                return Some(StreamOutcome::Broken("a frame that is no watch event".to_owned()));
            }
        }
        // The initial objects are ordered by name, so only the end of the set gives a version for resuming.
        if self.live
            && let Some(version) = recogniser.version(frame)
        {
            let is_event = matches!(found, ClassifiedFrame::Written | ClassifiedFrame::Deleted);
            let is_repeated = is_event && self.version.is_some_and(|last| version <= last);
            self.repeated += u64::from(is_repeated);
            self.version = Some(version.max(self.version.unwrap_or(0)));
        }
        None
    }

    /// Records the sync once for each storm. The first storm is the opening.
    fn note_synced(&mut self, shard: &mut WatchTallyShard, at_ns: u64) {
        let (storm, began_ns) = self.shared.storm();
        if self.synced_in < storm {
            self.synced_in = storm;
            shard.counts.synced += 1;
            shard.synced.saturating_record(at_ns.saturating_sub(began_ns) / 1000);
        }
    }

    pub(super) fn shared(&self) -> &Arc<WatchFleetState> {
        &self.shared
    }

    pub(super) fn lane(&self) -> usize {
        self.lane
    }
}

/// Returns the path of a watch request.
fn request(question: &str, version: Option<u64>) -> String {
    let common = with(question, &format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={TIMEOUT_SECONDS}"));
    match version {
        Some(version) => format!("{common}&resourceVersion={version}"),
        None => format!("{common}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
    }
}

/// A guard that counts a stream as open until it is dropped.
pub(super) struct OpenWatchGuard {
    shared: Arc<WatchFleetState>,
    lane: usize,
}

impl OpenWatchGuard {
    pub(super) fn new(shared: &Arc<WatchFleetState>, lane: usize) -> Self {
        shared.tally.shard(lane).counts.opened += 1;
        Self { shared: shared.clone(), lane }
    }
}

impl Drop for OpenWatchGuard {
    fn drop(&mut self) {
        self.shared.tally.shard(self.lane).counts.closed += 1;
    }
}
