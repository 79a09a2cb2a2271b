//! Authorization: callers of every kind send requests to the proxy and to the apiserver with the same credential, under
//! rules that are drawn with a seed. Both must give the same answer, whether they allow the request or refuse it.
//!
//! The rules do not change during a round, and the callers of each round are new. So no decision that either side has
//! cached is out of date. Each request is sent once (`differential/verdict.rs`). `make authorization TRIPLES=20000`
//! sends more than `make test`. `local` compares what the proxy concludes from the rules itself.

mod cast;
mod local;
mod policy;
mod questions;
mod stage;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Deref;
use std::time::Instant;

use fastrand::Rng;
use futures_util::{StreamExt, stream};
use kubeapi::User;

use crate::bed::{
    self, Authority, Http, Identity, Pair, Plan, Plane, Protocol, RequestSpec, Seed, log_line, rbac, unique,
};
use crate::differential::compare::{Compared, Seen, Servers};
use crate::differential::probe::Probe;
use crate::differential::verdict::{Counts, Verdict};
use crate::differential::world::World;
use cast::Cast;
use policy::Policy;
use questions::Questions;
use stage::Stage;

/// The number of requests under the same rules.
const ROUND: u64 = 500;
/// The number of rounds on the same control plane, which forgets old versions sooner than the proxy.
const ROUNDS: u64 = 10;
const AT_ONCE: usize = 48;
/// At least one request in this many must be answered from the cache. Normally it is one in seven, because most are
/// refused.
const CACHED_ONE_IN: u64 = 12;
const SHOWN_MAX: usize = 20;

type IsSo = fn(&Exchange<'_>) -> bool;

/// Cases in which different answers are equivalent (docs/DIFFERENCES.md).
const AS_GOOD: [(&str, IsSo); 3] = [
    (
        "for repeated impersonation the apiserver's error names the check that permitted it before, ours the first check",
        |exchange| {
            let refused = |seen: &Seen| (400..500).contains(&seen.status);
            exchange.identity.certificate.is_some()
                && refused(&exchange.compared.expected)
                && exchange.compared.expected.status == exchange.compared.actual.status
                && exchange.probe.headers.iter().any(|(name, _)| name.starts_with("impersonate-"))
        },
    ),
    ("an unauthenticated caller gets the error in JSON although it requests YAML", |exchange| {
        (exchange.compared.expected.status, exchange.compared.actual.status) == (401, 401)
            && exchange.probe.headers.iter().any(|(name, value)| *name == "accept" && value.contains("yaml"))
    }),
    ("the caller and the user that it impersonates are checked before a bad timeout", |exchange| {
        let impersonates = exchange.probe.headers.iter().any(|(name, _)| name.starts_with("impersonate-"));
        exchange.compared.expected.status == 400
            && exchange.probe.first("timeout").is_some()
            && (exchange.compared.actual.status == 401 || (exchange.compared.actual.status == 403 && impersonates))
    }),
];

/// A request, its sender, and both answers.
struct Exchange<'a> {
    servers: &'a Servers,
    identity: &'a Identity,
    user: Option<&'a User>,
    probe: Probe,
    compared: Compared,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delegated_auth_decisions_match_the_apiserver() {
    let triples = bed::number("AUTHORIZATION_TRIPLES", 500);
    let drawn = Seed::new("AUTHORIZATION_SEED", |seed| format!("make authorization SEED={seed} TRIPLES={triples}"));
    let (mut left, mut seeds) = (triples, drawn.rounds());
    let (mut reports, mut counts) = (Vec::new(), Counts::default());
    while left > 0 {
        let Some(bed) = bed::quiet_with(&bed::unique("authorization"), "ShardedListAndWatch=true").await else {
            return;
        };
        let pair = Pair::with(Plan::delegated(&bed), bed).await;
        let world = World::make(&pair).await;
        for _ in 0..ROUNDS.min(left.div_ceil(ROUND)) {
            let (count, seed) = (left.min(ROUND), seeds.next().expect("there is always another one"));
            reports.extend(round(&pair, &world, seed, count, &mut counts).await);
            left -= count;
        }
    }
    reports.splice(..0, counts.complaints(CACHED_ONE_IN));
    let first_ones = reports.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(reports.is_empty(), "{} reports:\n{first_ones}", reports.len());
}

/// Sends a number of requests under a new set of rules, and returns those whose answers differ.
async fn round<P: Deref<Target = Plane>>(
    pair: &Pair<P>,
    world: &World,
    seed: u64,
    count: u64,
    counts: &mut Counts,
) -> Vec<String> {
    let (round, mut random, started) = (format!("s{seed}"), Rng::with_seed(seed), Instant::now());
    let cast = Cast::assemble(&pair.bed, &mut random, &round).await;
    let policy = Policy::draw(world, &cast, &mut random, &round);
    let stage = Stage::set(pair, world, &policy, &round).await;
    let settled = pair.direct.version("/api/v1/namespaces").await;
    let servers: Vec<_> = cast.members.iter().map(|member| Servers::by(pair, &member.identity)).collect();
    let rules = local::known(&pair.direct).await;
    let direct = servers.iter().map(|servers| Http::new(servers.direct.target.clone(), Protocol::H1));
    let users = stream::iter(direct).then(async |http| local::authenticated(&http).await).collect::<Vec<_>>().await;
    let mut questions = Questions::new(world, seed);
    let requests: Vec<_> = (0..count).map(|_| questions.draw(&cast, &policy, &stage)).collect();
    let exchanges = stream::iter(requests).map(async |(who, probe)| {
        let (servers, identity, user) = (&servers[who], &cast.members[who].identity, users[who].as_ref());
        let compared = servers.compare(&probe, settled).await;
        Exchange { servers, identity, user, probe, compared }
    });
    let exchanges = exchanges.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await;
    let mut own = Counts::default();
    for exchange in &exchanges {
        own.count(&exchange.compared, exchange.verdict());
        counts.count(&exchange.compared, exchange.verdict());
    }
    log_line(&format!(
        "seed {seed}: {own}, statuses {:?} in {:.1} s",
        statuses(&exchanges),
        started.elapsed().as_secs_f64()
    ));
    let now = pair.direct.version("/api/v1/namespaces").await;
    assert_eq!(now, settled, "a request has written something");
    policy.forget(&pair.direct).await;
    let different = exchanges.iter().filter(|exchange| exchange.verdict() == Verdict::Different).map(Exchange::report);
    let contradicted = exchanges.iter().filter_map(|Exchange { user, probe, compared, .. }| {
        local::contradiction(&rules, (*user)?, probe, compared.expected.status)
    });
    different.chain(contradicted).map(|report| format!("seed {seed}: {report}")).collect()
}

impl Exchange<'_> {
    fn verdict(&self) -> Verdict {
        match self.compared.verdict {
            Verdict::Different if AS_GOOD.iter().any(|(_, is_as_good)| is_as_good(self)) => Verdict::Documented,
            verdict => verdict,
        }
    }

    fn report(&self) -> String {
        let Self { servers, identity, probe, compared, .. } = self;
        let denied = |status: u16| matches!(status, 401 | 403);
        let given = |status: u16| (100..300).contains(&status);
        let what = match (compared.expected.status, compared.actual.status) {
            (expected, actual) if denied(expected) && given(actual) => "OVER-GRANT",
            (expected, actual) if given(expected) && denied(actual) => "UNDER-GRANT",
            _ => "another answer",
        };
        let mut text = format!("{what} to {}", identity.name);
        for server in [&servers.direct, &servers.through] {
            let _ = write!(text, "\n{}", probe.curl(&server.target));
        }
        text + &compared.explain()
    }
}

fn statuses(exchanges: &[Exchange<'_>]) -> BTreeMap<u16, u32> {
    let mut statuses = BTreeMap::new();
    for exchange in exchanges {
        *statuses.entry(exchange.compared.expected.status).or_default() += 1;
    }
    statuses
}

/// A name that a header cannot carry unchanged must not become another user's name.
#[tokio::test]
async fn username_altered_by_header_encoding_is_rejected() {
    let Some(bed) = bed::shared().await else { return };
    let (proxy, authority) = (Plan::delegated(&bed).start(&bed).await, Authority::of(&bed));
    let (namespace, name) = (bed.namespace("names").await, unique("victim"));
    let direct = bed.direct();
    let path = format!("/api/v1/namespaces/{namespace}/secrets");
    let role = rbac::collection(None, "rolebindings");
    direct.create(&role, rbac::binding(&name, "ClusterRole", "cluster-admin", &rbac::subject("User", &name))).await;
    let victim = proxy.client_of(&authority.issue(&name, &[]));
    victim.until_ok("the victim is authorized", RequestSpec::get(&path)).await;
    let odd = |before: &str, after: &str| format!("{before}{name}{after}");
    let names =
        [odd("", " "), odd(" ", ""), odd("\t", ""), odd("", "\t"), odd("", "\n"), odd("\r\n", ""), odd("", "\0")];
    for other in names {
        let caller = proxy.client_of(&authority.issue(&other, &[]));
        for path in [&path, "/api/v1/nodes", "/api/v1/nodes?resourceVersion=0"] {
            let answer = caller.get(path).await;
            assert!(answer.status.is_client_error(), "{other:?}: {path}: {} {}", answer.status, answer.text());
        }
        // The same holds for groups.
        let group = odd("", " ").replace(&name, "system:masters");
        let answer = proxy.client_of(&authority.issue(&unique("nobody"), &[&group])).get(&path).await;
        assert!(answer.status.is_client_error(), "{} {}", answer.status, answer.text());
    }
}
