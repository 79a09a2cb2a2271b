use std::ops::Deref;
use std::time::Instant;

use futures_util::future::join;
use serde_json::json;

use super::http::{Answer, Ask, Http, TOO_LARGE};
use super::plane::Plane;
use super::proxy::{Plan, Proxy};
use super::{Bed, ages, beside_others, normal, say};

/// A control plane and a proxy in front of it, which are asked the same questions.
pub struct Pair<P: Deref<Target = Plane> = &'static Plane> {
    pub bed: Bed<P>,
    pub proxy: Proxy,
    /// A client of the apiserver.
    pub direct: Http,
    /// A client of the proxy.
    pub through: Http,
    /// One of two namespaces. The name of the other, `next`, begins with its name.
    pub namespace: String,
    pub next: String,
}

/// Asks both at once, and fails unless status, Content-Type, `Retry-After` and body are the same. Ages in Tables may
/// differ by the time that the answers took. Returns the proxy's answer.
pub async fn assert_same(
    what: &str,
    direct: impl Future<Output = Answer>,
    through: impl Future<Output = Answer>,
) -> Answer {
    let began = Instant::now();
    let (direct, through) = join(direct, through).await;
    let took = began.elapsed();
    let of =
        |answer: &Answer| (answer.status, answer.content_type().to_owned(), answer.header("retry-after").to_owned());
    assert_eq!(of(&through), of(&direct), "{what}");
    let (told, expected) = (normal::body(&through, false), normal::body(&direct, false));
    assert_eq!(told.text, expected.text, "{what}");
    assert!(ages::all_agree(&told.ages, &expected.ages, took), "{what}: {:?} {:?}", told.ages, expected.ages);
    through
}

impl Pair {
    /// A pair on the shared control plane, while other tests use it too. `None` without a test bed.
    pub async fn new() -> Option<Self> {
        Some(Self::on(beside_others().await?).await)
    }
}

impl<P: Deref<Target = Plane>> Pair<P> {
    pub async fn on(bed: Bed<P>) -> Self {
        Self::with(Plan::tls(), bed).await
    }

    pub async fn with(plan: Plan, bed: Bed<P>) -> Self {
        let proxy = plan.start(&bed).await;
        let (direct, through) = (bed.direct(), proxy.client());
        let namespace = bed.namespace("rows").await;
        let next = format!("{namespace}-a");
        direct.create("/api/v1/namespaces", json!({"metadata": {"name": next}})).await;
        Self { bed, proxy, direct, through, namespace, next }
    }

    /// Creates configmaps `cm-a` and `cm-b` in both namespaces, labelled `app=x`. Returns the version of the last one.
    pub async fn maps(&self) -> u64 {
        let mut version = 0;
        for namespace in [&self.namespace, &self.next] {
            for name in ["cm-a", "cm-b"] {
                version = self.create_map(namespace, name).await;
            }
        }
        version
    }

    pub async fn create_map(&self, namespace: &str, name: &str) -> u64 {
        let map = json!({"metadata": {"name": name, "labels": {"app": "x"}}, "data": {"k": "a<b>&\u{2028}"}});
        let created = self.direct.create(&format!("/api/v1/namespaces/{namespace}/configmaps"), map).await;
        let version = super::version_of(&created);
        self.settle(version).await;
        version
    }

    /// Waits until the caches of both servers, for JSON and for protobuf, have reached a version.
    pub async fn settle(&self, version: u64) {
        let path = self.path(&format!("?labelSelector=none&resourceVersion={version}"));
        for http in [&self.direct, &self.through] {
            for form in ["application/json", "application/vnd.kubernetes.protobuf"] {
                http.until_ok("both have it", Ask::get(&path).accept(form)).await;
            }
        }
    }

    /// The path `/api/v1/namespaces/NAMESPACE/configmaps`, with `rest` behind it.
    pub fn path(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/configmaps{rest}", self.namespace)
    }

    /// Asks both, and fails unless the answers are the same. Returns the proxy's.
    pub async fn same(&self, ask: Ask) -> Answer {
        let what = format!("{} {} {:?}", ask.method, ask.path, ask.headers);
        assert_same(&what, self.direct.ask(ask.clone()), self.through.ask(ask)).await
    }

    /// Opens a watch that ends by itself on both, and fails unless the events are the same. If the time of one was up
    /// before it had sent everything, both are opened again with twice the time, up to [`LASTS_MAX`]. Returns the
    /// proxy's answer, and the seconds that it took directly and through the proxy.
    pub async fn same_watch(&self, ask: Ask) -> (Answer, [f64; 2]) {
        self.same_watch_of(ask, 0).await
    }

    /// Does the same with a watch that both give more time if it has sent fewer than `events`.
    pub async fn same_watch_of(&self, mut ask: Ask, events: usize) -> (Answer, [f64; 2]) {
        let timed = async |http: &Http, ask: Ask| {
            let started = Instant::now();
            (http.ask(ask).await, started.elapsed().as_secs_f64())
        };
        let head = |answer: &Answer| (answer.status, answer.content_type().to_owned());
        loop {
            let both = join(timed(&self.direct, ask.clone()), timed(&self.through, ask.clone())).await;
            let ((direct, took), (through, takes)) = both;
            let [expected, told] = [&direct, &through].map(normal::events);
            let is_late =
                is_late(&ask.path, (&expected, took), (&told, takes)) || told == expected && told.len() < events;
            if let Some(path) = longer(&ask.path).filter(|_| is_late && head(&direct) == head(&through)) {
                say(&format!("{}: its time was up, {} and {} events", ask.path, expected.len(), told.len()));
                ask.path = path;
                continue;
            }
            assert_eq!((head(&through), &told), (head(&direct), &expected), "{} {:?}", ask.path, ask.headers);
            let is_error = told.iter().any(|event| event.contains("ERROR"));
            let lasts = lasts(&ask.path).filter(|_| through.status == 200 && !is_error).unwrap_or_default();
            assert!(takes >= f64::from(lasts) - 0.5, "{}: it ended after {takes:.1} s", ask.path);
            return (through, [took, takes]);
        }
    }
}

/// The longest that a watch is given to send everything, in seconds. It ends a hang, and leaves [`PATIENCE`] for its
/// end.
pub const LASTS_MAX: u32 = 48;

/// The seconds after which a watch ends by itself, if its path says so.
fn lasts(path: &str) -> Option<u32> {
    let (_, rest) = path.split_once("timeoutSeconds=")?;
    rest.split('&').next()?.parse().ok().filter(|seconds| *seconds > 0)
}

/// The same path with twice the time.
pub fn longer(path: &str) -> Option<String> {
    let lasts = lasts(path).filter(|lasts| 2 * lasts <= LASTS_MAX)?;
    Some(path.replacen(&format!("timeoutSeconds={lasts}"), &format!("timeoutSeconds={}", 2 * lasts), 1))
}

/// Whether one of two watches has sent too little only because its time was up. Each is given with its events and the
/// seconds that it took.
pub fn is_late(path: &str, one: (&[String], f64), other: (&[String], f64)) -> bool {
    let Some(lasts) = lasts(path).map(f64::from) else { return false };
    let no_state = |events: &[String]| events.len() == 1 && events[0].contains(TOO_LARGE);
    // A server waits 3 s for the present state, or as long as the watch lasts.
    let is = |(events, took): (&[String], f64), other: &[String]| {
        took >= lasts && is_cut_short(events, other) || took >= lasts.min(3.0) && no_state(events) && !no_state(other)
    };
    is(one, other.0) || is(other, one.0)
}

/// Whether these are only the first of the others.
pub fn is_cut_short<T: PartialEq>(events: &[T], others: &[T]) -> bool {
    events.len() < others.len() && others.starts_with(events)
}
