//! Access to metrics, as a real apiserver authenticates and authorizes it. The same callers request the apiserver's own
//! `/metrics`, and both servers give the same answer.

use serde_json::{Value, json};

use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{self, Account, Answer, Authority, Http, Identity, Plan, Protocol, eventually};
use crate::blocks::blocks;

/// Uses the certificate of the listeners, and tokens that the apiserver issues.
const CONFIG: &str = "metricsBindAddress: 127.0.0.1:0\nmetrics:\n  auth: delegated\n";

fn status_and_message(answer: &Answer) -> (u16, Value) {
    (answer.status.as_u16(), answer.value()["message"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_require_the_documented_role() {
    let Some(bed) = bed::alone().await else { return };
    let (direct, proxy) = (bed.direct(), Plan::delegated(&bed).config(CONFIG).start(&bed).await);
    let namespace = bed.namespace("monitoring").await;
    let account = async |name: &str| Account::create(&direct, &namespace, name).await;
    let (prometheus, other) = (account("prometheus").await, account("other").await);
    let (scraper, stranger) = (prometheus.token(&direct).await, other.token(&direct).await);
    let authority = Authority::of(&bed);
    let (holder, nosy) = (authority.issue("scraper", &[]), authority.issue("nosy", &[]));

    let [role] = blocks("docs/SECURITY.md", "metrics_require_the_documented_role");
    let role: Value = serde_saphyr::from_str(&role).expect("YAML");
    let name = role["metadata"]["name"].as_str().expect("a name").to_owned();
    direct.create(&collection(None, "roles"), role).await;
    let scrape = async |who: &Identity| proxy.scraped_by(who).get("/metrics").await;
    // Another account than those below: a deny decision is cached for half a minute.
    let denied = scrape(&stranger).await;
    assert_eq!(denied.status, 403, "the account has no permission: {}", denied.text());

    for (at, user) in [prometheus.user(), "scraper".to_owned()].iter().enumerate() {
        let bound = binding(&format!("scrape-{at}"), "ClusterRole", &name, &subject("User", user));
        direct.create(&collection(None, "rolebindings"), bound).await;
        let page = json!({"path": "/metrics", "verb": "get"});
        may(&direct, json!({"user": user, "nonResourceAttributes": page})).await;
    }
    for who in [&scraper, &holder] {
        let metrics = eventually("it is reviewed in time", async || {
            let answer = scrape(who).await;
            assert_ne!(answer.status, 403, "{}: {}", who.name, answer.text());
            (answer.status == 200).then_some(answer)
        })
        .await;
        assert!(metrics.text().contains("kube_fanout_build_info"), "{}", metrics.text());
    }
    for who in [&stranger, &nosy, &Identity::token("forged", "no.such.token")] {
        let theirs = Http::new(bed.target().by(who), Protocol::H1).get("/metrics").await;
        let ours = scrape(who).await;
        assert!([401, 403].contains(&ours.status.as_u16()), "{}: {}", who.name, ours.text());
        assert_eq!(status_and_message(&ours), status_and_message(&theirs), "{}", who.name);
    }
    assert_eq!(status_and_message(&scrape(&Identity::anonymous()).await), (401, "Unauthorized".into()));

    // A deleted account invalidates its tokens. A cached review expires within two minutes, but a token without one is
    // refused at once.
    let late = prometheus.token(&direct).await;
    direct.delete(&prometheus.path()).await;
    eventually("the apiserver knows", async || {
        let answer = Http::new(bed.target().by(&late), Protocol::H1).get("/metrics").await;
        (answer.status == 401).then_some(())
    })
    .await;
    assert_eq!(scrape(&late).await.status, 401);
    proxy.assert_sound();
}
