//! Requests for versions that are too old (R-GONE-1, R-LIST-5, R-CONTINUE-4): the apiserver's history begins later, and
//! etcd has been compacted.

use serde_json::{Value, json};

use crate::bed::{self, Ended, Pair, Plane, RequestSpec, log_line, normal};
use crate::websocket;

/// Compacts etcd up to `version`, as the apiserver does every five minutes.
pub async fn compact(plane: &Plane, version: u64) {
    let settings = std::fs::read_to_string(plane.dir.join("settings.json")).expect("the test bed's settings");
    let settings: Value = serde_json::from_str(&settings).expect("JSON");
    let url = format!("http://127.0.0.1:{}", settings["etcdPort"]);
    let etcd = bed::Http::new(bed::Target { url, ca: None, identity: bed::Identity::anonymous() }, bed::Protocol::H1);
    etcd.create("/v3/kv/compaction", json!({"revision": version.to_string(), "physical": true})).await;
}

fn token(version: i64, start: &str) -> String {
    use base64::Engine;
    let token = json!({"v": "meta.k8s.io/v1", "rv": version, "start": start}).to_string();
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token)
}

#[tokio::test]
async fn expired_reads_and_watches_match_the_apiservers_410() {
    let Some(bed) = bed::own("expired").await else { return };
    bed.namespace("before").await;
    // An apiserver's history begins at its start. One that starts together with etcd has the whole history.
    bed.kill_apiserver().await;
    bed.start_apiserver().await;
    let pair = Pair::on(bed).await;
    let version = pair.maps().await;
    compact(&pair.bed, version).await;
    Box::pin(expired_watches(&pair)).await;
    let gone = pair.same(RequestSpec::get(&pair.path("?resourceVersion=1&resourceVersionMatch=Exact"))).await;
    assert_eq!(gone.status, 410);
    let message = "The resourceVersion for the provided list is too old.";
    assert_eq!((&gone.value()["reason"], &gone.value()["message"]), (&json!("Expired"), &json!(message)));
    let gone = pair.same(RequestSpec::get(&pair.path(&format!("?limit=1&continue={}", token(2, "cm-a\0"))))).await;
    assert_eq!(gone.status, 410);
    let value = gone.value();
    let next = value["metadata"]["continue"].as_str().expect("a token to go on with");
    let rest = pair.same(RequestSpec::get(&pair.path(&format!("?limit=1&continue={next}")))).await;
    assert_eq!(rest.value()["items"][0]["metadata"]["name"], "cm-b");
}

/// An expired watch is a 200 with one ERROR event, in every protocol and encoding.
async fn expired_watches(pair: &Pair<Box<Plane>>) {
    let query = "?watch=1&resourceVersion=1";
    for form in ["application/json", "application/vnd.kubernetes.protobuf;stream=watch"] {
        let (answer, _) = pair.same_watch(RequestSpec::get(&pair.path(query)).accept(form)).await;
        assert_eq!(answer.status, 200);
        log_line(&format!("{form}: {:?}", normal::events(&answer)));
        Box::pin(websocket::same(pair, query, form)).await;
    }
    let (events, ended) = pair.through.watch(RequestSpec::get(&pair.path(query))).await.rest().await;
    assert_eq!((events.len(), events[0].kind.as_str(), ended), (1, "ERROR", Ended::Clean));
    assert_eq!((&events[0].object["code"], &events[0].object["reason"]), (&json!(410), &json!("Expired")));
}
