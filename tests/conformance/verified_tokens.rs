//! Tokens that the proxy verifies itself, compared with the apiserver's `TokenReview`.

mod tokens;

use std::time::Instant;

use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::bed::{self, Account, Bed, Ended, Http, Identity, Plan, Plane, Proxy, RequestSpec, Seed, Watch};
use crate::bed::{eventually, log_line, number, rbac};
use tokens::{Cluster, review};

/// Identities are checked often, so that the test sees many checks. The limits are those of many callers.
const LOCAL: &str = "delegated: {identify: local, decide: rbac, recheck: 2s, recheckTokens: 2s, reviewsPerSecondPerSource: 100000, \
                     reviewsBurstPerSource: 100000, reviewsPerSecond: 100000, tokenTTL: 10ms}";

struct Bench {
    bed: Bed<Box<Plane>>,
    proxy: Proxy,
    direct: Http,
    namespace: String,
}

impl Bench {
    async fn start(name: &str) -> Option<Self> {
        let bed = bed::own(name).await?;
        let direct = bed.direct();
        rbac::allow_token_keys(&direct).await;
        let readers =
            rbac::binding("readers", "ClusterRole", "view", &rbac::subject("Group", "system:serviceaccounts"));
        direct.create(&rbac::collection(None, "rolebindings"), readers).await;
        let proxy = Plan::delegated(&bed).config(LOCAL).start(&bed).await;
        let namespace = bed.namespace("tokens").await;
        Some(Self { bed, proxy, direct, namespace })
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    /// The status of a cached read with this token.
    async fn status(&self, identity: &Identity) -> u16 {
        let caller = self.proxy.client_of(identity);
        eventually("an answer", async || Some(caller.try_get(&self.path()).await?.status.as_u16())).await
    }

    /// The numbers of tokens that the proxy has verified, and of reviews that it has sent.
    async fn counts(&self) -> (i64, i64) {
        let metrics = self.proxy.metrics().await;
        let verified = metrics.sum("kube_fanout_auth_tokens_verified_total", &[("result", "valid")]);
        (verified, metrics.sum("kube_fanout_upstream_requests_total", &[("cause", "token_review")]))
    }

    /// Waits until the proxy verifies this token without a review.
    async fn until_verified(&self, identity: &Identity) {
        eventually("the token is verified without a review", async || {
            let before = self.counts().await;
            assert_eq!(self.status(identity).await, 200);
            let after = self.counts().await;
            (after.0 > before.0 && after.1 == before.1).then_some(())
        })
        .await;
    }

    async fn watch(&self, identity: &Identity) -> Watch {
        let version = self.direct.version(&self.path()).await;
        let request = RequestSpec::get(&format!("{}?watch=1&resourceVersion={version}", self.path()));
        let caller = self.proxy.client_of(identity);
        let open = eventually("the watch is accepted", async || {
            caller.try_send(request.clone()).await.filter(|response| response.status() == 200)
        });
        Watch::new(open.await)
    }
}

/// Whether a token is accepted is what a review says, for tokens of every kind that are spoilt in every way.
/// Tokens that expired within the last minute are not drawn: the apiserver accepts them, and the proxy does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verified_tokens_are_those_that_the_apiserver_accepts() {
    let Some(bench) = Bench::start("verified-tokens").await else { return };
    let seed = Seed::new("TOKENS_SEED", |seed| format!("make verified-tokens TOKENS=1000 SEED={seed}"));
    let count = usize::try_from(number("TOKENS", 1_000)).expect("a small number");
    let cluster = Cluster::create(&bench.bed, &bench.direct, &bench.namespace).await;
    for identity in cluster.issued() {
        bench.until_verified(identity).await;
    }
    let before = bench.counts().await;
    let mut random = fastrand::Rng::with_seed(seed.first());
    let tokens: Vec<_> = (0..count).map(|_| cluster.draw(&mut random)).collect();
    let results = futures_util::stream::iter(&tokens).map(|(what, identity)| {
        let bench = &bench;
        async move { (what, identity, bench.status(identity).await, review(&bench.direct, &identity.token, &[]).await) }
    });
    let results: Vec<_> = results.buffer_unordered(8).collect().await;
    let accepted = |review: &Value| review["authenticated"] == true;
    let wrong: Vec<_> = results
        .iter()
        .filter(|(_, _, status, review)| *status != if accepted(review) { 200 } else { 401 })
        .map(|(what, identity, status, review)| format!("{what}: {status}, {review}: {}", identity.token))
        .collect();
    let (verified, reviews) = bench.counts().await;
    let valid = results.iter().filter(|(.., review)| accepted(review)).count();
    let (verified, reviews) = (verified - before.0, reviews - before.1);
    log_line(&format!(
        "{count} tokens, {valid} valid: {verified} verified here, {reviews} reviewed; {} wrong",
        wrong.len()
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(usize::try_from(verified).is_ok_and(|verified| verified >= valid / 2 && verified <= valid), "{verified}");
    let log = bench.proxy.log();
    assert!(!log.contains("another user") && !log.contains("proven to be valid"), "a review contradicts the proxy");
    bench.proxy.assert_sound();
}

/// The watches of 60 accounts are checked several times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_verified_tokens_need_no_reviews_and_end_with_their_objects() {
    let Some(bench) = Bench::start("verified-watches").await else { return };
    let cluster = Cluster::create(&bench.bed, &bench.direct, &bench.namespace).await;
    let mut watches = Vec::new();
    for number in 0..60 {
        let account = Account::create(&bench.direct, &bench.namespace, &format!("agent-{number}")).await;
        let token = account.token(&bench.direct).await;
        watches.push((bench.watch(&token).await, account));
        bench.until_verified(&token).await;
    }
    let before = bench.counts().await;
    eventually("each lease is checked three times", async || (bench.counts().await.0 >= before.0 + 180).then_some(()))
        .await;
    assert_eq!(bench.counts().await.1, before.1, "token reviews at rest");

    // Objects are deleted, and an account is created again with its name.
    let (mut watch, account) = watches.pop().expect("60 watches");
    let old = account.token(&bench.direct).await;
    bench.until_verified(&old).await;
    let began = Instant::now();
    bench.direct.delete(&account.path()).await;
    ends(&mut watch, "a deleted account", began).await;
    Account::create(&bench.direct, &bench.namespace, &account.name).await;
    assert_eq!(bench.status(&old).await, 401, "a token of the account before");
    for (kind, identity) in cluster.bound() {
        bench.until_verified(identity).await;
        let mut watch = bench.watch(identity).await;
        let began = Instant::now();
        cluster.delete(&bench.direct, kind).await;
        ends(&mut watch, kind, began).await;
        assert_eq!(bench.status(identity).await, 401, "{kind}");
    }
    bench.direct.create(&bench.path(), json!({"metadata": {"name": "last"}})).await;
    for (watch, _) in &mut watches {
        assert_eq!(watch.change().await.name(), "last", "other watches continue");
    }
}

/// The apiserver may accept a token from its own cache for ten seconds more.
async fn ends(watch: &mut Watch, what: &str, began: Instant) {
    let (events, ended) = bed::within(what, watch.rest()).await;
    log_line(&format!("{what}: the watch ended after {:?}", began.elapsed()));
    let code = events.last().map(|event| event.object["code"].clone());
    assert_eq!((code, ended), (Some(json!(401)), Ended::Clean), "{what}");
}

/// The cluster gets another key, and in an outage a caller that the proxy has never seen is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_key_and_outage_are_handled() {
    let Some(bench) = Bench::start("rotated-key").await else { return };
    let account = Account::create(&bench.direct, &bench.namespace, "agent").await;
    let old = account.token(&bench.direct).await;
    bench.until_verified(&old).await;
    let pair = rcgen::KeyPair::generate().expect("a key");
    bench.bed.kill_apiserver().await;
    let write = |name: &str, pem: String| std::fs::write(bench.bed.dir.join(name), pem).expect("a file");
    write("service-account.pub", pair.public_key_pem());
    write("service-account.key", pair.serialize_pem());
    bench.bed.start_apiserver().await;
    let new = account.token(&bench.direct).await;
    bench.until_verified(&new).await;
    assert_eq!(bench.status(&old).await, 401, "a token with a key that is no longer published");

    let unknown = account.token(&bench.direct).await;
    eventually("RBAC decides here", async || {
        let active = bench.proxy.metrics().await.sum("kube_fanout_auth_local_decisions_active", &[]);
        (active == 1).then_some(())
    })
    .await;
    bench.bed.kill_apiserver().await;
    let before = bench.counts().await;
    let caller = bench.proxy.client_of(&unknown);
    let answer = caller.get(&format!("{}?resourceVersion=0", bench.path())).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(bench.counts().await, (before.0 + 1, before.1), "without a review");
}
