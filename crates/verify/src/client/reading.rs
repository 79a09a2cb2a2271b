use std::time::Duration;

use http::StatusCode;
use http::header::CONTENT_TYPE;
use tokio::time::{Instant, sleep_until};

use super::behaviour::{ClientBehaviour, WatchDuration};
use super::connection::ClientConnection;
use super::query::QueryString;
use crate::decode::{self, DecodedEvent};
use crate::record::{
    CallRecord, ClientTransport, EventRecord, HistoryRecord, OperationId, ReadVerb, RecordedEncoding,
    RecordedEventType, RecordedStatus, RequestServerRole, ResponseRecord, WatchEndRecord, WatchEnding,
};
use crate::run_context::VerifyRunContext;
use base::now_ns;
use probe::{PendingResponse, ProbeRequestError, ResponseStream, StreamFrameSplitter, StreamFraming};

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
    pub(super) scene: &'a VerifyRunContext,
    pub(super) client: u32,
    pub(super) behaviour: ClientBehaviour,
    /// The connection for lists, gets, and watches without a `WebSocket`.
    connection: ClientConnection,
    watching: Option<ClientConnection>,
}

/// The result of a client's read.
#[derive(Debug)]
pub(super) enum ReadOutcome<T> {
    With(OperationId, T),
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
    pub(super) fn new(scene: &'a VerifyRunContext, client: u32, behaviour: ClientBehaviour) -> Self {
        let over = |transport| {
            let connection = ClientConnection::new(scene.target(behaviour.server), transport, &scene.tasks);
            connection.sharing(scene.links.of(behaviour.server, client))
        };
        let short = if behaviour.transport == ClientTransport::H2 { ClientTransport::H2 } else { ClientTransport::H1 };
        let watching = (behaviour.transport == ClientTransport::Ws).then(|| over(ClientTransport::Ws));
        Self { scene, client, connection: over(short), watching, behaviour }
    }

    /// Switches the client to another server.
    pub(super) fn go_to(&mut self, server: RequestServerRole) {
        if server != self.behaviour.server {
            *self = Self::new(self.scene, self.client, ClientBehaviour { server, ..self.behaviour.clone() });
        }
    }

    /// Switches to a random judged server that satisfies `may`; returns `false` if there is none.
    pub(super) fn go_to_some(&mut self, rng: &mut fastrand::Rng, may: impl Fn(RequestServerRole) -> bool) -> bool {
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

    fn call(&self, verb: ReadVerb, path: &str, query: &QueryString, resumes: Option<OperationId>) -> OperationId {
        let op = self.scene.recorder.op();
        let short =
            if self.behaviour.transport == ClientTransport::H2 { ClientTransport::H2 } else { ClientTransport::H1 };
        let transport = if verb == ReadVerb::Watch { self.behaviour.transport } else { short };
        self.scene.recorder.put(&HistoryRecord::Call(CallRecord {
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

    fn returned(&self, answer: ResponseRecord) {
        self.scene.recorder.put(&HistoryRecord::Return(ResponseRecord { at_ns: now_ns(), ..answer }));
    }

    /// Sends a request and reads its whole response.
    async fn whole(&mut self, path: &str, is_list: bool) -> Result<FullResponse, ProbeRequestError> {
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
    pub(super) async fn list(
        &mut self,
        query: &QueryString,
        page_of: Option<OperationId>,
    ) -> ReadOutcome<decode::DecodedList> {
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
    pub(super) async fn get(&mut self, path: &str, query: &QueryString) -> ReadOutcome<crate::record::RecordedItem> {
        let op = self.call(ReadVerb::Get, path, query, None);
        let answer = self.whole(&query.behind(path), false).await;
        self.read(op, answer, decode::item, |item, answer| {
            answer.version = Some(item.version);
            answer.items = vec![item.clone()];
        })
    }

    fn read<T>(
        &self,
        op: OperationId,
        answer: Result<FullResponse, ProbeRequestError>,
        decode: impl FnOnce(RecordedEncoding, &[u8]) -> Option<T>,
        fill: impl FnOnce(&T, &mut ResponseRecord),
    ) -> ReadOutcome<T> {
        let FullResponse { code, encoding, from_memory, body } = match answer {
            Ok(answer) => answer,
            Err(error) => return self.broke(op, &error),
        };
        let requested = self.behaviour.encoding;
        let mut response = ResponseRecord { op, code: code.as_u16(), from_memory, ..ResponseRecord::default() };
        if !code.is_success() {
            let (status, retry_after) = decode::status(&body);
            response.status = status;
            self.returned(response);
            return ReadOutcome::Refused { code: code.as_u16(), retry_after };
        }
        response.encoding = encoding.filter(|encoding| *encoding != requested);
        let Some(read) = decode(encoding.unwrap_or(requested), &body) else {
            self.scene.notes.add(format!("a response in {requested:?} could not be parsed"));
            response.code = 0;
            self.returned(response);
            return ReadOutcome::Broken;
        };
        fill(&read, &mut response);
        self.scene.world.saw(response.version.unwrap_or_default());
        self.returned(response);
        ReadOutcome::With(op, read)
    }

    fn broke<T>(&self, op: OperationId, error: &ProbeRequestError) -> ReadOutcome<T> {
        self.returned(ResponseRecord { op, status: status_of(error), ..ResponseRecord::default() });
        ReadOutcome::Broken
    }

    /// Runs one watch to its end.
    pub(super) async fn watch(
        &mut self,
        from: ClientWatchStart,
        resumes: Option<OperationId>,
        length: WatchDuration,
    ) -> ReadOutcome<EndedWatch> {
        let path = self.behaviour.path(&self.scene.world);
        let query = self.watch_query(from, length);
        let op = self.call(ReadVerb::Watch, &path, &query, resumes);
        let accept = decode::accept(self.behaviour.encoding, false, true);
        let path_and_query = query.behind(&path);
        let connection = self.watching.as_mut().unwrap_or(&mut self.connection);
        let mut answer = tokio::select! {
            biased;
            answer = connection.get(&path_and_query, accept) => match answer {
                Ok(answer) => answer,
                Err(error) => return self.broke(op, &error),
            },
            () = self.scene.leave.cancelled() => {
                connection.give_up();
                return ReadOutcome::Broken;
            }
        };
        let (code, from_memory) = (answer.status.as_u16(), is_from_memory(&answer));
        let mut response = ResponseRecord { op, code, from_memory, ..ResponseRecord::default() };
        if !answer.status.is_success() {
            let (body, _) = answer.body.read(REFUSAL_BYTES_MAX).await.unwrap_or_default();
            let (status, retry_after) = decode::status(&body);
            response.status = status;
            self.returned(response);
            return ReadOutcome::Refused { code, retry_after };
        }
        let encoding = encoding_in(&answer, self.behaviour.encoding).unwrap_or(self.behaviour.encoding);
        response.encoding = Some(encoding).filter(|encoding| *encoding != self.behaviour.encoding);
        self.returned(response);
        let follower = WatchStreamRecorder::new(self.scene, op, encoding, from);
        let (over, is_at_end) = follower.follow(answer.body, length.cut).await;
        if !is_at_end && self.behaviour.transport == ClientTransport::H1 {
            self.connection.give_up();
        }
        ReadOutcome::With(op, over)
    }

    fn watch_query(&self, from: ClientWatchStart, length: WatchDuration) -> QueryString {
        let ClientBehaviour { labels, fields, bookmarks, .. } = &self.behaviour;
        let mut query = QueryString::default().with("watch", "true");
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

fn encoding_in(answer: &PendingResponse, requested: RecordedEncoding) -> Option<RecordedEncoding> {
    let content_type = answer.headers.get(CONTENT_TYPE)?.to_str().ok()?;
    decode::encoding_of(content_type, requested)
}

fn is_from_memory(answer: &PendingResponse) -> bool {
    answer.headers.get("kube-fanout-served").is_some_and(|served| served == "cache")
}

fn status_of(error: &ProbeRequestError) -> RecordedStatus {
    RecordedStatus { message: error.to_string(), ..RecordedStatus::default() }
}

/// A reader of one stream that records its events.
struct WatchStreamRecorder<'a> {
    scene: &'a VerifyRunContext,
    op: OperationId,
    encoding: RecordedEncoding,
    from: ClientWatchStart,
    place: Option<u64>,
    content: WatchStreamContent,
}

/// The kind of events that a stream has sent so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchStreamContent {
    Nothing,
    Events,
    Error,
    /// The stream has sent a 410: the history has expired.
    Expired,
    /// The stream has sent a frame that is not an event.
    Malformed,
}

impl<'a> WatchStreamRecorder<'a> {
    fn new(scene: &'a VerifyRunContext, op: OperationId, encoding: RecordedEncoding, from: ClientWatchStart) -> Self {
        let place = match from {
            ClientWatchStart::Version(version) => Some(version),
            ClientWatchStart::Initial(_) | ClientWatchStart::Anything { .. } => None,
        };
        Self { scene, op, encoding, from, place, content: WatchStreamContent::Nothing }
    }

    /// Follows the stream to its end. Also returns whether the server ended it, which permits reuse of its connection.
    async fn follow(mut self, mut body: ResponseStream, cut: Option<Duration>) -> (EndedWatch, bool) {
        let framing = match (body.is_of_messages(), decode::is_protobuf(self.encoding)) {
            (true, _) => StreamFraming::Messages,
            (false, true) => StreamFraming::Lengths,
            (false, false) => StreamFraming::Lines,
        };
        let (began, mut frames) = (Instant::now(), StreamFrameSplitter::new(framing));
        let mut until = began + cut.unwrap_or(NEVER);
        let how = loop {
            let chunk = tokio::select! {
                biased;
                () = self.scene.leave.cancelled() => break WatchEnding::Left,
                () = sleep_until(until) => break WatchEnding::Left,
                chunk = body.chunk() => chunk,
            };
            match chunk {
                Some(Ok(chunk)) => {
                    let at_ns = now_ns();
                    let fed = frames.feed(&chunk, |frame| self.frame(frame, at_ns));
                    if fed.is_err() || self.content == WatchStreamContent::Malformed {
                        break WatchEnding::Torn;
                    }
                }
                Some(Err(_)) => break WatchEnding::Broken,
                None if frames.is_whole() => break WatchEnding::Clean,
                None => break WatchEnding::Torn,
            }
            if matches!(self.content, WatchStreamContent::Error | WatchStreamContent::Expired) {
                until = until.min(Instant::now() + AFTER_ERROR);
            }
        };
        self.scene.recorder.put(&HistoryRecord::End(WatchEndRecord { op: self.op, at_ns: now_ns(), how }));
        let is_short =
            how != WatchEnding::Left && began.elapsed() < SHORT && self.content != WatchStreamContent::Events;
        let over = EndedWatch { place: self.place, is_expired: self.content == WatchStreamContent::Expired, is_short };
        (over, how == WatchEnding::Clean)
    }

    fn frame(&mut self, frame: &[u8], at_ns: u64) {
        let Some(event) = self.scene.frames.event(self.encoding, frame) else {
            self.scene.notes.add("a watch frame was not an event");
            self.content = WatchStreamContent::Malformed;
            return;
        };
        let DecodedEvent { kind, item, initial_end, status } = &*event;
        let (kind, initial_end) = (*kind, *initial_end);
        self.content = match (kind, self.content) {
            (RecordedEventType::Error, _) if status.code == StatusCode::GONE.as_u16() => WatchStreamContent::Expired,
            (RecordedEventType::Error, _) => WatchStreamContent::Error,
            (_, content @ (WatchStreamContent::Error | WatchStreamContent::Expired)) => content,
            _ => WatchStreamContent::Events,
        };
        let version = item.version;
        self.scene.world.saw(version);
        // Initial events are ordered by key, so only their end gives a version at which to resume.
        let is_place = match self.from {
            ClientWatchStart::Version(_) => kind != RecordedEventType::Error,
            ClientWatchStart::Initial(_) => initial_end || self.place.is_some() && kind != RecordedEventType::Error,
            ClientWatchStart::Anything { .. } => false,
        };
        if is_place {
            self.place = Some(version);
        }
        self.scene.recorder.put(&HistoryRecord::Event(EventRecord {
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
