//! One watch of a client. It reads in the background, records every event, and can be made to stop reading.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::now_ns;
use http::{HeaderMap, Method};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error as SocketError, http::HeaderValue};
use verify::CallRecord;

use super::client::{Answer, Client, Protocol};
use super::event::{Ended, Event};
use super::frames::Frames;
use super::{PATIENCE, evidence, in_time, within};

/// A watch that is not open yet; awaiting it opens it.
pub struct WatchPlan {
    client: Client,
    path: String,
    query: Vec<(String, String)>,
    accept: &'static str,
    limit: usize,
}

/// An open watch.
pub struct Watch {
    pub headers: HeaderMap,
    /// The moment before the request was sent.
    pub opened: Instant,
    /// The request, for the checkers.
    pub(super) call: CallRecord,
    pub(super) answered_ns: u64,
    log: Arc<Log>,
    /// How many events are read before the client stalls.
    limit: watch::Sender<usize>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Log {
    events: Mutex<Vec<(Event, Moment)>>,
    ended: Mutex<Option<(Ended, Moment)>>,
    changed: watch::Sender<()>,
}

/// An arrival time, for tests and for the checkers.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    at_ns: u64,
}

impl Moment {
    fn now() -> Self {
        Self { at: Instant::now(), at_ns: now_ns() }
    }
}

impl WatchPlan {
    pub(super) fn new(client: Client, path: &str) -> Self {
        let query = if path.contains("/watch/") { vec![] } else { vec![("watch".to_owned(), "true".to_owned())] };
        Self { client, path: path.to_owned(), query, accept: "application/json", limit: usize::MAX }
    }

    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn from(self, rv: u64) -> Self {
        self.query("resourceVersion", &rv.to_string())
    }

    pub fn labels(self, selector: &str) -> Self {
        self.query("labelSelector", selector)
    }

    pub fn fields(self, selector: &str) -> Self {
        self.query("fieldSelector", selector)
    }

    pub fn bookmarks(self) -> Self {
        self.query("allowWatchBookmarks", "true")
    }

    /// Requests the objects first, and then a bookmark that ends them.
    pub fn initial_events(self) -> Self {
        self.query("sendInitialEvents", "true").query("resourceVersionMatch", "NotOlderThan").bookmarks()
    }

    pub fn timeout_seconds(self, seconds: i64) -> Self {
        self.query("timeoutSeconds", &seconds.to_string())
    }

    pub fn over(self, protocol: Protocol) -> Self {
        Self { client: self.client.over(protocol), ..self }
    }

    pub fn accept(self, accept: &'static str) -> Self {
        Self { accept, ..self }
    }

    /// Stops reading after `events` events, until [`Watch::resume`].
    pub fn stall_after(self, events: usize) -> Self {
        Self { limit: events, client: self.client.narrow(), ..self }
    }

    /// Opens the watch, or returns the response that refused it.
    pub async fn open(self) -> Result<Watch, Answer> {
        let path = self.path.clone();
        self.try_open().await.unwrap_or_else(|error| panic!("no answer to {path}: {error}"))
    }

    /// The same if there may be no response, as on a connection that has received GOAWAY.
    pub async fn try_open(self) -> Result<Result<Watch, Answer>, String> {
        let query: Vec<_> = self.query.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        let joint = if self.path.contains('?') { '&' } else { '?' };
        let path =
            if query.is_empty() { self.path.clone() } else { format!("{}{joint}{}", self.path, query.join("&")) };
        let (opened, call) = (Instant::now(), evidence::call(&path, self.accept));
        let (headers, frames) = match self.client.protocol {
            Protocol::WebSocket => match upgrade(&self.client, &path, self.accept).await {
                Ok(upgraded) => upgraded,
                Err(answer) => return Ok(Err(answer)),
            },
            _ => {
                let request = self.client.request(Method::GET, &path).header("accept", self.accept);
                let (head, body) = request.open().await?.into_parts();
                if head.status != 200 {
                    let body = body.collect().await.expect("a whole refusal").to_bytes();
                    let (status, headers) = (head.status.as_u16(), head.headers);
                    let (asked_ns, came_ns) = (call.at_ns, now_ns());
                    return Ok(Err(Answer { path, asked_ns, came_ns, status, headers, body, trailers: None }));
                }
                (head.headers, Frames::of(body))
            }
        };
        let log = Arc::new(Log::default());
        let (limit, limited) = watch::channel(self.limit);
        let task = tokio::spawn(read(frames, log.clone(), limited));
        Ok(Ok(Watch { headers, opened, call, answered_ns: now_ns(), log, limit, task }))
    }
}

impl IntoFuture for WatchPlan {
    type Output = Watch;
    type IntoFuture = Pin<Box<dyn Future<Output = Watch> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let path = self.path.clone();
            self.open().await.unwrap_or_else(|answer| panic!("{path}: {} {}", answer.status, answer.text()))
        })
    }
}

async fn upgrade(client: &Client, path: &str, accept: &str) -> Result<(HeaderMap, Frames), Answer> {
    let mut request = format!("ws://{}{path}", client.host()).into_client_request().expect("a handshake");
    request.headers_mut().insert("origin", HeaderValue::from_str(&client.origin()).expect("an origin"));
    request.headers_mut().insert("accept", HeaderValue::from_str(accept).expect("a media type"));
    if let Some(token) = &client.token {
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().expect("a token"));
    }
    let io = client.connect().await.expect("a connection");
    let asked_ns = now_ns();
    match within(path, tokio_tungstenite::client_async(request, io)).await {
        Ok((socket, response)) => Ok((response.into_parts().0.headers, Frames::Messages(Box::new(socket)))),
        Err(SocketError::Http(response)) => {
            let (head, body) = response.into_parts();
            let (status, body) = (head.status.as_u16(), body.unwrap_or_default().into());
            let (path, came_ns) = (path.to_owned(), now_ns());
            Err(Answer { path, asked_ns, came_ns, status, headers: head.headers, body, trailers: None })
        }
        Err(error) => panic!("no handshake on {path}: {error}"),
    }
}

async fn read(mut frames: Frames, log: Arc<Log>, mut limit: watch::Receiver<usize>) {
    let mut last_word = None;
    let ended = loop {
        let so_far = log.events.lock().len();
        if limit.wait_for(|limit| so_far < *limit).await.is_err() {
            return;
        }
        match frames.next().await.and_then(|frame| Event::parse(&frame).map_err(Ended::Broken)) {
            Ok(event) if last_word.is_some() => break Ended::Broken(format!("{event} after an ERROR")),
            Ok(event) => {
                last_word = event.is_error().then(|| event.as_end());
                log.events.lock().push((event, Moment::now()));
                log.changed.send_replace(());
            }
            Err(Ended::Clean) => break last_word.unwrap_or(Ended::Clean),
            Err(ended) => break ended,
        }
    };
    *log.ended.lock() = Some((ended, Moment::now()));
    log.changed.send_replace(());
}

/// A value and its time in nanoseconds.
type At<T> = (T, u64);

impl Watch {
    /// All events so far, including bookmarks and an ERROR.
    pub fn events(&self) -> Vec<Event> {
        self.log.events.lock().iter().map(|(event, _)| event.clone()).collect()
    }

    /// All events with their arrival times, and how and when the watch ended.
    pub(super) fn timed_events(&self) -> (Vec<At<Event>>, Option<At<Ended>>) {
        // The end is read first, so that the events read after it are complete.
        let ended = self.log.ended.lock().clone().map(|(ended, moment)| (ended, moment.at_ns));
        let events = self.log.events.lock().iter().map(|(event, moment)| (event.clone(), moment.at_ns)).collect();
        (events, ended)
    }

    /// The changes so far, without bookmarks and ERROR.
    pub fn changes(&self) -> Vec<Event> {
        self.events().into_iter().filter(|event| !event.is_bookmark() && !event.is_error()).collect()
    }

    pub fn bookmarks(&self) -> Vec<Event> {
        self.events().into_iter().filter(Event::is_bookmark).collect()
    }

    /// When the last event arrived.
    pub fn last_came(&self) -> Option<Instant> {
        self.log.events.lock().last().map(|(_, moment)| moment.at)
    }

    /// How the watch ended, if it has.
    pub fn end(&self) -> Option<Ended> {
        self.log.ended.lock().as_ref().map(|(ended, _)| ended.clone())
    }

    /// How long the watch lived, if it has ended.
    pub fn lived(&self) -> Option<Duration> {
        self.log.ended.lock().as_ref().map(|(_, moment)| moment.at.duration_since(self.opened))
    }

    /// Returns when `is_expected` is true of the events so far. The test fails if the watch ends first.
    pub async fn until(&self, what: &str, is_expected: impl Fn(&[Event]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut changed = self.log.changed.subscribe();
        loop {
            let events = self.events();
            if is_expected(&events) {
                return;
            }
            let last = events.iter().rev().take(3).rev().collect::<Vec<_>>();
            if let Some(ended) = self.end() {
                panic!("ended ({ended:?}) before {what}; {} events, the last: {last:?}", events.len());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let news = timeout(left, changed.changed()).await;
            assert!(news.is_ok(), "not within {PATIENCE:?}: {what}; {} events, the last: {last:?}", events.len());
        }
    }

    /// Returns when more than `events` events have arrived or the watch has ended. There is no time limit.
    pub async fn more_than(&self, events: usize) {
        let mut changed = self.log.changed.subscribe();
        while self.is_open() && self.log.events.lock().len() <= events {
            let _ = changed.changed().await;
        }
    }

    /// Returns when the last event or bookmark has this version or a later one.
    pub async fn reached(&self, rv: u64) {
        let late = |events: &[Event]| events.last().is_some_and(|event| event.rv >= rv);
        self.until(&format!("version {rv}"), late).await;
    }

    /// Returns when the watch has reached this version or ended, or after [`PATIENCE`]. The checkers judge the result.
    pub async fn reached_or_ended(&self, rv: u64) {
        let is_over = async {
            let mut changed = self.log.changed.subscribe();
            while self.is_open() && self.log.events.lock().last().is_none_or(|(event, _)| event.rv < rv) {
                let _ = changed.changed().await;
            }
        };
        let _ = timeout(PATIENCE, is_over).await;
    }

    /// Stops reading, as a client that disconnects.
    pub async fn leave(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Returns when at least `changes` changes have arrived.
    pub async fn received(&self, changes: usize) {
        let enough = |events: &[Event]| {
            events.iter().filter(|event| !event.is_bookmark() && !event.is_error()).count() >= changes
        };
        self.until(&format!("{changes} changes"), enough).await;
    }

    /// Returns when the bookmark that ends the initial events has arrived.
    pub async fn listed(&self) {
        self.until("the initial events", |events| events.iter().any(Event::ends_initial_events)).await;
    }

    /// Waits for the end of the watch.
    pub async fn ended(&self) -> Ended {
        within("the end of a watch", self.until_ended()).await
    }

    /// Waits for the end of the watch, which is promised within a time.
    pub async fn ended_in_time(&self, promised: Duration) -> Ended {
        in_time(promised, "the end of a watch", self.until_ended()).await
    }

    async fn until_ended(&self) -> Ended {
        let mut changed = self.log.changed.subscribe();
        loop {
            if let Some(ended) = self.end() {
                return ended;
            }
            let _ = changed.changed().await;
        }
    }

    /// Reads on without a limit.
    pub fn resume(&self) {
        self.limit.send_replace(usize::MAX);
    }

    pub fn is_open(&self) -> bool {
        self.end().is_none()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn escaped(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    value.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
