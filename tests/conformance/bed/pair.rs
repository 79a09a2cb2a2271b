use std::ops::Deref;
use std::time::Instant;

use futures_util::future::join;
use serde_json::json;

use super::http::{Answer, Http, RequestSpec, TOO_LARGE};
use super::plane::Plane;
use super::proxy::{Plan, Proxy};
use super::{Bed, ages, log_line, normal, shared};

/// A control plane and a proxy in front of it, which receive the same requests.
pub struct Pair<P: Deref<Target = Plane> = &'static Plane> {
    pub proxy: Proxy,
    /// Dropped after the proxy, so that the next test on it does not meet this one's proxy.
    pub bed: Bed<P>,
    /// A client of the apiserver.
    pub direct: Http,
    /// A client of the proxy.
    pub through: Http,
    /// One of two namespaces. Its name is a prefix of the other's, `next`.
    pub namespace: String,
    pub next: String,
}

/// Sends a request to both at once. Panics unless status, Content-Type, `Retry-After` and body are equal. Ages in
/// Tables may differ by the time that the answers took. Returns the proxy's answer.
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
    let (actual, expected) = (normal::body(&through, false), normal::body(&direct, false));
    assert_eq!(actual.text, expected.text, "{what}");
    assert!(ages::all_agree(&actual.ages, &expected.ages, took), "{what}: {:?} {:?}", actual.ages, expected.ages);
    through
}

impl Pair {
    /// A pair on the shared control plane, in parallel with other tests. `None` without a test bed.
    pub async fn new() -> Option<Self> {
        Some(Self::on(shared().await?).await)
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
        Self { proxy, bed, direct, through, namespace, next }
    }

    /// Creates configmaps `cm-a` and `cm-b` in both namespaces, with the label `app=x`. Returns the version of the last
    /// one.
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

    /// Waits until the JSON and protobuf caches of both servers have reached a version.
    pub async fn settle(&self, version: u64) {
        let path = self.path(&format!("?labelSelector=none&resourceVersion={version}"));
        for http in [&self.direct, &self.through] {
            for form in ["application/json", "application/vnd.kubernetes.protobuf"] {
                http.until_ok("both have it", RequestSpec::get(&path).accept(form)).await;
            }
        }
    }

    /// The path `/api/v1/namespaces/NAMESPACE/configmaps`, followed by `rest`.
    pub fn path(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/configmaps{rest}", self.namespace)
    }

    /// Sends a request to both. Panics unless the answers are equal. Returns the proxy's.
    pub async fn same(&self, request: RequestSpec) -> Answer {
        let what = format!("{} {} {:?}", request.method, request.path, request.headers);
        assert_same(&what, self.direct.fetch(request.clone()), self.through.fetch(request)).await
    }

    /// Opens a watch with a timeout on both. Panics unless the events are equal. If the time of one was up before it
    /// had sent everything, opens both again with twice the time, up to [`LASTS_MAX`]. Returns the proxy's answer, and
    /// the seconds that the watch took directly and through the proxy.
    pub async fn same_watch(&self, request: RequestSpec) -> (Answer, [f64; 2]) {
        self.same_watch_of(request, 0).await
    }

    /// Like [`Self::same_watch`], but also gives both more time if the watch has sent fewer than `events` events.
    pub async fn same_watch_of(&self, mut request: RequestSpec, events: usize) -> (Answer, [f64; 2]) {
        let timed = async |http: &Http, request: RequestSpec| {
            let started = Instant::now();
            (http.fetch(request).await, started.elapsed().as_secs_f64())
        };
        let head = |answer: &Answer| (answer.status, answer.content_type().to_owned());
        loop {
            let both = join(timed(&self.direct, request.clone()), timed(&self.through, request.clone())).await;
            let ((direct, took), (through, takes)) = both;
            let [expected, actual] = [&direct, &through].map(normal::events);
            let is_late = is_late(&request.path, (&expected, took), (&actual, takes))
                || actual == expected && actual.len() < events;
            if let Some(path) = longer(&request.path).filter(|_| is_late && head(&direct) == head(&through)) {
                log_line(&format!("{}: its time was up, {} and {} events", request.path, expected.len(), actual.len()));
                request.path = path;
                continue;
            }
            assert_eq!((head(&through), &actual), (head(&direct), &expected), "{} {:?}", request.path, request.headers);
            let is_error = actual.iter().any(|event| event.contains("ERROR"));
            let lasts = lasts(&request.path).filter(|_| through.status == 200 && !is_error).unwrap_or_default();
            assert!(takes >= f64::from(lasts) - 0.5, "{}: it ended after {takes:.1} s", request.path);
            return (through, [took, takes]);
        }
    }
}

/// The longest timeout of a watch that must send everything, in seconds. It ends a hang, and leaves enough of
/// [`PATIENCE`] for the end of the watch.
pub const LASTS_MAX: u32 = 48;

/// The timeout of a watch in seconds, if its path has one.
fn lasts(path: &str) -> Option<u32> {
    let (_, rest) = path.split_once("timeoutSeconds=")?;
    rest.split('&').next()?.parse().ok().filter(|seconds| *seconds > 0)
}

/// The same path with twice the timeout; `None` above [`LASTS_MAX`].
pub fn longer(path: &str) -> Option<String> {
    let lasts = lasts(path).filter(|lasts| 2 * lasts <= LASTS_MAX)?;
    Some(path.replacen(&format!("timeoutSeconds={lasts}"), &format!("timeoutSeconds={}", 2 * lasts), 1))
}

/// Whether one of two watches has sent too little only because its time was up. Each is given as its events and the
/// seconds that it took.
pub fn is_late(path: &str, one: (&[String], f64), other: (&[String], f64)) -> bool {
    let Some(lasts) = lasts(path).map(f64::from) else { return false };
    let no_state = |events: &[String]| events.len() == 1 && events[0].contains(TOO_LARGE);
    // A server waits for the current state for 3 s, or until the watch's timeout if that is shorter.
    let is = |(events, took): (&[String], f64), other: &[String]| {
        took >= lasts && is_cut_short(events, other) || took >= lasts.min(3.0) && no_state(events) && !no_state(other)
    };
    is(one, other.0) || is(other, one.0)
}

/// Whether `events` is a proper prefix of `others`.
pub fn is_cut_short<T: PartialEq>(events: &[T], others: &[T]) -> bool {
    events.len() < others.len() && others.starts_with(events)
}
