//! Unchanged resources, each of which is proven current by requests of its own (L5).

use std::time::Instant;

use demo::{self, ReceivedRequest, RunningDemoApiserver};
use futures_util::future::join_all;

use crate::direct::{self, Answer, App, CONFIGMAPS, FRESH_MAX, configmap};

/// Resources whose only objects are those that a test creates.
const QUIET: [(&str, &str); 4] = [
    ("configmaps", CONFIGMAPS),
    ("secrets", "/api/v1/secrets"),
    ("services", "/api/v1/services"),
    ("widgets", direct::WIDGETS),
];
/// Number of clients that read all of them at a time.
const CLIENTS: usize = 20;
/// Number of rounds, and the maximum of attempts for these.
const ROUNDS: usize = 3;
const ROUNDS_MAX: usize = 12;

/// Upstream requests for proofs: positions, lists of versions, catch-up watches.
fn proof_requests(up: &RunningDemoApiserver) -> [usize; 3] {
    let requests = up.requests();
    let ours: Vec<_> = requests.iter().filter(|seen| seen.headers.contains_key("kube-fanout-hops")).collect();
    let count = |is: &dyn Fn(&ReceivedRequest, &str) -> bool| {
        ours.iter().filter(|seen| is(seen, seen.uri.query().unwrap_or_default())).count()
    };
    let is_metadata = |seen: &ReceivedRequest| {
        seen.headers.get("accept").is_some_and(|value| value.as_bytes().windows(7).any(|part| part == b"Partial"))
    };
    [
        count(&|_, query| query.contains("sendInitialEvents=true") && query.contains("timeoutSeconds=5")),
        count(&|seen, query| is_metadata(seen) && !query.contains("watch=true")),
        count(&|_, query| query.contains("timeoutSeconds=3") && !query.contains("sendInitialEvents")),
    ]
}

/// Returns when each of them has been read with a proof.
async fn are_proven(app: &App) {
    for (_, path) in QUIET {
        direct::eventually(path, || async { app.get(path).await.is_cached() }).await;
    }
}

/// Prints the upstream cost of proofs when 20 clients list each of four unchanged resources.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stdout, reason = "a person reads the figures")]
async fn concurrent_reads_of_quiet_resources_share_freshness_checks() {
    for objects in [10, 200, 600] {
        let up = demo::upstream().run().await;
        for (plural, _) in QUIET {
            for n in 0..objects {
                up.put(plural, configmap("default", &format!("o{n}"), "x"));
            }
        }
        let app = direct::app(&up).run().await;
        app.discovered().await;
        are_proven(&app).await;
        let (client, mut good) = (app.multiplexed().await, 0);
        for round in 1..=ROUNDS_MAX {
            // A change of another resource.
            up.create_pod("default", &format!("p{round}"));
            let (before, began) = (proof_requests(&up), Instant::now());
            let reads = (0..CLIENTS).flat_map(|_| QUIET).map(|(_, path)| client.get(path));
            let answers = join_all(reads).await;
            // A read that waited for this long is forwarded. On a machine that stalls this shows nothing.
            if began.elapsed() >= FRESH_MAX && !answers.iter().all(Answer::is_cached) {
                are_proven(&app).await;
                continue;
            }
            for answer in &answers {
                assert!(answer.is_cached() && answer.items().len() >= objects, "{}: {}", answer.path, answer.status);
            }
            let after = proof_requests(&up);
            let sent = [0, 1, 2].map(|kind| after[kind] - before[kind]);
            println!("{} resources of {objects}, round {round}: {sent:?} for {CLIENTS} clients", QUIET.len());
            let [positions, equalities, catch_ups] = sent;
            // Reads that arrive while a request is under way need another one.
            assert!(positions + equalities + catch_ups <= QUIET.len() * CLIENTS / 2, "{sent:?}");
            assert!(equalities + catch_ups >= QUIET.len(), "each by its own: {sent:?}");
            good += 1;
            if good == ROUNDS {
                break;
            }
        }
        assert_eq!(good, ROUNDS, "of {ROUNDS_MAX} rounds");
    }
}
