//! Objects as clusters have them.

use std::process::Command;

use serde_json::{Value, json};

use super::{Plane, kubectl};

/// Returns upstream's exemplar pod, from the Go module that the test bed is built from.
pub fn exemplar_pod(bed: &Plane) -> Option<Value> {
    let module = include_str!("../../kube/go.mod");
    let version = module.lines().find_map(|line| line.trim().strip_prefix("k8s.io/apiserver "))?;
    let output = Command::new("go").args(["env", "GOMODCACHE"]).output().ok()?;
    let modules = String::from_utf8(output.stdout).ok()?;
    let file = format!("{}/k8s.io/apiserver@{version}/pkg/storage/cacher/testdata/exemplar_pod.yaml", modules.trim());
    let args = ["create", "--dry-run=client", "--validate=false", "--show-managed-fields", "-o", "json", "-f", &file];
    let output = kubectl(bed, &bed.target(), &args).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// Removes what only a server sets.
pub fn named(mut object: Value, name: &str) -> Value {
    let metadata = object["metadata"].as_object_mut().expect("metadata");
    for key in ["uid", "resourceVersion", "creationTimestamp", "generateName"] {
        metadata.remove(key);
    }
    metadata.insert("name".to_owned(), json!(name));
    object
}

/// A node of a common size, with this many images.
pub fn node(images: usize) -> Value {
    let labels = ["arch", "os", "hostname", "instance-type", "region", "zone", "pool", "image", "lifecycle", "family"];
    let labels = labels.map(|label| (format!("node.example.com/{label}"), json!(format!("value-of-{label}"))));
    let resources = json!({"cpu": "16", "memory": "65Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    let images: Vec<_> = (0..images).map(|number| {
        json!({"names": [format!("registry.example.com/team/image-{number}:v1.{number}.0")], "sizeBytes": 10_000_000 + number})
    })
    .collect();
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"labels": serde_json::Map::from_iter(labels), "annotations": {"node.example.com/ttl": "0"}},
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": "example://zone/instance"},
        "status": {"capacity": resources, "allocatable": resources, "images": images,
            "conditions": node_conditions("2026-11-30T08:00:00Z"),
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "host"}]}})
}

/// The conditions that a kubelet reports at a time.
pub fn node_conditions(heartbeat: &str) -> Value {
    let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"].map(|kind| {
        json!({"type": kind, "status": "False", "reason": format!("KubeletHasNo{kind}"), "message": format!("kubelet has no {kind}"),
            "lastHeartbeatTime": heartbeat, "lastTransitionTime": "2026-11-30T08:00:00Z"})
    });
    json!(conditions)
}
