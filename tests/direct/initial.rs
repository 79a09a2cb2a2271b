//! Watches that begin with the objects (W11, W11b; R-WATCH-3).

use futures_util::future::join_all;
use verify::ApiserverGuarantee;

use crate::direct::{self, Event, History, PODS, Protocol, Watch, assert_same, upstream_client};

const EMPTY_NAMESPACE: &str = "/api/v1/namespaces/nowhere/pods";

#[tokio::test]
async fn initial_events_list_state_in_key_order_and_end_with_bookmark() {
    let up = demo::upstream().pods(30).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let theirs = upstream_client(&up).watch(PODS).initial_events().await;
    theirs.listed().await;
    let mut watches = Vec::new();
    for protocol in Protocol::ALL {
        for plan in [app.watch(PODS).initial_events(), app.watch(PODS).from(0).bookmarks(), app.watch(PODS).bookmarks()]
        {
            watches.push(plan.over(protocol).await);
        }
    }
    join_all(watches.iter().map(Watch::listed)).await;
    history.judge(&watches, &[ApiserverGuarantee::InitialEvents]);
    for watch in &watches {
        let events = watch.events();
        assert_same("in the order of keys, and the bookmark", &events, &theirs.events());
        assert_eq!(events.last().map(|event| event.rv), Some(history.from));
    }
    let last = up.churn(20).await;
    history.assert_delivered(&watches, last).await;
}

#[tokio::test]
async fn watch_list_without_matches_gets_bookmark_immediately() {
    let up = demo::upstream().pods(30).run().await;
    let app = direct::app(&up).run().await;
    for plan in [
        app.watch(PODS).labels("nobody=has"),
        app.watch(EMPTY_NAMESPACE),
        app.watch(PODS).fields("spec.nodeName=nowhere"),
        app.watch(EMPTY_NAMESPACE).fields("metadata.name=nobody"),
    ] {
        let watch = plan.initial_events().await;
        watch.listed().await;
        let events = watch.events();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0].rv, up.revision());
    }
}

#[tokio::test]
async fn initial_events_without_allow_bookmarks_contain_no_bookmark() {
    let up = demo::upstream().pods(12).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let initial_without_bookmarks =
        app.watch(PODS).query("sendInitialEvents", "true").query("resourceVersionMatch", "NotOlderThan");
    let deprecated = app.watch("/api/v1/watch/pods");
    let plans = [app.watch(PODS), app.watch(PODS).from(0), initial_without_bookmarks, deprecated];
    let watches = join_all(plans.map(IntoFuture::into_future)).await;
    for watch in &watches {
        watch.received(12).await;
        assert_same("the objects", &watch.events(), &history.state_at(history.from));
    }
    let last = up.churn(5).await;
    let expected: Vec<Event> = [history.state_at(history.from), history.read_to(last).await.all()].concat();
    for watch in &watches {
        watch.reached(last).await;
        assert_same("and what follows", &watch.events(), &expected);
    }
}

#[tokio::test]
async fn watch_without_initial_events_receives_only_later_events() {
    let up = demo::upstream().pods(12).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let quiet = |from: &str| {
        let plan = app.watch(PODS).query("sendInitialEvents", "false").query("resourceVersionMatch", "NotOlderThan");
        plan.query("resourceVersion", from)
    };
    let watches = join_all(["", "0"].map(|from| quiet(from).into_future())).await;
    let last = up.churn(5).await;
    let expected = history.read_to(last).await.all();
    for watch in &watches {
        watch.reached(last).await;
        assert_same("only what follows", &watch.events(), &expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_events_during_churn_are_consistent_and_gapless() {
    let up = demo::upstream().pods(150).seed(41).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let open = async {
        let mut watches = Vec::new();
        for n in 0..24 {
            let plan = app.watch(PODS).initial_events().over(Protocol::ALL[n % 3]);
            let watch = (if n % 2 == 0 { plan.from(0) } else { plan }).await;
            watch.listed().await;
            watches.push(watch);
        }
        watches
    };
    let watches = direct::during_churn(&up, open).await;
    let last = up.churn(20).await;
    history.read_to(last).await;
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    history.judge(
        &watches,
        &[ApiserverGuarantee::InitialEvents, ApiserverGuarantee::Continuity, ApiserverGuarantee::Reliable],
    );
    for watch in &watches {
        let events = watch.events();
        let initial = events.split(Event::ends_initial_events).next().expect("a marked bookmark");
        assert!(initial.is_sorted_by_key(|event| &event.key), "in the order of keys");
    }
}

#[tokio::test]
async fn initial_events_contain_only_objects_matching_selector() {
    let up = demo::upstream().pods(60).run().await;
    let app = direct::app(&up).run().await;
    for (labels, fields) in [("app=api", ""), ("", "spec.nodeName=node-2"), ("app!=api", "metadata.namespace=shop")] {
        let plan = |client: &direct::Client| {
            let plan = client.watch(PODS).initial_events();
            let plan = if labels.is_empty() { plan } else { plan.labels(labels) };
            if fields.is_empty() { plan } else { plan.fields(fields) }
        };
        let (ours, theirs) = (plan(&app).await, plan(&upstream_client(&up)).await);
        ours.listed().await;
        theirs.listed().await;
        assert!(ours.changes().len() > 1, "{labels} {fields} matches something");
        assert_same(&format!("{labels} {fields}"), &ours.events(), &theirs.events());
    }
}
