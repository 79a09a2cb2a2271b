//! Events whose newest change is a deletion or an expiry, where no later change shows that it was the last one.
//! Informers of client-go start after it.

use serde_json::{Value, json};

use crate::bed::{Http, Plane, Proxy, Target, eventually};

/// Lifetimes of Events: short if expiry is the newest change, otherwise longer than a test.
pub const EXPIRES_SOON: &str = "--event-ttl=5s";
pub const LASTS: &str = "--event-ttl=10h";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastChange {
    Deletion,
    Expiry,
}

/// The Events of one namespace, for which the proxy has a feed.
pub struct EventScene<'a> {
    plane: &'a Plane,
    proxy: &'a Proxy,
    namespace: String,
    last: LastChange,
    made: u32,
}

impl<'a> EventScene<'a> {
    /// Prepares a scene in which `kept` Events remain.
    pub async fn set(plane: &'a Plane, proxy: &'a Proxy, last: LastChange, kept: u32) -> Self {
        let namespace = plane.namespace("informers-of-events").await;
        let mut scene = Self { plane, proxy, namespace, last, made: 0 };
        for _ in 0..kept {
            scene.make().await;
        }
        scene
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/events", self.namespace)
    }

    async fn make(&mut self) -> String {
        let name = format!("event-{}", self.made);
        self.made += 1;
        self.plane.direct().create(&self.path(), event(&self.namespace, &name)).await;
        name
    }

    /// Creates an Event that the proxy serves, and lets it be deleted or expire. Afterwards only another resource
    /// changes, so that the cluster's version is higher. With `unread`, no client reads Events from the proxy after
    /// that; otherwise reads of any version show the change.
    pub async fn change(&mut self, unread: bool) {
        let (direct, through) = (self.plane.direct(), self.proxy.client());
        let (path, name) = (self.path(), self.make().await);
        let any = format!("{path}?resourceVersion=0");
        eventually("the proxy has the Event", async || has(&through, &any, &name).await.then_some(())).await;
        let gone = format!("{path}/{name}");
        if self.last == LastChange::Deletion {
            direct.delete(&gone).await;
        }
        eventually("it is gone", async || (direct.get(&gone).await.status == 404).then_some(())).await;
        let map = json!({"metadata": {"generateName": "later-"}});
        direct.create(&format!("/api/v1/namespaces/{}/configmaps", self.namespace), map).await;
        if !unread {
            eventually("reads show that it is gone", async || (!has(&through, &any, &name).await).then_some(())).await;
        }
    }

    /// Runs informers until they have synced with the apiserver's current state. Returns the driver's report, which
    /// includes `sync_seconds` and `objects`.
    pub async fn sync(&self, target: &Target, watchlist: &str, count: u32) -> Value {
        let run = self.plane.drive("informers").at(target).args(["--resource", "events", "--for", "1ms"]);
        let run = run.args(["--namespace", &self.namespace, "--watchlist", watchlist]);
        let run = run.args(["--count", &count.to_string(), "--reference-server", self.plane.url()]);
        let summary = run.start().finish().await.summary();
        assert_eq!((&summary["reference"], &summary["distinct_stores"]), (&"equal".into(), &1.into()), "{summary}");
        let (lists, streamed) = if watchlist == "on" { (0, count) } else { (count, 0) };
        assert_eq!((&summary["lists"], &summary["watchlists"]), (&lists.into(), &streamed.into()), "{summary}");
        summary
    }
}

/// Whether a list from the cache contains an Event.
async fn has(through: &Http, path: &str, name: &str) -> bool {
    let answer = through.get(path).await;
    let list = answer.value();
    let mut items = list["items"].as_array().into_iter().flatten();
    answer.is_cached() && items.any(|item| item["metadata"]["name"] == name)
}

/// An Event for a pod that need not exist.
pub fn event(namespace: &str, name: &str) -> Value {
    let involved = json!({"kind": "Pod", "namespace": namespace, "name": "p"});
    json!({
        "metadata": {"name": name, "namespace": namespace}, "involvedObject": involved, "reason": "Test",
        "message": "one", "type": "Normal", "count": 1,
    })
}
