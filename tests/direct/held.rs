//! A watch-list whose freshness proof is late is held until the proof arrives. If it were refused, the client would
//! retry and need the proof of a newer state (L5, W11; kubernetes#139766).

use std::time::Duration;

use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use kube_fanout::serve::ConcurrencyConfig;
use tokio::time::Instant;

use crate::direct::{self, Answer, App, PODS, Watch, WatchPlan};

/// Position requests to upstream: each is abandoned after five seconds without a response.
fn positions(up: &RunningDemoApiserver) -> usize {
    direct::proxy_queries(up, PODS).iter().filter(|query| query.contains("NOBODY")).count()
}

/// A synced proxy whose upstream watches go silent, and a write that it did not receive.
async fn silenced(up: &RunningDemoApiserver, app: &App) -> (u64, Watch) {
    let watch = app.watch(PODS).initial_events().from(0).await;
    watch.listed().await;
    up.faults().hush_watches();
    (up.create_pod("default", "unheard-of"), watch)
}

fn watch_list(app: &App) -> WatchPlan {
    app.watch(PODS).initial_events()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_list_waits_for_late_freshness_check() {
    let up = demo::upstream().pods(700).run().await;
    let app = direct::app(&up).run().await;
    let (written, _heard) = silenced(&up, &app).await;
    let before = positions(&up);
    let waiting = join_all((0..50).map(|_| watch_list(&app).open()));
    let heard_again = async {
        // The first request timed out, after longer than the apiserver would have waited.
        direct::eventually("another position request", || async { positions(&up) >= before + 2 }).await;
        up.faults().unhush_watches();
    };
    let began = Instant::now();
    let (watches, ()) = tokio::join!(waiting, heard_again);
    for watch in watches {
        let watch = watch.unwrap_or_else(|refused| panic!("{} {}", refused.status, refused.text()));
        watch.listed().await;
        assert!(
            watch.events().iter().any(|event| event.rv == written),
            "the state that was complete when they arrived"
        );
    }
    // One each five seconds, and as many again that arrive late.
    let may = usize::try_from(began.elapsed().as_secs() / 4).expect("a test takes minutes");
    let (questions, questions_max) = (positions(&up) - before, 8 + may);
    assert!(questions <= questions_max, "{questions} position requests for fifty waiting clients");
}

async fn as_soon_as_there_is_a_place(app: &App) -> Result<Watch, Answer> {
    loop {
        match watch_list(app).open().await {
            Err(refused) if refused.status == 429 => {}
            answered => return answered,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_watch_list_releases_its_permit() {
    let up = demo::upstream().pods(700).run().await;
    let limits = ConcurrencyConfig { watches_max: 3, ..ConcurrencyConfig::default() };
    let app = direct::app(&up).with(|config| config.serve.limits = limits).run().await;
    let _heard = silenced(&up, &app).await;
    // Held requests take the remaining permits, and return them when they end.
    for _ in 0..5 {
        let mut waiting = Box::pin(join_all((0..2).map(|_| as_soon_as_there_is_a_place(&app))));
        let full = direct::eventually("no permit is left", || async {
            let path = "/api/v1/pods?watch=true&resourceVersion=999999999&timeoutSeconds=1";
            app.get(path).await.status == 429
        });
        tokio::select! {
            _ = &mut waiting => panic!("nothing can be proven"),
            () = full => {}
        }
    }
    up.faults().unhush_watches();
    direct::eventually("a permit", || async { watch_list(&app).open().await.is_ok() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_ends_waiting_watch_lists_with_503() {
    let up = demo::upstream().pods(700).run().await;
    let mut app = direct::app(&up).drain(direct::PATIENCE).run().await;
    let silent = silenced(&up, &app).await;
    let before = positions(&up);
    let waiting = tokio::spawn(watch_list(&app).open());
    direct::eventually("it waits", || async { positions(&up) > before }).await;
    app.begin_stop();
    let refused =
        direct::in_time(Duration::ZERO, "an answer", waiting).await.expect("no panic").err().expect("a refusal");
    assert_eq!(refused.refusal(), (503, "ServiceUnavailable".to_owned()));
    assert!(refused.header("retry-after").is_some());
    up.faults().unhush_watches();
    drop(silent);
    app.stop().await;
}
