use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::future::join;
use serde_json::json;

use super::http::{Answer, Ask, Http};
use super::plane::Plane;
use super::proxy::{Plan, Proxy};
use super::{Bed, ages, beside_others, normal, say};

/// Whether a watch of any test was without a present state in time: one may be.
static HELD_UP: AtomicBool = AtomicBool::new(false);

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

    /// Opens a watch that ends by itself on both, and fails unless the events are the same and both take about as long.
    /// Returns the proxy's answer, and the seconds that it took directly and through the proxy.
    pub async fn same_watch(&self, ask: Ask) -> (Answer, [f64; 2]) {
        let timed = async |http: &Http| {
            let started = Instant::now();
            (http.ask(ask.clone()).await, started.elapsed().as_secs_f64())
        };
        let both = async || join(timed(&self.direct), timed(&self.through)).await;
        let of = |answer: &Answer| (answer.status, answer.content_type().to_owned(), normal::events(answer));
        // Who waited in vain for the present state, as both do for seconds, was held up: that shows nothing, if it is
        // rare.
        let is_late = |(answer, seconds): &(Answer, f64)| {
            let events = normal::events(answer);
            *seconds >= 3.0 && events.len() == 1 && events[0].contains("Too large resource version")
        };
        let mut told = both().await;
        if of(&told.0.0) != of(&told.1.0) && (is_late(&told.0) || is_late(&told.1)) {
            say(&format!("{}: no present state in time", ask.path));
            assert!(!HELD_UP.swap(true, Ordering::Relaxed), "{}: a second watch without a present state", ask.path);
            told = both().await;
        }
        let ((direct, took), (through, takes)) = told;
        assert_eq!(of(&through), of(&direct), "{} {:?}", ask.path, ask.headers);
        assert!((took - takes).abs() < 5.0, "{}: {took:.1} s directly, {takes:.1} s through the proxy", ask.path);
        (through, [took, takes])
    }
}
