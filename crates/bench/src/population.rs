use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::try_join_all;
use http::{Method, StatusCode};

use super::BenchError;
use super::objects::{WorkloadObjects, with};
use probe::{ProgressLine, UnaryClient};

/// The number of objects that are created concurrently.
const CREATING: usize = 24;
const JSON: &str = "application/json";

/// Creates the missing namespaces and objects. Existing ones are used unchanged.
pub(super) async fn create(
    caller: &UnaryClient,
    objects: &WorkloadObjects,
    object_bytes: usize,
    progress: &ProgressLine,
) -> Result<(), BenchError> {
    for namespace in objects.namespaces() {
        let labels = r#"{"kube-fanout.io/bench":"true"}"#;
        let document = format!(
            r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{namespace}","labels":{labels}}}}}"#
        );
        put_if_absent(caller, "/api/v1/namespaces", document, &namespace).await?;
    }
    let padding = measure(caller, objects, object_bytes).await?;
    let next = AtomicUsize::new(0);
    let creator = || async {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= objects.count {
                return Ok::<_, BenchError>(());
            }
            put_if_absent(caller, &objects.collection_of(n), objects.document(n, padding), &objects.path(n)).await?;
            progress.created(n, objects.count);
        }
    };
    try_join_all((0..CREATING.min(objects.count)).map(|_| creator())).await?;
    Ok(())
}

async fn put_if_absent(caller: &UnaryClient, path: &str, document: String, what: &str) -> Result<(), BenchError> {
    let reply =
        caller.send(Method::POST, path, JSON, document.into()).await.map_err(|error| BenchError::write(&error))?;
    let is_there = reply.status == StatusCode::CONFLICT;
    if !is_there {
        reply.success(&format!("create {what}")).map_err(BenchError::Prepare)?;
    }
    Ok(())
}

/// Returns how many bytes of padding give an object the requested size. A dry run measures what the server adds.
async fn measure(caller: &UnaryClient, objects: &WorkloadObjects, object_bytes: usize) -> Result<usize, BenchError> {
    let path = with(&objects.collection_of(0), "dryRun=All");
    let reply = caller.send(Method::POST, &path, JSON, objects.document(0, 0).into()).await;
    let reply = reply.map_err(|error| BenchError::write(&error))?;
    if reply.status == StatusCode::CONFLICT {
        return Ok(0);
    }
    let reply = reply.success("create an object by dry run").map_err(BenchError::Prepare)?;
    Ok(object_bytes.saturating_sub(reply.body.len()))
}

/// Deletes the objects. The namespaces stay, because an empty namespace can be reused and one that is being deleted
/// cannot.
pub(super) async fn delete(caller: &UnaryClient, objects: &WorkloadObjects) -> Result<(), BenchError> {
    let options = r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}"#;
    for namespace in objects.namespaces() {
        let path = objects.own(&namespace);
        let reply = caller
            .send(Method::DELETE, &path, JSON, Bytes::from(options))
            .await
            .map_err(|error| BenchError::write(&error))?;
        reply.success(&format!("delete the objects in {namespace}")).map_err(BenchError::Prepare)?;
    }
    Ok(())
}
