//! Tables: upstream answers their lists, and identical concurrent lists share a response. Their watches share one
//! stream.

use futures_util::future::join_all;
use http::Method;
use kube_fanout::auth::AuthMode;

use crate::direct::{self, Client, PODS, Protocol, without_ages};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

async fn table(client: Client, query: &'static str) -> String {
    let call = client.request(Method::GET, &format!("{PODS}{query}")).header("accept", TABLE);
    let answer = call.send().await;
    assert_eq!((answer.status, answer.is_cached()), (200, false), "{}", answer.text());
    answer.text()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identical_concurrent_table_pages_share_one_response() {
    let up = demo::upstream().pods(7).run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    let lists = || up.counts().lists.of("pods");
    let before = lists();
    up.faults().hold_lists();
    let first = tokio::spawn(table((*app).clone(), "?limit=500"));
    up.faults().lists_waiting(1).await;
    // They arrived too late to share the request under way, and a different query shares neither.
    let client = app.multiplexed().await;
    let later = join_all((0..30).map(|_| table(client.clone(), "?limit=500")));
    let other = table(client.clone(), "?limit=3");
    let release = async {
        // A later request on the same connection is answered, so the earlier ones have been accepted.
        assert_eq!(client.get("/livez").await.status, 200);
        direct::within("two questions", up.faults().lists_waiting(2)).await;
        up.faults().release_lists();
    };
    let (later, other, ()) = tokio::join!(later, other, release);
    let first = first.await.expect("no failure");
    for answer in later {
        assert_eq!(without_ages(&answer), without_ages(&first));
    }
    assert_ne!(other, first, "a shorter page");
    assert!((3..20).contains(&(lists() - before)), "{} questions for 32 requests", lists() - before);
    // An unlimited Table is not buffered for sharing.
    assert_eq!(table((*app).clone(), "").await.matches("\"cells\"").count(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_watches_share_one_stream_and_survive_reset() {
    let up = demo::upstream().pods(20).seed(5).run().await;
    let app = direct::app(&up).run().await;
    let from = up.revision();
    let open = (0..30).map(|n| app.watch(PODS).from(from).accept(TABLE).over(Protocol::ALL[n % 3]).into_future());
    let watches = join_all(open).await;
    up.churn(40).await;
    up.faults().end_watches();
    up.churn(40).await;
    up.faults().reset_watches();
    let last = up.churn(40).await;
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    let expected = watches[0].events();
    assert_eq!(expected.len(), 120);
    assert!(watches.iter().all(|watch| watch.events() == expected), "the same bytes");
    // The stream that was reset is resumed a moment later.
    direct::within("one watch upstream", up.until(|counts| counts.watches_open.of("pods") == 1)).await;
}

/// Callers who may read the same share one response, which the proxy requests. Others are answered by their own rights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permitted_callers_share_table_pages_and_others_do_not() {
    let up = demo::upstream().pods(7).run().await;
    for (token, user) in [("a", "ada"), ("b", "bob"), ("c", "cleo")] {
        up.reviews().give(token, user);
    }
    up.reviews().allow("ada", "*");
    up.reviews().allow("cleo", "*");
    let app = direct::app(&up).with(|config| config.auth = AuthMode::Delegated).run().await;
    app.discovered().await;
    let callers = [app.bearing("a").multiplexed().await, app.bearing("c").multiplexed().await];
    // The decisions are cached, so that later requests need no review.
    for caller in &callers {
        assert_eq!(table(caller.clone(), "?limit=500").await.matches("\"cells\"").count(), 7);
    }
    up.faults().hold_lists();
    let first = tokio::spawn(table(callers[0].clone(), "?limit=500"));
    up.faults().lists_waiting(1).await;
    let before = up.counts().lists.of("pods");
    let later = join_all((0..30).map(|n| table(callers[n % 2].clone(), "?limit=500")));
    let release = async {
        for caller in &callers {
            assert_eq!(caller.get("/livez").await.status, 200);
        }
        up.faults().release_lists();
    };
    let (later, ()) = tokio::join!(later, release);
    let first = first.await.expect("no failure");
    assert!(later.iter().all(|answer| without_ages(answer) == without_ages(&first)));
    let more = up.counts().lists.of("pods") - before;
    assert!((1..15).contains(&more), "{more} requests for 30 of two callers");
    // The demo upstream authorizes no caller, so what it received tells whose right was used.
    let other =
        app.bearing("b").request(Method::GET, &format!("{PODS}?limit=500")).header("accept", TABLE).send().await;
    assert_eq!((other.status, other.header("kube-fanout-reason")), (200, Some("table")));
    let sent = up.requests().into_iter().filter(|request| request.uri.query() == Some("limit=500"));
    let tokens: Vec<_> = sent.map(|request| request.headers.get("authorization").cloned()).collect();
    assert_eq!(tokens.iter().flatten().collect::<Vec<_>>(), ["Bearer b"], "{tokens:?}");
}
