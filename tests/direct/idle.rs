//! A feed without readers stops, and starts again for the next reader (ARCHITECTURE.md, "A feed's life").

use std::time::Duration;

use tokio::time::sleep;

use crate::direct::{self, PODS, in_time, within};

const SOON: Duration = Duration::from_millis(40);

#[tokio::test]
async fn idle_feed_stops_and_restarts_for_next_reader() {
    let up = demo::upstream().pods(6).run().await;
    let app = direct::app(&up).idle(SOON).run().await;
    for round in 1..=3 {
        let watch = app.watch(PODS).initial_events().from(0).await;
        watch.listed().await;
        assert_eq!(watch.changes().len(), 5 + round);
        assert_eq!(up.counts().watches_open.of("pods"), 1);
        drop(watch);
        in_time(SOON, "the end of upstream's watch", up.until(|counts| counts.watches_open.of("pods") == 0)).await;
        direct::eventually("there is no feed", || async { app.feed("pods").await.is_none() }).await;
        assert_eq!(up.counts().watch_lists.of("pods"), round as u64);
        up.create_pod("default", &format!("round-{round}"));
    }
}

#[tokio::test]
async fn feed_with_quiet_reader_does_not_stop() {
    let up = demo::upstream().pods(6).run().await;
    let app = direct::app(&up).idle(SOON).run().await;
    let quiet = app.watch(PODS).from(up.revision()).await;
    // The stop of another resource's feed shows that the idle check has run.
    app.get("/api/v1/nodes?resourceVersion=0").await;
    for _ in 0..3 {
        in_time(SOON, "the end of the nodes' watch", up.until(|counts| counts.watches_open.of("nodes") == 0)).await;
        app.get("/api/v1/nodes?resourceVersion=0").await;
    }
    assert!(quiet.is_open());
    quiet.reached(up.create_pod("default", "at-last")).await;
    // Apart from the position request with which a feed starts that continues from a client's version.
    let counts = up.counts();
    assert_eq!(counts.watches_opened.of("pods") - counts.watch_lists.of("pods"), 1);
}

#[tokio::test]
async fn preloaded_feed_never_stops_as_idle() {
    let up = demo::upstream().pods(6).run().await;
    let app = direct::app(&up).idle(SOON).preload("widgets.demo.kube-fanout.io").run().await;
    app.until_feed("widgets", "live", |feed| feed["state"] == "live").await;
    app.get("/api/v1/nodes?resourceVersion=0").await;
    in_time(SOON, "the end of the nodes' watch", up.until(|counts| counts.watches_opened.of("nodes") > 0)).await;
    in_time(SOON, "the end of the nodes' watch", up.until(|counts| counts.watches_open.of("nodes") == 0)).await;
    assert!(app.feed("widgets").await.is_some());
}

/// A request that arrives at the moment when its feed is found idle must not receive 410.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_during_idle_feed_stop_succeeds() {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).idle(Duration::from_millis(1)).run().await;
    let comer = |n: u64| {
        let (client, up) = ((*app).clone(), &up);
        async move {
            let (name, mine) = (format!("comer-{n}"), format!("default/comer-{n}"));
            // Until the feed has stopped, and restarted for the next client, many times.
            for trial in 0.. {
                if trial >= 150 && up.counts().watch_lists.of("pods") > 20 {
                    break;
                }
                // Arrivals at random moments of the feed's short life.
                sleep(Duration::from_micros((trial * 37 + n * 211) % 2500)).await;
                let watch = client.watch("/api/v1/namespaces/default/pods").initial_events().from(0).await;
                watch.listed().await;
                assert_eq!(watch.end(), None);
                let written = up.update_pod("default", &name);
                let list = client.get("/api/v1/namespaces/default/pods").await;
                assert_eq!(list.status, 200, "{}", list.text());
                assert!(list.items().contains(&(mine.clone(), written)), "{written} is missing at {}", list.rv());
            }
        }
    };
    Box::pin(within("feeds that stop", async { tokio::join!(comer(1), comer(2)) })).await;
}

/// A client that occasionally reads single objects does not keep an upstream stream open.
#[tokio::test]
async fn forwarded_gets_do_not_keep_idle_feed_running() {
    let up = demo::upstream().pods(5).run().await;
    let app = direct::app(&up).idle(Duration::from_millis(300)).run().await;
    let watch = app.watch(PODS).initial_events().from(0).await;
    assert!(app.feed("pods").await.is_some(), "a watch is open");
    drop(watch);
    let is_over = || async {
        let answer = app.get("/api/v1/namespaces/default/pods/one").await;
        assert!(!answer.is_cached());
        app.feed("pods").await.is_none()
    };
    direct::eventually("the feed is idle", is_over).await;
}
