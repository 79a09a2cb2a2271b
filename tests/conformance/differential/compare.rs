//! Sends one request to both servers, and compares the parts of their answers that must be equal.

use std::fmt::Write as _;
use std::ops::Deref;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use http::StatusCode;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Message, Role};

use super::probe::{Over, Probe};
use super::verdict::{Circumstances, Verdict};
use crate::bed::{
    Answer, Frame, Http, Identity, NoAnswer, PATIENCE, Pair, Plane, Protocol, Target, claims, gunzip, normal, protobuf,
};
use crate::reduced::{without_fields, without_members};

/// Headers that are not compared.
const NOT_COMPARED: [(&str, &str); 8] = [
    ("date", "the moment of the answer"),
    ("content-length", "present or absent: it depends on a buffer's size and on the protocol"),
    ("transfer-encoding", "the same"),
    ("connection", "hop-by-hop: an unauthenticated connection is not reused"),
    ("kube-fanout-served", "our own"),
    ("kube-fanout-reason", "our own"),
    ("kube-fanout-stale-seconds", "our own"),
    ("kube-fanout-refused-by", "our own"),
];

/// Headers that the proxy's own answers, from the cache or refusals, need not have (docs/DIFFERENCES.md).
const NOT_OUR_OWN: [(&str, &str); 3] = [
    ("x-kubernetes-pf-flowschema-uid", "priority and fairness never saw the request"),
    ("x-kubernetes-pf-prioritylevel-uid", "the same"),
    ("warning", "that an API is deprecated"),
];

/// A server, with clients for all its protocols.
pub struct Server {
    pub target: Target,
    h1: Http,
    h2: Http,
}

/// The compared parts of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<String>,
    /// The ages in a Table.
    pub ages: Vec<String>,
}

/// Both answers.
pub struct Compared {
    pub expected: Seen,
    pub actual: Seen,
    pub verdict: Verdict,
    when: Circumstances,
    /// Whether a server closed the connection without processing the request, which was then sent again.
    pub resent: bool,
    pub cached: bool,
    pub watch: bool,
    /// The proxy's raw response; for a WebSocket, its decoded messages.
    pub bytes: Vec<u8>,
}

/// The two servers that should be indistinguishable.
pub struct Servers {
    pub direct: Server,
    pub through: Server,
}

/// An answer as received.
struct Received {
    answer: Answer,
    /// The time from the request to the end of the answer.
    took: Duration,
    resent: bool,
    /// The messages and the close, if the connection became a WebSocket.
    messages: Option<Vec<String>>,
}

impl Server {
    fn new(target: Target) -> Self {
        let client = |protocol| Http::new(target.clone(), protocol);
        Self { h1: client(Protocol::H1), h2: client(Protocol::H2), target }
    }

    async fn fetch(&self, probe: &Probe) -> Result<Received, String> {
        let began = Instant::now();
        let answer = async {
            let received = self.ask_once(probe).await;
            let resent = received.as_ref().is_err_and(|no| no.resent);
            // The server has not processed the request, so sending it again is not a repetition.
            let received = if resent { self.ask_once(probe).await } else { received };
            received.map(|received| Received { resent, took: began.elapsed(), ..received }).map_err(|no| no.why)
        };
        timeout(PATIENCE, Box::pin(answer)).await.unwrap_or_else(|_| Err("it does not end".to_owned()))
    }

    async fn ask_once(&self, probe: &Probe) -> Result<Received, NoAnswer> {
        match probe.over {
            Over::H1 => self.h1.try_fetch(probe.request_spec()).await.map(Received::whole),
            Over::H2 => self.h2.try_fetch(probe.request_spec()).await.map(Received::whole),
            Over::WebSocket => self.upgrade(probe).await.map_err(|why| NoAnswer { why, resent: false }),
        }
    }

    async fn upgrade(&self, probe: &Probe) -> Result<Received, String> {
        let mut response = self.h1.try_send(probe.request_spec()).await.ok_or("no answer")?;
        let (status, headers) = (response.status(), response.headers().clone());
        if status != StatusCode::SWITCHING_PROTOCOLS {
            use http_body_util::BodyExt;
            let body = response.into_body().collect().await.map_err(|error| format!("{status}, then {error:?}"))?;
            return Ok(Received::whole(Answer { status, headers, body: body.to_bytes() }));
        }
        let stream = hyper::upgrade::on(&mut response).await.map_err(|error| format!("{error:?}"))?;
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Client, None).await;
        let messages =
            socket.map(|message| text_of(&message.map_err(|error| error.to_string()))).collect::<Vec<_>>().await;
        let messages = Some(messages.into_iter().flatten().collect());
        Ok(Received { messages, ..Received::of(Answer { status, headers, body: Bytes::new() }) })
    }
}

impl Received {
    fn of(answer: Answer) -> Self {
        Self { answer, took: Duration::ZERO, resent: false, messages: None }
    }

    fn whole(mut answer: Answer) -> Self {
        if answer.header("content-encoding") == "gzip" {
            answer.body = gunzip(&answer.body);
        }
        Self::of(answer)
    }

    /// Removes what a cached answer to a client without managedFields does not have.
    fn remove_managed_fields(&mut self) {
        let body = &self.answer.body;
        match (str::from_utf8(body), protobuf::document(body)) {
            (Ok(text), _) if self.answer.content_type() == "application/json" => {
                self.answer.body = without_members(text).into();
            }
            (_, Some((kind, _))) if kind != "Status" => {
                self.answer.body = without_fields(body, kind.ends_with("List")).into();
            }
            _ => {}
        }
        self.messages.iter_mut().flatten().for_each(|message| *message = without_members(message));
    }

    /// Whether this is a refusal of a request that never reached upstream. Upstream classifies every request.
    fn is_refusal(&self) -> bool {
        let classified = |name: &http::HeaderName| name.as_str().starts_with("x-kubernetes-pf-");
        !self.answer.status.is_success() && !self.answer.headers.keys().any(classified)
    }

    /// Whether this is a Table that the proxy requested, which callers share.
    fn is_shared_table(&self) -> bool {
        let headers = &self.answer.headers;
        let is_classified = headers.keys().any(|name| name.as_str().starts_with("x-kubernetes-pf-"));
        !is_classified && self.answer.header("kube-fanout-reason") == "table"
    }

    fn bytes(&self) -> Vec<u8> {
        let messages = self.messages.iter().flatten().map(String::as_bytes);
        messages.fold(self.answer.body.to_vec(), |all, message| [&all, message].concat())
    }

    fn is_watch(&self) -> bool {
        self.messages.is_some() || self.answer.status == 200 && normal::is_watch(&self.answer)
    }
}

/// Formats a WebSocket message like a frame of an HTTP watch.
fn text_of(message: &Result<Message, String>) -> Option<String> {
    let frame = match message {
        Ok(Message::Text(text)) => Frame::Json(text.as_bytes().to_vec().into()),
        Ok(Message::Binary(binary)) => {
            let length = u32::try_from(binary.len()).expect("short").to_be_bytes();
            Frame::Protobuf([&length, binary.as_ref()].concat().into())
        }
        other => return Some(format!("{other:?}")),
    };
    normal::event(&frame)
}

impl Servers {
    pub fn of<P: Deref<Target = Plane>>(pair: &Pair<P>) -> Self {
        Self { direct: Server::new(pair.bed.target()), through: Server::new(pair.proxy.target()) }
    }

    /// Both servers, for a caller who is not an administrator.
    pub fn by<P: Deref<Target = Plane>>(pair: &Pair<P>, identity: &Identity) -> Self {
        let of = |target: Target| Server::new(target.by(identity));
        Self { direct: of(pair.bed.target()), through: of(pair.proxy.target()) }
    }

    /// Sends the request to both. `settled` is the version of the world, which does not change. If the time of one
    /// watch was up before it had sent everything, repeats both with twice the time, and compares these.
    pub async fn compare(&self, probe: &Probe, settled: u64) -> Compared {
        let (mut compared, mut longer) = (self.compare_once(probe, settled).await, probe.clone());
        if compared.verdict != Verdict::Late {
            return compared;
        }
        while compared.verdict == Verdict::Late && longer.last_longer() {
            let again = self.compare_once(&longer, settled).await;
            compared = Compared { bytes: [compared.bytes, again.bytes].concat(), ..again };
        }
        compared.verdict = match compared.verdict {
            Verdict::Late | Verdict::Different => Verdict::Different,
            Verdict::Same | Verdict::AnotherMoment | Verdict::Documented => Verdict::Late,
        };
        compared
    }

    async fn compare_once(&self, probe: &Probe, settled: u64) -> Compared {
        let began = Instant::now();
        let (mut direct, through) = futures_util::join!(self.direct.fetch(probe), self.through.fetch(probe));
        let [direct_took, through_took] =
            [&direct, &through].map(|received| received.as_ref().map_or(Duration::ZERO, |received| received.took));
        let when = Circumstances { took: began.elapsed(), direct_took, through_took, settled };
        let cached = through.as_ref().is_ok_and(|received| received.answer.is_cached());
        // A forwarded response has the field. The headers of a WebSocket do not tell whether it is forwarded.
        let has_none = |through: &Received| {
            through.messages.as_ref().is_some_and(|messages| !messages.concat().contains("\"managedFields\":["))
        };
        if let Ok(direct) = &mut direct
            && probe.is_reduced()
            && (cached || through.as_ref().is_ok_and(has_none))
        {
            direct.remove_managed_fields();
        }
        let own = cached || through.as_ref().is_ok_and(|seen| seen.is_refusal() || seen.is_shared_table());
        let watch = direct.as_ref().is_ok_and(Received::is_watch);
        let resent = [&direct, &through].iter().any(|received| received.as_ref().is_ok_and(|received| received.resent));
        let same =
            matches!((&direct, &through), (Ok(direct), Ok(through)) if direct.answer.body == through.answer.body);
        let [expected, mut actual] = [&direct, &through].map(|received| Seen::of(probe, received.as_ref(), own, same));
        let claims = through.as_ref().ok().filter(|_| !probe.writes());
        actual.body.extend(claims.and_then(|received| claims::impossible(&received.answer, settled)));
        let bytes = through.as_ref().map_or_else(|_| Vec::new(), Received::bytes);
        let verdict = Verdict::of(probe, &expected, &actual, when);
        Compared { expected, actual, verdict, when, resent, cached, watch, bytes }
    }
}

impl Compared {
    pub fn differs(&self) -> bool {
        self.verdict == Verdict::Different
    }

    /// The differences, with both values.
    pub fn explain(&self) -> String {
        let Circumstances { took, through_took, settled, .. } = self.when;
        let mut text = format!("\n  in {took:.2?}, the proxy in {through_took:.2?}; the world is at {settled}");
        for (who, seen, other) in [("apiserver", &self.expected, &self.actual), ("proxy", &self.actual, &self.expected)]
        {
            let headers: Vec<_> = seen.headers.iter().filter(|header| !other.headers.contains(header)).collect();
            let _ = write!(text, "\n  {who:<9} {} {headers:?}", seen.status);
            if seen.ages != other.ages {
                let _ = write!(text, " ages {:?}", seen.ages);
            }
            let differs = |(at, line): &(usize, &String)| other.body.get(*at) != Some(line);
            for (at, line) in seen.body.iter().enumerate().filter(differs).take(3) {
                let from = other.body.get(at).map_or(0, |other| common(line, other));
                let _ = write!(text, "\n    [{at}] …{}", line.chars().skip(from).take(700).collect::<String>());
            }
        }
        text
    }
}

/// The position from which to show two lines that differ.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count().saturating_sub(60)
}

impl Seen {
    fn of(probe: &Probe, received: Result<&Received, &String>, own: bool, same: bool) -> Self {
        let received = match received {
            Ok(received) => received,
            Err(why) => return Self { status: 0, headers: Vec::new(), body: vec![why.clone()], ages: Vec::new() },
        };
        let answer = &received.answer;
        let plain = |body| (body, Vec::new());
        let (body, ages) = match &received.messages {
            Some(messages) => plain(messages.clone()),
            None if same => plain(vec![format!("the same {} bytes", answer.body.len())]),
            None if received.is_watch() => plain(normal::events(answer)),
            None => {
                let written = probe.writes();
                let body = if written { normal::written(answer) } else { normal::body(answer, probe.is_exact()) };
                (vec![body.text], body.ages)
            }
        };
        Self { status: answer.status.as_u16(), headers: Self::headers(probe, answer, own), body, ages }
    }

    fn headers(probe: &Probe, answer: &Answer, own: bool) -> Vec<(String, String)> {
        let has_id = probe.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("audit-id"));
        let named = |name: &str, list: &[(&str, &str)]| list.iter().any(|(listed, _)| *listed == name);
        let compared = answer.headers.iter().filter(|(name, _)| {
            let name = name.as_str();
            !(named(name, &NOT_COMPARED) || own && named(name, &NOT_OUR_OWN))
        });
        let mut headers: Vec<_> = compared
            .map(|(name, value)| {
                let value = if name == "audit-id" && !has_id { "some" } else { value.to_str().unwrap_or("not text") };
                (name.as_str().to_owned(), value.to_owned())
            })
            .collect();
        headers.sort();
        headers
    }
}
