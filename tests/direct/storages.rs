//! A server with two storages, whose versions are unrelated (L5).

use demo::{self, RequestCounts, RunningDemoApiserver};
use futures_util::future::join_all;
use http::Request;
use hyper::body::Incoming;

use crate::direct::{self, Behind, CONFIGMAPS, PODS, Stub, configmap};

/// A server with two storages, like an apiserver with `--etcd-servers-overrides`: config maps are in the second one.
async fn of_two_storages(up: &RunningDemoApiserver, other: &RunningDemoApiserver) -> Stub {
    let (main, own) = (Behind::at(&up.url()), Behind::at(&other.url()));
    let relay = move |request: Request<Incoming>| {
        let behind = if request.uri().path().ends_with("/configmaps") { own.clone() } else { main.clone() };
        async move { behind.answer(request).await }
    };
    direct::stub(relay).await
}

/// The version that proves pods current is one that config maps have passed already, and not their current one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn freshness_check_does_not_cross_storage_backends() {
    let (up, other) = (demo::upstream().pods(5).run().await, demo::upstream().pods(5).run().await);
    let server = of_two_storages(&up, &other).await;
    let app = direct::in_front_of(&server.url()).run().await;
    app.discovered().await;
    for trial in 0..5 {
        while other.revision() < up.revision() {
            other.put("configmaps", configmap("default", "padding", &other.revision().to_string()));
        }
        while up.revision() < other.revision() {
            up.update_pod("default", "one");
        }
        // Both feeds are synced and current.
        join_all([PODS, CONFIGMAPS].map(|path| app.get(path))).await;
        app.reached("configmaps", other.revision()).await;
        other.faults().stall_watches(0);
        // A proof requests the position, or lists the versions of a collection as tiny as this one.
        let proofs = |counts: &RequestCounts| counts.watch_lists.of("configmaps") + counts.lists.of("configmaps");
        let (name, before) = (format!("new-{trial}"), proofs(&other.counts()));
        let written = other.put("configmaps", configmap("default", &name, "x"));
        assert!(up.revision() < written);
        let goes_on = async {
            // A request about the wrong storage would not arrive here.
            direct::within("the right storage is asked", other.until(|counts| proofs(counts) > before)).await;
            other.faults().resume_watches();
        };
        let (pods, configmaps, ()) = tokio::join!(app.get(PODS), app.get(CONFIGMAPS), goes_on);
        assert_eq!((pods.status, configmaps.status), (200, 200));
        let key = format!("default/{name}");
        assert!(
            configmaps.items().iter().any(|(cached, _)| *cached == key),
            "{key} was written before it was requested"
        );
    }
}
