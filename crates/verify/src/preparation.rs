//! Prepares a run before any client reads: creates the resource and its namespaces, and checks which protocols and
//! encodings the server supports.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::VerifyError;
use super::client::{ClientConnection, QueryString};
use super::decode::{accept, encoding_of, status};
use super::object_set::{OWN_GROUP, ObjectSet, VerifiedResource};
use super::record::{ClientTransport, RecordedEncoding};
use super::run_context::RunNotes;
use base::BackgroundTasks;
use probe::{PendingResponse, ProbeRequestError, TargetServer, UnaryClient, UnaryResponse};

const JSON: &str = "application/json";
const OWN: (&str, &str, &str) = ("samples", "sample", "Sample");
/// The time for a new definition to be served, which usually takes seconds.
const SERVED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The attempts of a rehearsal request. They last some seconds, enough for a server restart.
const ASKED_MAX: u32 = 20;

fn failed(what: &str, why: impl std::fmt::Display) -> VerifyError {
    VerifyError::Prepare(format!("{what}: {why}"))
}

fn refusal(reply: &UnaryResponse) -> String {
    format!("{} {}", reply.status, status(&reply.body).0.message)
}

async fn get(client: &UnaryClient, path: &str) -> Result<Value, VerifyError> {
    let reply = client.get(path, JSON).await.map_err(|error| failed(path, error))?;
    if !reply.status.is_success() {
        return Err(failed(path, refusal(&reply)));
    }
    serde_json::from_slice(&reply.body).map_err(|error| failed(path, error))
}

/// Creates an object unless it exists.
async fn make(client: &UnaryClient, path: &str, object: &Value) -> Result<(), VerifyError> {
    let reply = client.send(Method::POST, path, JSON, Bytes::from(object.to_string())).await;
    let reply = reply.map_err(|error| failed(path, error))?;
    match reply.status {
        status if status.is_success() => Ok(()),
        StatusCode::CONFLICT => Ok(()),
        _ => Err(failed(path, refusal(&reply))),
    }
}

/// Resolves a resource's name. Creates the definition of verify's own resource.
pub(super) async fn resource(client: &UnaryClient, name: &str) -> Result<VerifiedResource, VerifyError> {
    let (plural, group) = name.split_once('.').unwrap_or((name, ""));
    if group == OWN_GROUP && plural == OWN.0 {
        make(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &own_definition()).await?;
    }
    let deadline = Instant::now() + SERVED_WITHIN;
    loop {
        let found = discover(client, plural, group).await;
        if found.is_ok() || group != OWN_GROUP || Instant::now() > deadline {
            return found;
        }
        sleep(LOOK_AGAIN).await;
    }
}

async fn discover(client: &UnaryClient, plural: &str, group: &str) -> Result<VerifiedResource, VerifyError> {
    let (version, path) = if group.is_empty() {
        ("v1".to_owned(), "/api/v1".to_owned())
    } else {
        let about = get(client, &format!("/apis/{group}")).await?;
        let version = about["preferredVersion"]["version"].as_str().unwrap_or("v1").to_owned();
        let path = format!("/apis/{group}/{version}");
        (version, path)
    };
    let list = get(client, &path).await?;
    let found = list["resources"].as_array().into_iter().flatten().find(|resource| resource["name"] == plural);
    let found = found.ok_or_else(|| failed(&path, format!("no resource {plural}")))?;
    if found["namespaced"] != true {
        return Err(failed(plural, "it is in no namespaces; only resources that are can be verified"));
    }
    let kind = found["kind"].as_str().unwrap_or_default().to_owned();
    let resource = VerifiedResource { group: group.to_owned(), version, plural: plural.to_owned(), kind };
    // A new definition is listed before its resource is served.
    get(client, &format!("{}?limit=1", resource.collection(None))).await?;
    Ok(resource)
}

fn own_definition() -> Value {
    let (plural, singular, kind) = OWN;
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{OWN_GROUP}")},
        "spec": {
            "group": OWN_GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": singular, "kind": kind},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

pub(super) async fn namespaces(client: &UnaryClient, world: &ObjectSet) -> Result<(), VerifyError> {
    for name in &world.namespaces {
        let labels = json!({"kube-fanout.io/verify": "true"});
        make(client, "/api/v1/namespaces", &json!({"metadata": {"name": name, "labels": labels}})).await?;
    }
    Ok(())
}

/// Removes encodings that the server does not support for the resource, and reports them. An unsupported transport is
/// an error, so that the operator must exclude it explicitly.
pub(super) async fn rehearse(
    subject: &TargetServer,
    resource: &VerifiedResource,
    transports: &[ClientTransport],
    encodings: &mut Vec<RecordedEncoding>,
    tasks: &BackgroundTasks,
    notes: &RunNotes,
) -> Result<(), VerifyError> {
    let collection = resource.collection(None);
    let list = QueryString::default().with("limit", "1").behind(&collection);
    for transport in transports {
        let mut connection = ClientConnection::new(subject, *transport, tasks);
        let watch = QueryString::default().with("watch", "true").with("timeoutSeconds", "1").behind(&collection);
        let path = if *transport == ClientTransport::Ws { &watch } else { &list };
        let fails = |why: String| {
            VerifyError::Prepare(format!("{}: {transport:?} does not work: {why} (see --transports)", subject.url()))
        };
        let answer = fetch(&mut connection, path, JSON).await.map_err(|error| fails(error.to_string()))?;
        if !answer.status.is_success() {
            return Err(fails(answer.status.to_string()));
        }
    }
    let plain = if transports.contains(&ClientTransport::H2) { ClientTransport::H2 } else { ClientTransport::H1 };
    let mut connection = ClientConnection::new(subject, plain, tasks);
    let mut spoken = Vec::new();
    for encoding in encodings.drain(..) {
        let answer = fetch(&mut connection, &list, accept(encoding, true, false)).await;
        let mut answer = answer.map_err(|error| failed(&list, error))?;
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_spoken = answer.status.is_success() && encoding_of(content_type, encoding) == Some(encoding);
        answer.body.read(0).await.map_err(|error| failed(&list, error))?;
        if is_spoken {
            spoken.push(encoding);
        } else {
            notes.add(format!(
                "the server does not serve {} in {encoding:?}; this encoding was skipped",
                resource.name()
            ));
        }
    }
    *encodings = spoken;
    if encodings.first() == Some(&RecordedEncoding::Json) {
        Ok(())
    } else {
        Err(failed(&list, "it is not served in JSON"))
    }
}

/// Retries for a while if the server is overloaded or unreachable, because faults may have begun already.
async fn fetch(
    connection: &mut ClientConnection,
    path: &str,
    accept: &str,
) -> Result<PendingResponse, ProbeRequestError> {
    let mut left = ASKED_MAX;
    loop {
        left -= 1;
        let answer = connection.get(path, accept).await;
        let may_change = answer.as_ref().map_or(true, |answer| {
            matches!(answer.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        });
        if left == 0 || !may_change {
            return answer;
        }
        connection.give_up();
        sleep(LOOK_AGAIN).await;
    }
}

/// Deletes the objects of a run. The namespaces stay, empty.
///
/// # Errors
/// If the server does not respond, or the first refusal of a deletion; the other objects are deleted nevertheless.
pub(super) async fn clean_up(client: &UnaryClient, world: &ObjectSet) -> Result<(), VerifyError> {
    let (options, mut refused) = (super::writer::delete_options().to_string(), None);
    for namespace in &world.namespaces {
        let path = world.resource.collection(Some(namespace));
        let list = get(client, &path).await?;
        for item in list["items"].as_array().into_iter().flatten() {
            let name = item["metadata"]["name"].as_str().unwrap_or_default();
            // Objects that the cluster creates in every namespace do not belong to the run.
            if !ObjectSet::is_ours(name) {
                continue;
            }
            let path = world.path(namespace, name);
            let sent = client.send(Method::DELETE, &path, JSON, Bytes::from(options.clone())).await;
            let reply = sent.map_err(|error| failed(&path, error))?;
            if !reply.status.is_success() && reply.status != StatusCode::NOT_FOUND {
                refused.get_or_insert_with(|| failed(&path, refusal(&reply)));
            }
        }
    }
    refused.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use probe::{TargetCredentials, WatchProtocol};
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn refused_deletion_is_reported_and_the_others_are_made() {
        let resource = VerifiedResource {
            group: String::new(),
            version: "v1".to_owned(),
            plural: "configmaps".to_owned(),
            kind: "ConfigMap".to_owned(),
        };
        let world = ObjectSet::new(resource, 1, 2);
        let names = [world.object(0).1, world.object(1).1];
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let items = names.each_ref().map(|name| json!({"metadata": {"name": name}}));
        let list = json!({"items": items}).to_string();
        let serving = async {
            let (stream, _) = listener.accept().await.expect("a client");
            let (mut stream, mut deleted) = (BufReader::new(stream), Vec::new());
            while deleted.len() < names.len() {
                let (mut line, mut request, mut bytes) = (String::new(), String::new(), 0);
                while stream.read_line(&mut line).await.expect("a line") > 2 {
                    let (name, value) = line.split_once(':').unwrap_or((&line, ""));
                    if name.eq_ignore_ascii_case("content-length") {
                        bytes = value.trim().parse().expect("a number");
                    }
                    request.push_str(&line);
                    line.clear();
                }
                stream.read_exact(&mut vec![0; bytes]).await.expect("a body");
                let (status, body) = match (request.starts_with("DELETE"), deleted.len()) {
                    (false, _) => ("200 OK", list.as_str()),
                    (true, 0) => ("403 Forbidden", "{}"),
                    (true, _) => ("200 OK", "{}"),
                };
                if request.starts_with("DELETE") {
                    deleted.push(request);
                }
                let length = body.len();
                let reply = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
                stream.write_all(reply.as_bytes()).await.expect("it reads");
            }
        };
        let tasks = BackgroundTasks::new();
        let target = TargetCredentials::default().target(&url).await.expect("a URL");
        let client = UnaryClient::new(&target, WatchProtocol::H1, &tasks);
        let (cleaned, ()) = tokio::join!(clean_up(&client, &world), serving);
        let why = cleaned.expect_err("one was refused").to_string();
        assert!(why.contains(&names[0]) && why.contains("403"), "{why}");
        drop(client);
        tasks.join().await;
    }
}
