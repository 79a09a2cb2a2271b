//! Writers that change objects such that every selector's matches change. Each writes its own objects, and records the
//! time of each request, of its response, and the resulting version.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::{Map, Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::decode::status;
use super::object_set::{FENCE, ObjectSet};
use super::record::{ClientTransport, HistoryRecord, WriteRecord, WriteVerb};
use super::run_context::{RngStream, VerifyRunContext};
use base::now_ns;
use probe::{TargetServer, UnaryClient, UnaryResponse, WatchProtocol};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const PAYLOAD: &str = "verify.kube-fanout.io/payload";
/// The size of a large object's content; a few objects are large. Annotations of one object may have 256 KiB in total.
const LARGE_BYTES: (usize, usize) = (32 << 10, 160 << 10);
const SMALL_BYTES: (usize, usize) = (10, 400);
/// The number of attempts of a closing update. A write that still fails is skipped.
const CLOSING_TRIES: u32 = 20;

/// The number and rate of writers.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriterPlan {
    pub(super) writers: u32,
    /// Writes per second of all writers together.
    pub(super) rate: f64,
}

/// A writer's knowledge of one of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownObjectVersion {
    Unknown,
    Absent,
    At(u64),
}

struct RecordingWriter {
    scene: Arc<VerifyRunContext>,
    client: UnaryClient,
    rng: fastrand::Rng,
    /// The numbers of the writer's objects, with its knowledge of each.
    objects: Vec<(usize, KnownObjectVersion)>,
    /// The average time between two writes of a writer.
    pause: Duration,
    writes: u64,
}

/// Runs one writer until `calm`, and then changes each of its objects once more. So every watch has a last event, which
/// exposes earlier losses.
pub(super) async fn run(
    scene: Arc<VerifyRunContext>,
    number: u32,
    plan: WriterPlan,
    target: TargetServer,
    calm: CancellationToken,
) {
    let mine = (0..scene.world.objects).filter(|n| n % plan.writers as usize == number as usize);
    let objects = mine.map(|n| (n, KnownObjectVersion::Unknown)).collect();
    let mut writer = RecordingWriter {
        rng: scene.rng(RngStream::Writer(number)),
        client: UnaryClient::new(&target, protocol(&scene), &scene.tasks),
        objects,
        pause: Duration::from_secs_f64(f64::from(plan.writers) / plan.rate),
        writes: 0,
        scene,
    };
    while !calm.is_cancelled() && !writer.objects.is_empty() {
        writer.write_one().await;
        // Some writes follow each other without a pause.
        let wait = if writer.rng.u8(..8) == 0 { Duration::ZERO } else { writer.pause.mul_f64(2.2 * writer.rng.f64()) };
        tokio::select! {
            biased;
            () = calm.cancelled() => {}
            () = sleep(wait) => {}
        }
    }
    writer.close().await;
}

/// Returns the protocol for writes: HTTP/2 if the run uses it, otherwise HTTP/1.1.
pub(super) fn protocol(scene: &VerifyRunContext) -> WatchProtocol {
    if scene.transports.contains(&ClientTransport::H2) { WatchProtocol::H2 } else { WatchProtocol::H1 }
}

impl RecordingWriter {
    async fn write_one(&mut self) {
        let at = self.rng.usize(..self.objects.len());
        // All values are drawn whether or not they are used.
        let (dice, large) = (self.rng.u8(..20), self.rng.u8(..50) == 0);
        let (labels, payload) = (ObjectSet::labels(&mut self.rng), self.payload(large));
        let (n, standing) = self.objects[at];
        let now = match (standing, dice) {
            (KnownObjectVersion::Absent, _) | (KnownObjectVersion::Unknown, 0..=9) => {
                self.create(n, &labels, &payload).await
            }
            (KnownObjectVersion::At(version), 0..=3) => self.delete(n, Some(version)).await,
            (KnownObjectVersion::At(version), 4..=5) => match self.delete(n, Some(version)).await {
                KnownObjectVersion::Absent => self.create(n, &labels, &payload).await,
                other => other,
            },
            (KnownObjectVersion::At(version), 6..=9) => self.replace(n, version, &labels, &payload).await,
            (KnownObjectVersion::At(_) | KnownObjectVersion::Unknown, _) => self.patch(n, &labels, &payload).await,
        };
        self.objects[at].1 = now;
    }

    fn payload(&mut self, large: bool) -> String {
        let (least, most) = if large { LARGE_BYTES } else { SMALL_BYTES };
        self.writes += 1;
        let filling = "x".repeat(self.rng.usize(least..most));
        format!("{}-{:x}-{filling}", self.writes, self.rng.u64(..))
    }

    /// Changes every existing object once more.
    async fn close(&mut self) {
        for at in 0..self.objects.len() {
            for attempt in 1..=CLOSING_TRIES {
                let (n, standing) = self.objects[at];
                let (labels, payload) = (ObjectSet::labels(&mut self.rng), self.payload(false));
                let now = match standing {
                    KnownObjectVersion::Absent => self.create(n, &labels, &payload).await,
                    KnownObjectVersion::At(_) | KnownObjectVersion::Unknown => self.patch(n, &labels, &payload).await,
                };
                self.objects[at].1 = now;
                if matches!(now, KnownObjectVersion::At(_)) {
                    break;
                }
                if now == KnownObjectVersion::Unknown {
                    sleep(Duration::from_millis(100 * u64::from(attempt))).await;
                }
            }
        }
    }

    fn object(&self, n: usize, labels: &[(&str, &str)], payload: &str, version: Option<u64>) -> Value {
        let world = &self.scene.world;
        let (namespace, name) = world.object(n);
        let labels: Map<_, _> = labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let mut object = json!({
            "apiVersion": world.resource.api_version(),
            "kind": world.resource.kind,
            "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": {PAYLOAD: payload}},
        });
        self.fill(&mut object, payload);
        if let Some(version) = version {
            object["metadata"]["resourceVersion"] = json!(version.to_string());
        }
        object
    }

    /// Adds content to a written object besides the metadata, with characters that encoders escape differently.
    fn fill(&self, object: &mut Value, payload: &str) {
        if let Some(place) = self.scene.world.content() {
            let (number, _) = payload.split_once('-').unwrap_or((payload, ""));
            object[place] =
                json!({"written": number, "odd": format!("<a href=\"&\">\u{2028}\u{e9}\u{1f980}\n{number}")});
        }
    }

    async fn create(&self, n: usize, labels: &[(&str, &str)], payload: &str) -> KnownObjectVersion {
        // An existing object was created by verify itself, in an earlier run or by a request whose response was lost.
        standing(self.send(WriteVerb::Create, n, self.object(n, labels, payload, None), None).await)
    }

    async fn replace(&self, n: usize, version: u64, labels: &[(&str, &str)], payload: &str) -> KnownObjectVersion {
        standing(self.send(WriteVerb::Update, n, self.object(n, labels, payload, Some(version)), None).await)
    }

    async fn patch(&self, n: usize, labels: &[(&str, &str)], payload: &str) -> KnownObjectVersion {
        let mut labels_to_set: Map<_, _> =
            ObjectSet::LABEL_KEYS.map(|key| (key.to_owned(), Value::Null)).into_iter().collect();
        labels_to_set.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))));
        let mut patch = json!({"metadata": {"labels": labels_to_set, "annotations": {PAYLOAD: payload}}});
        self.fill(&mut patch, payload);
        standing(self.send(WriteVerb::Patch, n, patch, None).await)
    }

    async fn delete(&self, n: usize, version: Option<u64>) -> KnownObjectVersion {
        match self.send(WriteVerb::Delete, n, delete_options(), version).await.0 {
            200..=299 | 404 => KnownObjectVersion::Absent,
            _ => KnownObjectVersion::Unknown,
        }
    }

    /// Sends one write and records it; returns the code and the resulting version.
    async fn send(&self, verb: WriteVerb, n: usize, body: Value, deleted: Option<u64>) -> (u16, Option<u64>) {
        let world = &self.scene.world;
        let (namespace, name) = world.object(n);
        let path = world.path(namespace, &name);
        let (method, path, media) = match verb {
            WriteVerb::Create => (Method::POST, world.resource.collection(Some(namespace)), JSON),
            WriteVerb::Update => (Method::PUT, path, JSON),
            WriteVerb::Patch => (Method::PATCH, path, MERGE),
            WriteVerb::Delete => (Method::DELETE, path, JSON),
        };
        let call_ns = now_ns();
        let reply = self.client.send(method, &path, media, Bytes::from(body.to_string())).await;
        let return_ns = now_ns();
        let (code, version) = match &reply {
            Ok(reply) => (reply.status.as_u16(), version(reply)),
            Err(error) => {
                self.scene.notes.add(format!("a write had no response: {error}"));
                (0, None)
            }
        };
        let done = (200..300).contains(&code);
        let version = if verb == WriteVerb::Delete { deleted } else { version }.filter(|_| done);
        if let Some(version) = version.filter(|_| verb != WriteVerb::Delete) {
            world.wrote(version);
        }
        let (resource, key) = (world.resource.name(), format!("{namespace}/{name}"));
        self.scene.recorder.put(&HistoryRecord::Written(WriteRecord {
            call_ns,
            return_ns,
            verb,
            resource,
            key,
            version,
            code,
        }));
        if !done && !matches!(code, 0 | 404 | 409 | 429 | 500..) {
            let reason = reply.map(|reply| status(&reply.body).0.message).unwrap_or_default();
            self.scene.notes.add(format!("a write was refused: {code} {reason}"));
        }
        if !done && !matches!(code, 404 | 409) {
            sleep(self.pause.max(Duration::from_millis(100))).await;
        }
        (code, version)
    }
}

/// Returns options that delete at once, without a grace period.
pub(super) fn delete_options() -> Value {
    json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
}

/// Returns the writer's knowledge of an object after a create or an update.
fn standing(answer: (u16, Option<u64>)) -> KnownObjectVersion {
    match answer {
        (200..=299, Some(version)) => KnownObjectVersion::At(version),
        (404, _) => KnownObjectVersion::Absent,
        _ => KnownObjectVersion::Unknown,
    }
}

/// Returns the version of an object in a response.
fn version(reply: &UnaryResponse) -> Option<u64> {
    let object: Value = serde_json::from_slice(&reply.body).ok()?;
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// Writes once more, after everything that any participant has seen. Returns the version, or `None` if the write
/// failed.
pub(super) async fn fence(scene: &VerifyRunContext, target: &TargetServer) -> Option<u64> {
    let client = UnaryClient::new(target, protocol(scene), &scene.tasks);
    let world = &scene.world;
    let namespace = &world.namespaces[0];
    let (collection, path) = (world.resource.collection(Some(namespace)), world.path(namespace, FENCE));
    let object = json!({
        "apiVersion": world.resource.api_version(), "kind": world.resource.kind, "metadata": {"name": FENCE},
    });
    for _ in 0..CLOSING_TRIES {
        let annotation = format!("{:x}", fastrand::u64(..));
        let patch = json!({"metadata": {"annotations": {PAYLOAD: annotation}}}).to_string();
        let patched = client.send(Method::PATCH, &path, MERGE, Bytes::from(patch)).await;
        let version = match patched {
            Ok(reply) if reply.status == http::StatusCode::NOT_FOUND => {
                let made = client.send(Method::POST, &collection, JSON, Bytes::from(object.to_string())).await;
                made.ok().as_ref().and_then(version)
            }
            Ok(reply) => version(&reply),
            Err(_) => None,
        };
        if version.is_some() {
            return version;
        }
        sleep(Duration::from_millis(250)).await;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_response_determines_known_object_version() {
        for (code, version, known) in [
            (201, Some(7), KnownObjectVersion::At(7)),
            (200, None, KnownObjectVersion::Unknown),
            (404, None, KnownObjectVersion::Absent),
            (409, None, KnownObjectVersion::Unknown),
            (0, None, KnownObjectVersion::Unknown),
            (503, Some(7), KnownObjectVersion::Unknown),
        ] {
            assert_eq!(standing((code, version)), known, "{code}");
        }
    }
}
