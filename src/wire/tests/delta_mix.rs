//! The bytes between a zone and a leaf for ten minutes of 500 nodes. To print them:
//! `cargo test --lib tenth_of_the_bytes -- --nocapture`.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout, delta};
use kubeapi::protobuf::put_varint;
use kubeapi::{EventType, ResourceVersion};

/// One node of this many is computed.
const SAMPLE: u64 = 20;
const NODES: u64 = 500 / SAMPLE;
/// Pods that are created and deleted in that time.
const PODS: u64 = 300 / SAMPLE;
const SECONDS: u64 = 600;
const LEASE_SECONDS: usize = 10;
const STATUS_SECONDS: usize = 300;
/// A DATA frame and a TLS record, if each event is sent on its own (RFC 9113 §4.1, RFC 8446 §5.2).
const FRAMING_BYTES: usize = 9 + 22;

/// The bytes of one kind of events.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    events: usize,
    plain: usize,
    deltas: usize,
}

impl Total {
    fn add(&mut self, plain: &[u8], delta: &[u8]) {
        *self = Self { events: self.events + 1, plain: self.plain + plain.len(), deltas: self.deltas + delta.len() };
    }

    #[expect(clippy::print_stderr, reason = "the figures are the purpose of the test")]
    fn print(self, what: &str) {
        let Self { events, plain, deltas } = self;
        let per_event = |bytes: usize| bytes as f64 / events as f64;
        let framed = events * FRAMING_BYTES;
        eprintln!(
            "{what}: {} events, {:.0} bytes each plain, {:.0} as differences, ratio {:.3}, with framing {:.3}",
            events as u64 * SAMPLE,
            per_event(plain),
            per_event(deltas),
            deltas as f64 / plain as f64,
            (deltas + framed) as f64 / (plain + framed) as f64
        );
    }
}

/// One object in its versions.
struct Life<'a> {
    envelope: FrameEnvelope,
    encoding: FeedEncoding,
    last: Option<Bytes>,
    total: &'a mut Total,
}

impl<'a> Life<'a> {
    fn of(encoding: FeedEncoding, api_version: &str, kind: &str, total: &'a mut Total) -> Self {
        Self {
            envelope: FrameEnvelope::new(encoding, api_version, kind, JsonLayout::BuiltIn),
            encoding,
            last: None,
            total,
        }
    }

    /// Adds an event that is sent. Without a version before, it is ADDED.
    fn event(&mut self, event_type: EventType, object: &Value) {
        let body = match self.encoding {
            FeedEncoding::Protobuf => message(object).into(),
            _ => Bytes::from(object.to_string().split_off(1)),
        };
        let frame = self.envelope.frame(event_type, &body);
        let base = self.last.replace(body).map(|body| self.envelope.frame(event_type, &body));
        let made = delta(event_type, base.as_deref().map(|base| (ResourceVersion(90_000_000), base)), &frame);
        self.total.add(&frame, &made);
    }

    /// Sets the version that the leaf has listed.
    fn listed(mut self, object: &Value) -> Self {
        let before = *self.total;
        self.event(EventType::Added, object);
        *self.total = before;
        self
    }
}

/// A message of the shape that the object has in protobuf: its fields in order, without their names.
fn message(object: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let fields = match object {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    for (number, field) in (1_u64..).zip(fields) {
        let bytes = match field {
            Value::String(text) => text.clone().into_bytes(),
            Value::Number(_) | Value::Bool(_) | Value::Null => {
                put_varint(&mut out, number << 3);
                put_varint(&mut out, field.as_u64().unwrap_or(1));
                continue;
            }
            nested => message(nested),
        };
        put_varint(&mut out, number << 3 | 2);
        put_varint(&mut out, bytes.len() as u64);
        out.extend(bytes);
    }
    out
}

/// Returns letters that look random, the same for the same arguments.
fn hex(len: usize, seed: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| char::from(b"0123456789abcdef"[random.usize(..16)])).collect()
}

fn time(seconds: u64) -> String {
    format!("2026-11-21T{:02}:{:02}:{:02}Z", 10 + seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

fn metadata(name: &str, seed: u64, rv: u64, at: u64, fields: &str) -> Value {
    json!({
        "name": name, "uid": hex(32, seed), "resourceVersion": rv.to_string(), "creationTimestamp": time(0),
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node", "uid": hex(32, seed + 1)}],
        "managedFields": [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": time(at),
            "fieldsType": "FieldsV1", "fieldsV1": fields}],
    })
}

fn lease(node: u64, rv: u64, at: u64) -> Value {
    const FIELDS: &str = concat!(
        r#"{"f:metadata":{"f:ownerReferences":{".":{},"k:{\"uid\":\"9f5b8a0e\"}":{}}},"#,
        r#""f:spec":{"f:holderIdentity":{},"f:leaseDurationSeconds":{},"f:renewTime":{}}}"#
    );
    let name = format!("node-{node:04}");
    json!({"metadata": metadata(&name, node, rv, at, FIELDS), "spec": {
        "holderIdentity": name, "leaseDurationSeconds": 40,
        "renewTime": format!("{}.{:06}Z", time(at).trim_end_matches('Z'), node * 7_919 * (at + 1) % 1_000_000),
    }})
}

fn node(node: u64, rv: u64, at: u64) -> Value {
    let condition = |n: u64| {
        json!({"type": format!("Condition{n}"), "status": "False", "lastHeartbeatTime": time(at),
            "lastTransitionTime": time(n), "reason": "KubeletHasSufficient",
            "message": "kubelet has sufficient resources"})
    };
    let image = |n: u64| {
        let name = format!("registry.example.com/team-{}/service-{n}", n % 7);
        let digest = hex(64, 1_000 * node + n);
        json!({"names": [format!("{name}@sha256:{digest}"), format!("{name}:v1.{n}")], "sizeBytes": 80_000_000 + n})
    };
    json!({"metadata": metadata(&format!("node-{node:04}"), node, rv, at, &hex(1_500, 7)), "status": {
        "conditions": (0..5).map(condition).collect::<Vec<_>>(), "images": (0..50).map(image).collect::<Vec<_>>(),
        "capacity": {"cpu": "16", "memory": "65805328Ki", "pods": "110"},
    }})
}

fn pod(pod: u64, rv: u64, at: u64, step: usize) -> Value {
    let frame: Value = serde_json::from_str(include_str!("../../../benches/common/pod.json")).expect("a pod");
    let mut pod_object = frame["object"].clone();
    pod_object["metadata"]["name"] = format!("checkout-{}", hex(5, pod)).into();
    pod_object["metadata"]["uid"] = hex(32, pod).into();
    pod_object["metadata"]["resourceVersion"] = rv.to_string().into();
    match step {
        0 => pod_object["status"] = json!({"phase": "Pending", "qosClass": "Burstable"}),
        1 => {
            let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": time(at)});
            pod_object["status"] = json!({"phase": "Pending", "conditions": [scheduled]});
        }
        2 => pod_object["status"]["startTime"] = time(at).into(),
        _ => pod_object["metadata"]["deletionTimestamp"] = time(at).into(),
    }
    pod_object
}

#[test]
fn differences_take_a_tenth_of_the_bytes_of_events() {
    for encoding in [FeedEncoding::Protobuf, FeedEncoding::Json] {
        let [mut leases, mut nodes, mut pods] = [Total::default(); 3];
        let mut rv = 91_000_000;
        let mut next = || {
            rv += 37;
            rv
        };
        for n in 0..NODES {
            let mut life =
                Life::of(encoding, "coordination.k8s.io/v1", "Lease", &mut leases).listed(&lease(n, next(), 0));
            for at in (0..=SECONDS).step_by(LEASE_SECONDS).skip(1) {
                life.event(EventType::Modified, &lease(n, next(), at));
            }
            let mut life = Life::of(encoding, "v1", "Node", &mut nodes).listed(&node(n, next(), 0));
            for at in (0..=SECONDS).step_by(STATUS_SECONDS).skip(1) {
                life.event(EventType::Modified, &node(n, next(), at));
            }
        }
        for n in 0..PODS {
            let mut life = Life::of(encoding, "v1", "Pod", &mut pods);
            let types =
                [EventType::Added, EventType::Modified, EventType::Modified, EventType::Modified, EventType::Deleted];
            for (step, event_type) in types.into_iter().enumerate() {
                life.event(event_type, &pod(n, next(), step as u64, step));
            }
        }
        let mut all = Total::default();
        for (what, of) in [("leases", leases), ("nodes", nodes), ("pods", pods)] {
            of.print(&format!("{encoding} {what}"));
            all = Total { events: all.events + of.events, plain: all.plain + of.plain, deltas: all.deltas + of.deltas };
        }
        all.print(&format!("{encoding} in all"));
        assert!(all.deltas * 10 <= all.plain, "{all:?}");
        let per_lease = leases.deltas / leases.events;
        assert!(per_lease <= 50, "{per_lease} bytes for a Lease");
    }
}
