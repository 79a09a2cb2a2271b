//! Tests of POST, PUT, PATCH and DELETE.

use http::Method;
use serde_json::{Value, json};

use super::super::{RunningDemoApiserver, upstream};
use super::Client;

const MAPS: &str = "/api/v1/namespaces/t1/configmaps";
const JSON: &str = "application/json";

async fn send(up: &RunningDemoApiserver, method: Method, path: &str, media: &str, body: Value) -> (u16, Value) {
    let answer = Client::of(up).call(method, path, media, &body.to_string()).await;
    (answer.status.as_u16(), answer.json())
}

#[tokio::test]
async fn create_fills_metadata_and_repeated_create_returns_409() {
    let up = upstream().run().await;
    let body = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": {"k": "v"}});
    let (code, created) = send(&up, Method::POST, MAPS, JSON, body.clone()).await;
    assert_eq!((code, &created["metadata"]["namespace"]), (201, &json!("t1")));
    assert_eq!(created["metadata"]["resourceVersion"], up.revision().to_string());
    assert_eq!(created["metadata"]["uid"].as_str().unwrap().len(), 36);
    let (code, refused) = send(&up, Method::POST, MAPS, JSON, body).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("AlreadyExists")));
    let (_, named) = send(&up, Method::POST, MAPS, JSON, json!({"metadata": {"generateName": "g-"}})).await;
    assert_eq!(named["metadata"]["name"].as_str().unwrap().len(), 7);
    let (code, _) = send(&up, Method::POST, MAPS, "text/plain", json!({})).await;
    assert_eq!(code, 415);
}

#[tokio::test]
async fn update_with_stale_version_returns_409() {
    let up = upstream().run().await;
    let first = up.put("configmaps", json!({"metadata": {"name": "a", "namespace": "t1"}, "data": {"k": "1"}}));
    let path = format!("{MAPS}/a");
    let with = |rv: Option<u64>, value: &str| {
        let metadata = json!({"name": "a", "resourceVersion": rv.map(|rv| rv.to_string())});
        json!({"metadata": metadata, "data": {"k": value}})
    };
    let (code, updated) = send(&up, Method::PUT, &path, JSON, with(Some(first), "2")).await;
    assert_eq!((code, &updated["data"]["k"]), (200, &json!("2")));
    let (code, conflict) = send(&up, Method::PUT, &path, JSON, with(Some(first), "3")).await;
    assert_eq!((code, &conflict["reason"]), (409, &json!("Conflict")));
    assert!(
        conflict["message"].as_str().unwrap().starts_with("Operation cannot be fulfilled on configmaps \"a\": the")
    );
    let before = up.revision();
    let (code, same) = send(&up, Method::PUT, &path, JSON, with(None, "2")).await;
    assert_eq!((code, up.revision()), (200, before), "no change, no revision");
    assert_eq!(same["metadata"]["resourceVersion"], before.to_string());
    let (code, _) = send(&up, Method::PUT, &format!("{MAPS}/nope"), JSON, json!({"metadata": {"name": "nope"}})).await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn patch_merges_fields_and_apply_creates_the_object() {
    let up = upstream().run().await;
    let path = format!("{MAPS}/a");
    let apply = "application/apply-patch+yaml";
    let (code, _) =
        send(&up, Method::PATCH, &path, apply, json!({"metadata": {"name": "a"}, "data": {"k": "1"}})).await;
    assert_eq!(code, 201);
    let merge = "application/merge-patch+json";
    let (code, merged) = send(&up, Method::PATCH, &path, merge, json!({"data": {"k": null, "l": "2"}})).await;
    assert_eq!((code, &merged["data"]), (200, &json!({"l": "2"})));
    let stale = json!({"metadata": {"resourceVersion": "1"}, "data": {"x": "y"}});
    assert_eq!(send(&up, Method::PATCH, &path, merge, stale).await.0, 409);
    assert_eq!(send(&up, Method::PATCH, &format!("{MAPS}/b"), merge, json!({})).await.0, 404);
    assert_eq!(send(&up, Method::PATCH, &path, "application/json-patch+json", json!([])).await.0, 415);

    let deployment = "/apis/apps/v1/namespaces/default/deployments/api";
    let strategic = "application/strategic-merge-patch+json";
    let seven = json!({"spec": {"replicas": 7}, "status": {"replicas": 99}});
    let (_, scaled) = send(&up, Method::PATCH, deployment, strategic, seven).await;
    assert_eq!((&scaled["metadata"]["generation"], &scaled["status"]["replicas"]), (&json!(2), &json!(3)));
    let status = json!({"status": {"replicas": 7}});
    let (_, object) = send(&up, Method::PATCH, &format!("{deployment}/status"), merge, status).await;
    assert_eq!((&object["metadata"]["generation"], &object["status"]["replicas"]), (&json!(2), &json!(7)));
}

#[tokio::test]
async fn delete_checks_preconditions_and_dry_run_changes_nothing() {
    let up = upstream().run().await;
    up.put("configmaps", json!({"metadata": {"name": "a", "namespace": "t1"}}));
    let (path, before) = (format!("{MAPS}/a"), up.revision());
    let wrong = json!({"preconditions": {"uid": "someone-else"}});
    assert_eq!(send(&up, Method::DELETE, &path, JSON, wrong).await.0, 409);
    assert_eq!(send(&up, Method::DELETE, &format!("{path}?dryRun=All"), JSON, json!({})).await.0, 200);
    let (dry, merge) = (format!("{path}?dryRun=All"), "application/merge-patch+json");
    let (_, patched) = send(&up, Method::PATCH, &dry, merge, json!({"data": {"k": "v"}})).await;
    assert_eq!(patched["data"]["k"], "v");
    assert_eq!(up.revision(), before);
    let (code, deleted) = send(&up, Method::DELETE, &path, JSON, json!({})).await;
    assert_eq!((code, &deleted["status"], &deleted["details"]["name"]), (200, &json!("Success"), &json!("a")));
    assert_eq!((send(&up, Method::DELETE, &path, JSON, json!({})).await.0, up.revision()), (404, before + 1));
    assert_eq!(up.counts().writes.of("configmaps"), 5);
}
