//! The proxy is killed with SIGKILL. Clients reconnect to its successor, at once or half a minute later, and resume
//! (F9).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use verify::ApiserverGuarantee;

use crate::bed::{self, Plan, Protocol, Proxy, log_line, within};
use crate::follower::Follower;
use crate::ledger::Ledger;

const MAPS: &str = "/api/v1/configmaps";
/// How long after the kill the last disconnected client returns.
const AWAY_MAX: Duration = Duration::from_secs(25);
/// The number of clients that are disconnected when the proxy is killed, each at its own version.
const AWAY: u32 = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_resume_without_loss_after_proxy_is_killed() {
    let Some(bed) = bed::alone().await else { return };
    let address = bed::free_address();
    let first = Plan::plain().listen(&address).start(&bed).await;
    let target = first.target();
    let until = bed.file("until");
    let ledger = Arc::new(Ledger::begin(&bed, MAPS).await);
    let mut informers = Vec::new();
    for watchlist in ["on", "off"] {
        let ready = bed.file("ready");
        let run =
            bed.drive("informers").at(&target).args(["--resource", "configmaps", "--count", "10", "--conns", "2"]);
        let run = run.args(["--watchlist", watchlist, "--reference-server", bed.url()]);
        let mut run = run.until(&until).file("--ready-file", &ready).start();
        run.awaits(&ready).await;
        informers.push((watchlist, run));
    }
    let (goal, goals) = watch::channel(None);
    let (kill, killed) = watch::channel(false);
    let (begin, mut begun) = watch::channel(0);
    let follower = || Follower::new(target.clone(), Protocol::H1, &ledger, &begin);
    let away = (0..AWAY).map(|n| {
        // The clients that left first return in the middle, so that the oldest version is requested late.
        let long = AWAY_MAX.mul_f64(f64::from((n + AWAY / 2) % AWAY) / f64::from(AWAY));
        follower().away(5 + 4 * n, killed.clone(), long)
    });
    let staying = (0..20).map(|_| follower());
    let followers: Vec<_> = staying.chain(away).map(|follower| tokio::spawn(follower.follow(goals.clone()))).collect();
    let all_begin = begun.wait_for(|begun| *begun == followers.len());
    within("all followers have begun", all_begin).await.expect("they tell it");
    let churn = bed.drive("churn").args(["--resource", "configmaps", "--namespace", "killed", "--ops", "800"]);
    let churn = churn.args(["--rate", "100", "--objects", "30"]).start();
    churn.wrote(150).await;
    first.kill();
    kill.send_replace(true);
    churn.wrote(250).await;
    let second = Plan::plain().listen(&address).start(&bed).await;
    let versions = churn.finish().await.versions();
    let last = *versions.last().expect("it wrote");
    std::fs::write(&until, last.to_string()).expect("a file");
    goal.send(Some(last)).expect("followers follow");
    for (watchlist, run) in informers {
        let summary = run.finish().await.summary();
        assert_eq!(summary["reference"], "equal", "{summary}");
        assert_eq!(summary["distinct_stores"], 1, "{summary}");
        assert_eq!(summary["regressions"], 0, "{summary}");
        log_line(&format!("10 client-go informers, watchlist {watchlist}: {summary}"));
    }
    let followers: Vec<_> = within("the followers are there", join_all(followers))
        .await
        .into_iter()
        .map(|done| done.expect("no panic"))
        .collect();
    ledger
        .shows(
            &bed,
            last,
            &[
                ApiserverGuarantee::Continuity,
                ApiserverGuarantee::Reliable,
                ApiserverGuarantee::Typed,
                ApiserverGuarantee::Consistent,
            ],
        )
        .await;
    assert!(followers.iter().all(|follower| follower.resumed >= 1), "the kill was noticed");
    let sum = |of: fn(&Follower) -> u32| followers.iter().map(of).sum::<u32>();
    log_line(&format!(
        "{} raw watches: {} resumes, {} times 410, {} lists, all judged by the apiserver's own events",
        followers.len(),
        sum(|f| f.resumed),
        sum(|f| f.expired),
        sum(|f| f.lists)
    ));
    assert_eq!(sum(|f| f.expired), 0, "nothing was forgotten");
    assert_eq!(sum(|f| f.lists), sum(|_| 1), "and no client relists");
    assert_eq!(second.streams("configmaps.v1").await, 1, "one, whatever the form");
    cost_a_few_watches(&second).await;
}

/// Checks the upstream requests for the returning clients, in addition to the stream.
async fn cost_a_few_watches(second: &Proxy) {
    let questions = second.metrics().await;
    let of_maps = |question| {
        let labels = [("resource", "configmaps.v1"), ("purpose", question)];
        questions.sum("kube_fanout_feed_requests_total", &labels)
    };
    log_line(&format!("upstream: {} watches for older history", of_maps("backfill")));
    assert_eq!(of_maps("relist"), 0);
    assert!(of_maps("initial") <= 1, "one list, or the state of a client's version");
    assert!((1..=16).contains(&of_maps("backfill")), "{}", of_maps("backfill"));
}
