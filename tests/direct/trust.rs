//! Upstream presents an untrusted certificate. The proxy sends it nothing, and clients receive the reason.

use std::time::{Duration, SystemTime};

use crate::direct::{self, Front, PODS, Pair, Signer, eventually};
use crate::process::metric;

/// The problem, the certificate, and a part of the message that names the problem.
fn wrong_ones(signer: &Signer) -> [(&'static str, Pair, &'static str); 4] {
    let now = SystemTime::now();
    let (hour, day) = (Duration::from_secs(3_600), Duration::from_secs(86_400));
    let ended = signer.sign("127.0.0.1", |params| {
        (params.not_before, params.not_after) = ((now - day).into(), (now - hour).into());
    });
    let early = signer.sign("127.0.0.1", |params| {
        (params.not_before, params.not_after) = ((now + hour).into(), (now + day).into());
    });
    [
        ("it has ended", ended, "expired"),
        ("it has not begun", early, "not valid yet"),
        ("it is another's", signer.sign("elsewhere.example", |_| {}), "not valid for"),
        ("no trusted CA signed it", Signer::new().good(), "UnknownIssuer"),
    ]
}

/// Number of failed streams and lists because of it, in all tests of this process.
async fn failures(app: &direct::App) -> f64 {
    let metrics = app.admin("/metrics").await.text();
    metric(&metrics, "kube_fanout_upstream_failures_total", "reason=\"untrusted\"")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_upstream_certificate_returns_503_until_replaced() {
    let (up, signer) = (demo::upstream().pods(5).run().await, Signer::new());
    let front = Front::passing(up.address(), &signer.good()).await;
    for (what, pair, message_part) in wrong_ones(&signer) {
        front.show(&pair);
        let (before, connections) = (up.counts().requests, up.counts().connections);
        let app = direct::by(signer.credentials(&front)).preload("pods").run().await;
        for path in ["/livez", PODS] {
            let answer = app.get(path).await;
            let message = answer.text();
            assert_eq!(answer.status, 503, "{what}: {path}: {message}");
            assert!(message.contains("certificate") && message.contains(message_part), "{what}: {path}: {message}");
        }
        assert_eq!((up.counts().requests, up.counts().connections), (before, connections), "{what}: sent nothing");
        front.show(&signer.good());
        eventually("the good one is used", || async { app.get(PODS).await.is_cached() }).await;
        assert_eq!(app.get("/livez").await.status, 200);
        // A feed that a trusted server has filled treats this as any outage.
        let (watch, failed) = (app.watch(PODS).await, failures(&app).await);
        front.show(&pair);
        up.faults().drop_connections();
        eventually("it is counted", || async { failures(&app).await > failed }).await;
        assert!(app.get(&format!("{PODS}?resourceVersion=0")).await.is_cached(), "{what}: cached objects are served");
        front.show(&signer.good());
        watch.reached(up.create_pod("default", &format!("after-{}", up.revision()))).await;
        app.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_with_untrusted_certificate_fails_over_to_next() {
    let (up, signer) = (demo::upstream().pods(5).run().await, Signer::new());
    let good = Front::passing(up.address(), &signer.good()).await;
    for (what, pair, _) in wrong_ones(&signer) {
        let first = Front::passing(up.address(), &pair).await;
        let plan = crate::endpoints::in_front_of(&[first.url(), good.url()]);
        let app = plan.with(|config| config.upstream = signer.credentials(&good)).run().await;
        eventually(what, || async { app.get(PODS).await.is_cached() }).await;
        app.stop().await;
    }
}
