//! An apiserver that closes connections at random (`--goaway-chance`, which managed clusters set). The proxy resends
//! unprocessed requests on another connection (RFC 9113 §6.8). `make goaways` sends more.

use futures_util::{StreamExt as _, stream};
use http::Method;
use serde_json::json;

use crate::bed::{self, Http, Plan, Protocol, RequestSpec, log_line, number};

/// The highest value that the apiserver accepts.
const CHANCE: &str = "--goaway-chance=0.02";
const TRANSPORT: &str = "--strict-transport-security-directives=max-age=31536000,includeSubDomains";
/// The proxy's log message for each request that it resends.
const RESENT: &str = "upstream did not process a request";
/// In a run of at least this many requests, some are on a connection that is being closed.
const MANY: u64 = 10_000;
/// The number of concurrent requests.
const TOGETHER: usize = 40;

#[tokio::test]
async fn apiserver_goaways_fail_no_request() {
    let Some(bed) = bed::own_with("goaways", &[CHANCE, TRANSPORT]).await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let maps = format!("/api/v1/namespaces/{}/configmaps", bed.namespace("goaways").await);
    let count = number("GOAWAY_REQUESTS", 600);
    for (protocol, name) in [(Protocol::H1, "h1"), (Protocol::H2, "h2")] {
        let client = &Http::new(proxy.target(), protocol);
        let (maps, answers) = (&maps, stream::iter(0..count));
        let answers = answers.map(|at| async move {
            let object = json!({"metadata": {"name": format!("{name}-{at}")}, "data": {"a": "b"}});
            let posted =
                client.fetch(RequestSpec::get(maps).with(Method::POST, "application/json", object.to_string())).await;
            // If the request had already been processed, this would be a 409.
            assert_eq!(posted.status, 201, "{}", posted.text());
            let got = client.get(&format!("{maps}/{name}-{at}")).await;
            assert_eq!(got.status, 200, "{}", got.text());
        });
        answers.buffer_unordered(TOGETHER).collect::<Vec<()>>().await;
    }
    let (ours, theirs) =
        (proxy.client().get(&format!("{maps}?resourceVersion=0")).await, bed.direct().get(maps.as_str()).await);
    assert!(ours.is_cached(), "{}", ours.status);
    let hsts = |answer: &bed::Answer| answer.header("strict-transport-security").to_owned();
    assert_eq!((hsts(&ours), hsts(&theirs).is_empty()), (hsts(&theirs), false));
    let resent = proxy.log().matches(RESENT).count();
    assert!(count < MANY || resent > 0, "the run is void: every request was processed by the first connection");
    log_line(&format!(
        "{count} POSTs and {count} GETs over each of h1 and h2, {TOGETHER} at a time: none failed; {resent} were sent \
         again; forwarded: {:?}",
        proxy.forwarded().await
    ));
}
