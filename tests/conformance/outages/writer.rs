//! Writes to busy resources.

use http::Method;
use serde_json::json;

use crate::bed::{Http, Plane, RequestSpec, version_of};
use crate::event_scenes::event;

/// Changes configmaps, and writes and deletes Events.
pub struct Writer {
    namespace: String,
    rng: fastrand::Rng,
    /// The existing configmaps, each with its creation version.
    maps: Vec<(String, u64)>,
    events: Vec<String>,
    made: u32,
}

impl Writer {
    pub fn new(namespace: &str, rng: fastrand::Rng) -> Self {
        Self { namespace: namespace.to_owned(), rng, maps: Vec::new(), events: Vec::new(), made: 0 }
    }

    /// Changes this many configmaps and Events. All followers have received the configmap changes up to `followed`, and
    /// only such configmaps are deleted. An object that is created and deleted within a gap is lost, as
    /// docs/DIFFERENCES.md says ("A mended gap"). Events have no gaps, because the apiserver serves their history from
    /// etcd.
    pub async fn change(&mut self, plane: &Plane, maps: usize, events: usize, followed: u64) {
        let direct = plane.direct();
        for _ in 0..maps {
            self.change_a_map(&direct, followed).await;
        }
        for _ in 0..events {
            self.change_an_event(&direct).await;
        }
    }

    async fn change_a_map(&mut self, direct: &Http, followed: u64) {
        let path = self.path("configmaps");
        let at = self.rng.usize(..=self.maps.len());
        match self.maps.get(at) {
            Some((name, made)) if *made <= followed && self.rng.bool() => {
                direct.delete(&format!("{path}/{name}")).await;
                self.maps.swap_remove(at);
            }
            Some((name, _)) => {
                let patch = json!({"data": {"n": self.rng.u32(..).to_string()}});
                direct.patch(&format!("{path}/{name}"), patch).await;
            }
            None => {
                let (name, data) = (self.name("map"), json!({"n": "0"}));
                let map = direct.create(&path, json!({"metadata": {"name": name}, "data": data})).await;
                self.maps.push((name, version_of(&map)));
            }
        }
    }

    /// Creates an Event, or deletes the oldest one, which may already have expired.
    async fn change_an_event(&mut self, direct: &Http) {
        let path = self.path("events");
        if !self.events.is_empty() && self.rng.bool() {
            let name = self.events.remove(0);
            let request = RequestSpec::get(&format!("{path}/{name}")).method(Method::DELETE);
            let status = direct.fetch(request).await.status;
            assert!(status == 200 || status == 404, "{status}");
        } else {
            let name = self.name("event");
            direct.create(&path, event(&self.namespace, &name)).await;
            self.events.push(name);
        }
    }

    fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    fn name(&mut self, what: &str) -> String {
        self.made += 1;
        format!("{what}-{}", self.made)
    }
}
