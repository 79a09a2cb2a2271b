//! Upstream's storage is restored from a backup. Watches end with 410, and no lost write is served (F3, L6).

use std::time::{Duration, Instant};

use base::now_ns;
use demo::{self, RunningDemoApiserver, StoreBackup};
use futures_util::future::join_all;
use verify::ApiserverGuarantee;

use crate::direct::{
    self, App, CONFIGMAPS, Ended, History, NODES, PODS, Plan, Protocol, Watch, assert_same, configmap,
};
use crate::hostile;

/// How long a read waits for a proof that cannot come.
const BRIEF: Duration = Duration::from_millis(300);

/// A proxy that forwards a read as early as the product does if upstream cannot prove freshness.
fn app_like_the_product(up: &RunningDemoApiserver) -> Plan {
    direct::app(up).fresh_wait_of_product()
}

async fn sum(app: &App, series: &str) -> u64 {
    let text = app.admin("/metrics").await.text();
    let lines = text.lines().filter(|line| !line.starts_with('#') && series.split(' ').all(|part| line.contains(part)));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// How often the feed of a resource has detected a restored storage.
async fn rewound(app: &App, resource: &str) -> u64 {
    sum(app, &format!("kube_fanout_history_gaps_total outcome=\"rewound\" resource=\"{resource}\"")).await
}

/// Writes that will be lost: an update, a creation and a deletion.
fn happen(up: &RunningDemoApiserver) -> u64 {
    up.update_pod("default", "kept");
    up.create_pod("default", "ghost");
    up.delete_pod("default", "doomed")
}

/// Stops the apiserver, restores its storage, and runs `before_reachable` before the proxy can reach it again.
async fn restored(
    up: &RunningDemoApiserver,
    app: &App,
    backup: &StoreBackup,
    before_reachable: impl FnOnce(&RunningDemoApiserver),
) {
    up.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    up.faults().restore(backup);
    before_reachable(up);
    up.faults().up().await;
}

/// Returns when the feed knows that this version is complete, because it would be requested again otherwise.
async fn whole(app: &App, version: u64) {
    let any = || async { app.get(&format!("{PODS}?resourceVersion=0")).await.rv() >= version };
    direct::eventually("a version is whole", any).await;
}

async fn watches(app: &App, path: &str) -> Vec<Watch> {
    let open = Protocol::ALL.map(|protocol| app.watch(path).initial_events().from(0).over(protocol).into_future());
    let watches = join_all(open).await;
    join_all(watches.iter().map(Watch::listed)).await;
    watches
}

/// Asserts that every read returns upstream's state.
async fn assert_restored(up: &RunningDemoApiserver, app: &App, path: &str) {
    let any = app.get(&format!("{path}?resourceVersion=0")).await;
    assert!(any.is_cached());
    let theirs = direct::upstream_client(up).get(path).await;
    assert_eq!(any.items(), theirs.items());
    assert!(any.rv() <= theirs.rv(), "of the restored history: {} {}", any.rv(), theirs.rv());
    let listed = app.watch(path).initial_events().await;
    listed.listed().await;
    let theirs = direct::upstream_client(up).watch(path).initial_events().await;
    theirs.listed().await;
    assert_same("listed from us", &listed.changes(), &theirs.changes());
}

/// A proxy that starts with a state that the backup lacks, and has observed no change since.
async fn begun_with_a_ghost(seed: u64) -> (RunningDemoApiserver, App, Vec<Watch>, StoreBackup, u64) {
    let up = demo::upstream().pods(10).seed(seed).run().await;
    let backup = up.faults().backup();
    let last = up.create_pod("default", "ghost");
    let app = app_like_the_product(&up).run().await;
    let watches = watches(&app, PODS).await;
    (up, app, watches, backup, last)
}

/// An upstream with a few pods, its backup, and a version that the storage has not reached when it is restored.
async fn begun(seed: u64) -> (RunningDemoApiserver, App, Vec<Watch>, StoreBackup, u64) {
    begun_with(seed, app_like_the_product).await
}

async fn begun_with(
    seed: u64,
    plan: impl FnOnce(&RunningDemoApiserver) -> Plan,
) -> (RunningDemoApiserver, App, Vec<Watch>, StoreBackup, u64) {
    let up = demo::upstream().pods(10).seed(seed).run().await;
    up.create_pod("default", "kept");
    up.create_pod("default", "doomed");
    let app = plan(&up).run().await;
    let watches = watches(&app, PODS).await;
    let backup = up.faults().backup();
    let last = happen(&up);
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    (up, app, watches, backup, last)
}

/// Writes to other objects until the storage has passed a version.
fn pass(up: &RunningDemoApiserver, version: u64) {
    while up.revision() <= version + 10 {
        up.put("nodes", serde_json::json!({"metadata": {"name": "other"}}));
    }
}

/// Writes between the restore and the proxy's reconnection, each with a name. The argument is the proxy's version.
type Meanwhile = (&'static str, fn(&RunningDemoApiserver, u64));

const MEANWHILE: [Meanwhile; 8] = [
    ("nothing", |_, _| {}),
    ("an apiserver that knows no history", |up, _| up.faults().forget_window()),
    ("changes, still below our version", |up, _| {
        up.create_pod("default", "new");
        up.faults().forget_window();
    }),
    ("others pass our version", |up, last| {
        pass(up, last);
        up.create_pod("default", "new");
    }),
    ("pods pass our version", |up, last| {
        while up.revision() <= last + 10 {
            up.update_pod("default", "busy");
        }
    }),
    ("another change takes our newest one's version", |up, last| {
        while up.revision() < last + 10 {
            up.update_pod("default", "other");
        }
    }),
    ("our version is passed, and the window begins later", |up, last| {
        pass(up, last);
        up.faults().forget_window();
    }),
    ("our version is passed, and all history is gone", |up, last| {
        pass(up, last);
        up.update_pod("default", "new");
        up.faults().forget_history();
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_backup_ends_watches_and_replaces_lost_writes() {
    join_all(MEANWHILE.iter().zip(200..).map(async |((what, happen), seed)| {
        let (up, app, watches, backup, last) = begun(seed).await;
        let before = direct::whole_lists(&up, PODS);
        restored(&up, &app, &backup, |up| happen(up, last)).await;
        for watch in &watches {
            assert_eq!(watch.ended().await, Ended::Expired, "{what}");
        }
        assert_restored(&up, &app, PODS).await;
        assert_eq!(direct::whole_lists(&up, PODS) - before, 1, "{what}: one list");
        assert_eq!(rewound(&app, "pods.v1").await, 1, "{what}");
        // The feed continues from the restored state.
        let watch = app.watch(PODS).from(app.get(&format!("{PODS}?resourceVersion=0")).await.rv()).await;
        let next = up.update_pod("default", "kept");
        watch.reached(next).await;
        assert_eq!(watch.events().len(), 1, "{what}: {:?}", watch.events());
    }))
    .await;
}

/// Upstream cannot resend an event, because the feed started with this state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feed_without_events_detects_restore_by_newest_object() {
    let (up, app, watches, backup, last) = begun_with_a_ghost(220).await;
    restored(&up, &app, &backup, |up| {
        pass(up, last);
        up.create_pod("default", "new");
    })
    .await;
    for watch in &watches {
        assert_eq!(watch.ended().await, Ended::Expired);
    }
    assert_restored(&up, &app, PODS).await;
}

/// A feed can start at a client's version, but it does not restart there after a restore, because versions may have
/// another meaning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feed_restarted_by_restore_does_not_start_at_client_version() {
    let up = demo::upstream().pods(10).seed(230).run().await;
    let seen = up.create_pod("default", "kept");
    up.create_pod("default", "doomed");
    let app = app_like_the_product(&up).run().await;
    let watch = app.watch(PODS).from(seen).await;
    let backup = up.faults().backup();
    let last = happen(&up);
    watch.reached(last).await;
    restored(&up, &app, &backup, |up| {
        while up.revision() <= last + 10 {
            up.update_pod("default", "busy");
        }
    })
    .await;
    assert_eq!(watch.ended().await, Ended::Expired);
    assert_restored(&up, &app, PODS).await;
    let exact = direct::proxy_queries(&up, PODS).into_iter().filter(|query| query.contains("Exact")).count();
    assert_eq!(exact, 1, "at its start");
}

/// The gap looks as if it could be mended: an object is missing, and everything else is unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_lost_by_restore_is_not_reported_as_deleted() {
    let (up, app, watches, backup, last) = begun_with_a_ghost(229).await;
    restored(&up, &app, &backup, |up| {
        pass(up, last);
        up.faults().forget_window();
    })
    .await;
    for watch in &watches {
        assert_eq!(watch.ended().await, Ended::Expired);
        assert!(watch.changes().iter().all(|event| event.kind != "DELETED"), "{:?}", watch.changes());
    }
    assert_restored(&up, &app, PODS).await;
    assert_eq!(rewound(&app, "pods.v1").await, 1);
}

/// The stream stays open and silent, as through a load balancer that does not propagate the failure. A read that needs
/// a proof detects it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consistent_read_detects_restore_on_open_stream() {
    let (up, app, watches, backup, _) = begun(221).await;
    let before = direct::whole_lists(&up, PODS);
    up.faults().restore(&backup);
    let list = app.get(PODS).await;
    assert!(!list.text().contains("ghost"), "{}", list.text());
    for watch in &watches {
        assert_eq!(watch.ended().await, Ended::Expired);
    }
    assert_restored(&up, &app, PODS).await;
    assert_eq!(rewound(&app, "pods.v1").await, 1);
    let lists = direct::whole_lists(&up, PODS) - before;
    assert!(lists <= 3, "{lists} lists, including forwarded ones");
}

/// If the storage has reached a later version before the first request, only the objects differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_beyond_cached_version_is_detected_by_object_compare() {
    let (up, app, watches, backup, last) = begun(222).await;
    up.faults().restore(&backup);
    pass(&up, last);
    let list = app.get(PODS).await;
    assert!(!list.text().contains("ghost"), "{}", list.text());
    for watch in &watches {
        assert_eq!(watch.ended().await, Ended::Expired);
    }
    assert_restored(&up, &app, PODS).await;
}

/// Derived objects are compared with upstream, and a lost object is not a derivation error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_check_detects_restore_instead_of_derivation_error() {
    let up = demo::upstream().run().await;
    let backup = up.faults().backup();
    let last = up.create_pod("default", "ghost");
    let app = app_like_the_product(&up).run().await;
    let metadata = async || {
        let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let get = app.request(http::Method::GET, &format!("{PODS}?resourceVersion=0"));
        get.header("accept", accept).send().await
    };
    let watches = watches(&app, PODS).await;
    // The stream stays open, and no read needs a proof.
    up.faults().restore(&backup);
    pass(&up, last);
    metadata().await;
    for watch in &watches {
        assert_eq!(watch.ended().await, Ended::Expired);
    }
    direct::eventually("metadata is derived", || async { metadata().await.is_cached() }).await;
    let list = metadata().await;
    assert!(!list.text().contains("ghost"), "{}", list.text());
    assert_eq!(rewound(&app, "pods.v1").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restore_detected_by_one_feed_rechecks_other_feeds() {
    let up = demo::upstream().pods(10).seed(223).run().await;
    up.put("configmaps", configmap("default", "kept", "1"));
    let app = app_like_the_product(&up).run().await;
    let backup = up.faults().backup();
    up.put("configmaps", configmap("default", "ghost", "1"));
    up.put("nodes", serde_json::json!({"metadata": {"name": "ghost"}}));
    up.create_pod("default", "ghost");
    let all = [PODS, NODES, CONFIGMAPS];
    let watches: Vec<_> = join_all(all.map(|path| watches(&app, path))).await.into_iter().flatten().collect();
    let before = all.map(|path| direct::whole_lists(&up, path));
    // Their streams stay open, and two of them are not read.
    up.faults().restore(&backup);
    app.get(PODS).await;
    for watch in &watches {
        assert_eq!(watch.ended().await, Ended::Expired);
    }
    for path in all {
        assert_restored(&up, &app, path).await;
    }
    let after = all.map(|path| direct::whole_lists(&up, path));
    assert_eq!([after[1] - before[1], after[2] - before[2]], [1, 1]);
    for resource in ["pods.v1", "nodes.v1", "configmaps.v1"] {
        assert_eq!(rewound(&app, resource).await, 1, "{resource}");
        assert_eq!(
            app.feed_requests(resource, "mismatch").await,
            1,
            "{resource}: feeds that were notified do not notify others"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lagging_server_ends_no_watch_and_causes_few_lists() {
    let plan = |up: &RunningDemoApiserver| direct::app(up).with(|config| config.serve.fresh_wait_max = BRIEF);
    let (up, app, watches, ..) = begun_with(224, plan).await;
    // A list of the versions of fewer would prove them without a position.
    for n in 0..500 {
        up.create_pod("default", &format!("one-of-many-{n}"));
    }
    join_all(watches.iter().map(|watch| watch.reached(up.revision()))).await;
    let (before, old) = (direct::whole_lists(&up, PODS), up.revision() - 5);
    let began = Instant::now();
    up.faults().lag(usize::MAX, old);
    // What cannot be proven is forwarded.
    for _ in 0..3 {
        assert_eq!(app.get(PODS).await.rv(), up.revision());
    }
    let passed = sum(&app, "kube_fanout_forwarded_total").await;
    direct::eventually("a doubt", || async { app.feed_requests("pods.v1", "mismatch").await > 0 }).await;
    up.faults().lag(0, 0);
    let last = up.update_pod("default", "kept");
    for watch in &watches {
        watch.reached(last).await;
        assert!(watch.is_open());
    }
    assert_eq!(rewound(&app, "pods.v1").await, 0);
    // The counters are read after the lists, so that each list that upstream has counted is in one of them.
    let lists = (direct::whole_lists(&up, PODS) - before) as u64;
    let forwarded = sum(&app, "kube_fanout_forwarded_total").await;
    // An unfounded doubt has a backoff of ten seconds, and an unanswered one ends after five. Each lists two pages.
    let (pages, doubts_max) = (app.feed_requests("pods.v1", "mismatch").await, 1 + began.elapsed().as_secs() / 5);
    let doubts = pages.div_ceil(2);
    assert!((1..=doubts_max).contains(&doubts), "{doubts} doubts, {doubts_max} at most");
    // A comparison may need a second list.
    assert!(passed >= 3 && lists <= 2 * doubts + forwarded, "{lists} lists of {doubts}, {forwarded}");
}

/// One server of several has a stale watch cache (Kubernetes issue 59848): a relist reads the current state, and not
/// the cheapest one (F1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relist_does_not_read_stale_server_cache() {
    let up = demo::upstream().pods(10).seed(229).run().await;
    let mut history = History::begin(&up, PODS).await;
    let old = up.revision();
    let app = app_like_the_product(&up).run().await;
    let watch = app.watch(PODS).initial_events().from(0).await;
    watch.listed().await;
    let last = up.create_pod("default", "newer");
    watch.reached(last).await;
    whole(&app, last).await;
    history.read_to(last).await;
    let (before, since) = (app.get(&format!("{PODS}?resourceVersion=0")).await, now_ns());
    up.faults().cache_lags(old);
    // After three unreadable events at the same version, the feed starts from nothing.
    hostile::send_malformed_until_ended(&up, &watch).await;
    assert_eq!(watch.ended().await, Ended::Expired);
    let any = app.get(&format!("{PODS}?resourceVersion=0")).await;
    let mut evidence = history.evidence();
    evidence.watch(&watch);
    evidence.answers([&before, &any]).broken("an unreadable frame", since, &[ApiserverGuarantee::Expired]);
    evidence.shows(&[ApiserverGuarantee::Monotone, ApiserverGuarantee::ListSnapshot]);
    assert!(before.is_cached() && any.is_cached() && any.rv() >= last, "{} < {last}", any.rv());
    assert_eq!(rewound(&app, "pods.v1").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_restore_is_detected_after_first() {
    let (up, app, before, backup, _) = begun(225).await;
    restored(&up, &app, &backup, |_| {}).await;
    join_all(before.iter().map(Watch::ended)).await;
    let again = watches(&app, PODS).await;
    let last = happen(&up);
    join_all(again.iter().map(|watch| watch.reached(last))).await;
    restored(&up, &app, &backup, |up| up.faults().forget_window()).await;
    for watch in &again {
        assert_eq!(watch.ended().await, Ended::Expired);
    }
    assert_restored(&up, &app, PODS).await;
    assert_eq!(rewound(&app, "pods.v1").await, 2);
}

/// As at the apiserver: a watch from a version that does not exist (any more) waits until it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_from_lost_version_waits_like_apiserver() {
    let (up, app, watches, backup, last) = begun(226).await;
    restored(&up, &app, &backup, |_| {}).await;
    join_all(watches.iter().map(Watch::ended)).await;
    let (ours, theirs) = (app.watch(PODS).from(last).await, direct::upstream_client(&up).watch(PODS).from(last).await);
    up.create_pod("default", "behind");
    pass(&up, last);
    let later = up.create_pod("default", "later");
    join_all([ours.reached(later), theirs.reached(later)]).await;
    assert_same("ours", &ours.events(), &theirs.events());
    assert_eq!(ours.events().len(), 1, "nothing at that version or below: {:?}", ours.events());
    // Both refuse a LIST at a future version.
    let future = format!("{PODS}?resourceVersion={}&resourceVersionMatch=NotOlderThan", later + 1_000);
    let upstream = direct::upstream_client(&up);
    let (ours, theirs) = tokio::join!(app.get(&future), upstream.get(&future));
    assert_eq!((ours.status, theirs.status), (504, 504));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_list_once_each_after_restore() {
    let up = demo::upstream().pods(10).seed(227).run().await;
    let backup = up.faults().backup();
    let last = happen(&up);
    let mut apps = Vec::new();
    for _ in 0..6 {
        let app = app_like_the_product(&up).run().await;
        let watches = watches(&app, PODS).await;
        apps.push((app, watches));
    }
    up.faults().down().await;
    for (app, _) in &apps {
        app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    }
    up.faults().restore(&backup);
    pass(&up, last);
    let before = direct::whole_lists(&up, PODS);
    up.faults().up().await;
    for (app, watches) in &apps {
        join_all(watches.iter().map(Watch::ended)).await;
        assert_restored(&up, app, PODS).await;
    }
    // The lost state is requested as well, because only its absence distinguishes the two histories.
    assert_eq!(direct::whole_lists(&up, PODS) - before, 2 * apps.len());
}

/// A lost connection costs an event that is sent again, and no request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_stream_with_same_history_needs_no_extra_request() {
    let (up, app, watches, _, last) = begun(228).await;
    whole(&app, last).await;
    let (lists, resumed) = (direct::whole_lists(&up, PODS), direct::resumed(&up, PODS));
    for _ in 0..3 {
        up.faults().down().await;
        app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
        up.faults().up().await;
        let last = up.update_pod("default", "kept");
        join_all(watches.iter().map(|watch| watch.reached(last))).await;
        whole(&app, last).await;
    }
    assert!(watches.iter().all(Watch::is_open));
    assert_eq!(direct::resumed(&up, PODS) - resumed, 3, "{:?}", direct::proxy_queries(&up, PODS));
    direct::assert_not_listed_again(&up, &app, "pods", lists).await;
    assert_eq!(sum(&app, "kube_fanout_upstream_duplicates_total pods").await, 3);
}
