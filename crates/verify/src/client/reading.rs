use std::time::Duration;

use http::StatusCode;
use http::header::CONTENT_TYPE;
use tokio::time::{Instant, sleep_until};

use super::behaviour::{Behaviour, WatchLength};
use super::connection::ClientConnection;
use super::query::QueryText;
use crate::decode::{self, DecodedEvent};
use crate::record::{
    CallRecord, EndRecord, Ending, EventKind, EventRecord, Op, ReadVerb, Record, RecordedEncoding, RecordedStatus,
    RequestTarget, ReturnRecord, Transport,
};
use crate::run_context::RunContext;
use base::now_ns;
use probe::{Frames, Framing, LinkError, PendingResponse, ResponseStream};

/// The maximum size of a response body in bytes.
const BODY_BYTES_MAX: usize = 64 << 20;
/// The number of bytes of an error response that are read.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
/// The time after an ERROR event at which the client closes the stream, if the server has not.
const AFTER_ERROR: Duration = Duration::from_secs(2);
/// The lifetime below which an empty stream counts as failed.
const SHORT: Duration = Duration::from_secs(1);
/// The duration of a stream without an end of its own.
const NEVER: Duration = Duration::from_secs(86_400 * 365);

/// A sender of one client's requests that records their results.
pub(super) struct RecordingClient<'a> {
    pub(super) scene: &'a RunContext,
    pub(super) client: u32,
    pub(super) behaviour: Behaviour,
    /// The connection for lists, gets, and watches without a `WebSocket`.
    connection: ClientConnection,
    watching: Option<ClientConnection>,
}

/// The result of a client's read.
#[derive(Debug)]
pub(super) enum ReadOutcome<T> {
    With(Op, T),
    Refused {
        code: u16,
        retry_after: u64,
    },
    /// The connection broke, or the response could not be decoded.
    Broken,
}

/// A fully read response with its headers.
struct FullResponse {
    code: StatusCode,
    encoding: Option<RecordedEncoding>,
    from_memory: bool,
    body: Vec<u8>,
}

/// The position at which a client's watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientWatchStart {
    Version(u64),
    /// The watch starts with initial events, of a state that is not older than a version.
    Initial(Option<u64>),
    /// The watch starts without a version, or from 0: with some initial events, whose end is not marked.
    Anything {
        zero: bool,
    },
}

/// A watch that has ended.
#[derive(Debug)]
pub(super) struct EndedWatch {
    /// The version at which to resume, if there is one.
    pub(super) place: Option<u64>,
    pub(super) is_expired: bool,
    /// Whether the watch ended at once and empty. Resuming it without a pause would overload the server.
    pub(super) is_short: bool,
}

impl<'a> RecordingClient<'a> {
    pub(super) fn new(scene: &'a RunContext, client: u32, behaviour: Behaviour) -> Self {
        let over = |transport| {
            let connection = ClientConnection::new(scene.target(behaviour.server), transport, &scene.tasks);
            connection.sharing(scene.links.of(behaviour.server, client))
        };
        let short = if behaviour.transport == Transport::H2 { Transport::H2 } else { Transport::H1 };
        let watching = (behaviour.transport == Transport::Ws).then(|| over(Transport::Ws));
        Self { scene, client, connection: over(short), watching, behaviour }
    }

    /// Switches the client to another server.
    pub(super) fn go_to(&mut self, server: RequestTarget) {
        if server != self.behaviour.server {
            *self = Self::new(self.scene, self.client, Behaviour { server, ..self.behaviour.clone() });
        }
    }

    /// Switches to a random judged server that satisfies `may`; returns `false` if there is none.
    pub(super) fn go_to_some(&mut self, rng: &mut fastrand::Rng, may: impl Fn(RequestTarget) -> bool) -> bool {
        // Clients of the comparison server do not switch.
        if !self.behaviour.server.is_judged() {
            return false;
        }
        let servers: Vec<_> = self.scene.servers().filter(|server| may(*server)).collect();
        let drawn = if servers.len() > 1 { rng.usize(..servers.len()) } else { 0 };
        let server = servers.get(drawn).copied();
        server.into_iter().for_each(|server| self.go_to(server));
        server.is_some()
    }

    fn call(&self, verb: ReadVerb, path: &str, query: &QueryText, resumes: Option<Op>) -> Op {
        let op = self.scene.recorder.op();
        let short = if self.behaviour.transport == Transport::H2 { Transport::H2 } else { Transport::H1 };
        let transport = if verb == ReadVerb::Watch { self.behaviour.transport } else { short };
        self.scene.recorder.put(&Record::Call(CallRecord {
            op,
            client: self.client,
            at_ns: now_ns(),
            verb,
            path: path.to_owned(),
            query: query.as_str().to_owned(),
            encoding: self.behaviour.encoding,
            transport,
            resumes,
            server: self.behaviour.server,
        }));
        op
    }

    fn returned(&self, answer: ReturnRecord) {
        self.scene.recorder.put(&Record::Return(ReturnRecord { at_ns: now_ns(), ..answer }));
    }

    /// Sends a request and reads its whole response.
    async fn whole(&mut self, path: &str, is_list: bool) -> Result<FullResponse, LinkError> {
        let encoding = self.behaviour.encoding;
        let mut answer = self.connection.get(path, decode::accept(encoding, is_list, false)).await?;
        let (body, bytes) = answer.body.read(BODY_BYTES_MAX).await.inspect_err(|_| self.connection.give_up())?;
        if bytes > BODY_BYTES_MAX as u64 {
            self.scene.notes.add(format!("responses larger than {} MiB were not read", BODY_BYTES_MAX >> 20));
        }
        let (encoding, from_memory) = (encoding_in(&answer, encoding), is_from_memory(&answer));
        Ok(FullResponse { code: answer.status, encoding, from_memory, body })
    }

    /// Reads one list, or one page of one.
    pub(super) async fn list(&mut self, query: &QueryText, page_of: Option<Op>) -> ReadOutcome<decode::DecodedList> {
        let path = self.behaviour.path(&self.scene.world);
        let op = self.call(ReadVerb::List, &path, query, page_of);
        let answer = self.whole(&query.behind(&path), true).await;
        self.read(op, answer, decode::list, |read, answer| {
            answer.version = read.version;
            answer.items.clone_from(&read.items);
            answer.more = read.token.is_some();
            answer.remaining = read.remaining;
        })
    }

    /// Sends a GET of one object.
    pub(super) async fn get(&mut self, path: &str, query: &QueryText) -> ReadOutcome<crate::record::RecordedItem> {
        let op = self.call(ReadVerb::Get, path, query, None);
        let answer = self.whole(&query.behind(path), false).await;
        self.read(op, answer, decode::item, |item, answer| {
            answer.version = Some(item.version);
            answer.items = vec![item.clone()];
        })
    }

    fn read<T>(
        &self,
        op: Op,
        answer: Result<FullResponse, LinkError>,
        decode: impl FnOnce(RecordedEncoding, &[u8]) -> Option<T>,
        fill: impl FnOnce(&T, &mut ReturnRecord),
    ) -> ReadOutcome<T> {
        let FullResponse { code, encoding, from_memory, body } = match answer {
            Ok(answer) => answer,
            Err(error) => return self.broke(op, &error),
        };
        let asked = self.behaviour.encoding;
        let mut told = ReturnRecord { op, code: code.as_u16(), from_memory, ..ReturnRecord::default() };
        if !code.is_success() {
            let (status, retry_after) = decode::status(&body);
            told.status = status;
            self.returned(told);
            return ReadOutcome::Refused { code: code.as_u16(), retry_after };
        }
        told.encoding = encoding.filter(|encoding| *encoding != asked);
        let Some(read) = decode(encoding.unwrap_or(asked), &body) else {
            self.scene.notes.add(format!("a response in {asked:?} could not be parsed"));
            told.code = 0;
            self.returned(told);
            return ReadOutcome::Broken;
        };
        fill(&read, &mut told);
        self.scene.world.saw(told.version.unwrap_or_default());
        self.returned(told);
        ReadOutcome::With(op, read)
    }

    fn broke<T>(&self, op: Op, error: &LinkError) -> ReadOutcome<T> {
        self.returned(ReturnRecord { op, status: said(error), ..ReturnRecord::default() });
        ReadOutcome::Broken
    }

    /// Runs one watch to its end.
    pub(super) async fn watch(
        &mut self,
        from: ClientWatchStart,
        resumes: Option<Op>,
        length: WatchLength,
    ) -> ReadOutcome<EndedWatch> {
        let path = self.behaviour.path(&self.scene.world);
        let query = self.watch_query(from, length);
        let op = self.call(ReadVerb::Watch, &path, &query, resumes);
        let accept = decode::accept(self.behaviour.encoding, false, true);
        let asked = query.behind(&path);
        let connection = self.watching.as_mut().unwrap_or(&mut self.connection);
        let mut answer = tokio::select! {
            biased;
            answer = connection.get(&asked, accept) => match answer {
                Ok(answer) => answer,
                Err(error) => return self.broke(op, &error),
            },
            () = self.scene.leave.cancelled() => {
                connection.give_up();
                return ReadOutcome::Broken;
            }
        };
        let (code, from_memory) = (answer.status.as_u16(), is_from_memory(&answer));
        let mut told = ReturnRecord { op, code, from_memory, ..ReturnRecord::default() };
        if !answer.status.is_success() {
            let (body, _) = answer.body.read(REFUSAL_BYTES_MAX).await.unwrap_or_default();
            let (status, retry_after) = decode::status(&body);
            told.status = status;
            self.returned(told);
            return ReadOutcome::Refused { code, retry_after };
        }
        let encoding = encoding_in(&answer, self.behaviour.encoding).unwrap_or(self.behaviour.encoding);
        told.encoding = Some(encoding).filter(|encoding| *encoding != self.behaviour.encoding);
        self.returned(told);
        let follower = Follower::new(self.scene, op, encoding, from);
        let (over, is_at_end) = follower.follow(answer.body, length.cut).await;
        if !is_at_end && self.behaviour.transport == Transport::H1 {
            self.connection.give_up();
        }
        ReadOutcome::With(op, over)
    }

    fn watch_query(&self, from: ClientWatchStart, length: WatchLength) -> QueryText {
        let Behaviour { labels, fields, bookmarks, .. } = &self.behaviour;
        let mut query = QueryText::default().with("watch", "true");
        query = query.with_some("labelSelector", labels.as_deref()).with_some("fieldSelector", fields.as_deref());
        let wants_bookmarks = *bookmarks || matches!(from, ClientWatchStart::Initial(_));
        query = query.with_some("allowWatchBookmarks", wants_bookmarks.then_some("true"));
        query = query.with_some("timeoutSeconds", length.timeout_seconds.map(|seconds| seconds.to_string()).as_deref());
        match from {
            ClientWatchStart::Version(version) => query.with("resourceVersion", &version.to_string()),
            ClientWatchStart::Initial(version) => {
                let query = query.with("sendInitialEvents", "true").with("resourceVersionMatch", "NotOlderThan");
                query.with_some("resourceVersion", version.map(|version| version.to_string()).as_deref())
            }
            ClientWatchStart::Anything { zero } => query.with_some("resourceVersion", zero.then_some("0")),
        }
    }
}

fn encoding_in(answer: &PendingResponse, asked: RecordedEncoding) -> Option<RecordedEncoding> {
    let content_type = answer.headers.get(CONTENT_TYPE)?.to_str().ok()?;
    decode::encoding_of(content_type, asked)
}

fn is_from_memory(answer: &PendingResponse) -> bool {
    answer.headers.get("kube-fanout-served").is_some_and(|served| served == "cache")
}

fn said(error: &LinkError) -> RecordedStatus {
    RecordedStatus { message: error.to_string(), ..RecordedStatus::default() }
}

/// A reader of one stream that records its events.
struct Follower<'a> {
    scene: &'a RunContext,
    op: Op,
    encoding: RecordedEncoding,
    from: ClientWatchStart,
    place: Option<u64>,
    told: StreamContent,
}

/// The kind of events that a stream has sent so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamContent {
    Nothing,
    Events,
    Error,
    /// The stream has sent a 410: the history has expired.
    Expired,
    /// The stream has sent a frame that is not an event.
    Malformed,
}

impl<'a> Follower<'a> {
    fn new(scene: &'a RunContext, op: Op, encoding: RecordedEncoding, from: ClientWatchStart) -> Self {
        let place = match from {
            ClientWatchStart::Version(version) => Some(version),
            ClientWatchStart::Initial(_) | ClientWatchStart::Anything { .. } => None,
        };
        Self { scene, op, encoding, from, place, told: StreamContent::Nothing }
    }

    /// Follows the stream to its end. Also returns whether the server ended it, which permits reuse of its connection.
    async fn follow(mut self, mut body: ResponseStream, cut: Option<Duration>) -> (EndedWatch, bool) {
        let framing = match (body.is_of_messages(), decode::frames_have_lengths(self.encoding)) {
            (true, _) => Framing::Messages,
            (false, true) => Framing::Lengths,
            (false, false) => Framing::Lines,
        };
        let (began, mut frames) = (Instant::now(), Frames::new(framing));
        let mut until = began + cut.unwrap_or(NEVER);
        let how = loop {
            let chunk = tokio::select! {
                biased;
                () = self.scene.leave.cancelled() => break Ending::Left,
                () = sleep_until(until) => break Ending::Left,
                chunk = body.chunk() => chunk,
            };
            match chunk {
                Some(Ok(chunk)) => {
                    let at_ns = now_ns();
                    let fed = frames.feed(&chunk, |frame| self.frame(frame, at_ns));
                    if fed.is_err() || self.told == StreamContent::Malformed {
                        break Ending::Torn;
                    }
                }
                Some(Err(_)) => break Ending::Broken,
                None if frames.is_whole() => break Ending::Clean,
                None => break Ending::Torn,
            }
            if matches!(self.told, StreamContent::Error | StreamContent::Expired) {
                until = until.min(Instant::now() + AFTER_ERROR);
            }
        };
        self.scene.recorder.put(&Record::End(EndRecord { op: self.op, at_ns: now_ns(), how }));
        let is_short = how != Ending::Left && began.elapsed() < SHORT && self.told != StreamContent::Events;
        let over = EndedWatch { place: self.place, is_expired: self.told == StreamContent::Expired, is_short };
        (over, how == Ending::Clean)
    }

    fn frame(&mut self, frame: &[u8], at_ns: u64) {
        let Some(event) = self.scene.frames.event(self.encoding, frame) else {
            self.scene.notes.add("a watch frame was not an event");
            self.told = StreamContent::Malformed;
            return;
        };
        let DecodedEvent { kind, item, initial_end, status } = &*event;
        let (kind, initial_end) = (*kind, *initial_end);
        self.told = match (kind, self.told) {
            (EventKind::Error, _) if status.code == StatusCode::GONE.as_u16() => StreamContent::Expired,
            (EventKind::Error, _) => StreamContent::Error,
            (_, told @ (StreamContent::Error | StreamContent::Expired)) => told,
            _ => StreamContent::Events,
        };
        let version = item.version;
        self.scene.world.saw(version);
        // Initial events are ordered by key, so only their end gives a version at which to resume.
        let is_place = match self.from {
            ClientWatchStart::Version(_) => kind != EventKind::Error,
            ClientWatchStart::Initial(_) => initial_end || self.place.is_some() && kind != EventKind::Error,
            ClientWatchStart::Anything { .. } => false,
        };
        if is_place {
            self.place = Some(version);
        }
        self.scene.recorder.put(&Record::Event(EventRecord {
            op: self.op,
            at_ns,
            kind,
            key: item.key.clone(),
            version,
            digest: item.digest,
            bytes: item.bytes,
            initial_end,
            status: status.clone(),
        }));
    }
}
