//! One client that opens and closes watches in a loop costs the others nothing, and nothing of its watches remains
//! (R-DOWNSTREAM-3).

use futures_util::future::join_all;
use http::Method;

use crate::direct::{self, History, PODS, Protocol, eventually, within};

/// Number of connections of the client, and of watches that it opens on each, one after another.
const CONNECTIONS: usize = 4;
const WATCHES: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_watches_do_not_affect_other_clients() {
    let up = demo::upstream().pods(50).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).admin_on_socket().run().await;
    let steady =
        join_all(Protocol::ALL.map(|protocol| app.watch(PODS).from(history.from).over(protocol).into_future()));
    let steady = steady.await;
    let followed_once = || up.until(|counts| counts.watches_open.of("pods") == 1);
    within("one watch upstream", followed_once()).await;
    let before = up.counts();
    let starts = [
        format!("resourceVersion={}", history.from),
        "resourceVersion=0".to_owned(),
        "resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
            .to_owned(),
    ];
    let come_and_go = async |_| {
        let client = app.multiplexed().await;
        for start in starts.iter().cycle().take(WATCHES) {
            let path = format!("{PODS}?watch=true&{start}");
            let opened = client.request(Method::GET, &path).open().await.expect("the connection stays");
            assert_eq!(opened.status(), 200);
            // The client disconnects without reading the response.
            drop(opened);
        }
    };
    let all = within("all were opened and closed", join_all((0..CONNECTIONS).map(come_and_go)));
    direct::during_churn(&up, all).await;
    history.assert_delivered(&steady, up.revision()).await;
    within("nothing is sent upstream", followed_once()).await;
    let after = up.counts();
    // Requests of a feed that has just started.
    assert!(after.watches_opened.of("pods") <= before.watches_opened.of("pods") + 3, "{after:?}");
    assert!(after.lists.of("pods") <= before.lists.of("pods") + 1, "{after:?}");
    let listed = async || app.admin("/debug/watches").await.json()["watches"].as_array().map(Vec::len);
    let are_gone = || async { listed().await == Some(steady.len()) };
    eventually("nothing stays of them", are_gone).await;
}
