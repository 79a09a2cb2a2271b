//! Both apiservers are restarted, one after the other, under load. No watch ends, no event is lost or sent twice, and
//! the proxy makes no unnecessary list.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::{Access, Stage, lists};
use crate::bed::{eventually, log_line, version_of};
use crate::restarts::{COUNT, REFUSALS_MAX, assert_unbroken, pauses_within, questions, watches};

/// Writes per second.
const RATE: u64 = 40;

impl Stage<'_> {
    /// Restarts both repeatedly until the time is over, at least once.
    pub async fn restarts_end_no_watch(&self, time: Duration) {
        let plane = self.plane;
        let proxy = self.proxy(Access::Balanced).await;
        let (busy, idle) = (plane.file("until"), plane.file("until"));
        let pods = [
            watches(plane, &proxy, "/api/v1/pods", "json", &busy).await,
            watches(plane, &proxy, "/api/v1/pods", "protobuf", &busy).await,
        ];
        let quiet = watches(plane, &proxy, "/api/v1/secrets", "json", &idle).await;
        let initial = proxy.feed_requests("initial").await;
        let (mut acknowledged, mut restarts, over) = (Vec::new(), 0, Instant::now() + time);
        let mut pauses = 0;
        loop {
            let namespace = plane.namespace("rolling").await;
            let churn = plane.drive("churn").at(&self.both()).args(["--namespace", &namespace, "--objects", "30"]);
            // The writes take about as long as the restarts. If the restarts are faster, they wait for the writes.
            let churn = churn.args(["--ops", "400", "--rate", &RATE.to_string(), "--workers", "2"]).start();
            churn.wrote(40).await;
            let began = Instant::now();
            self.restart_both().await;
            pauses += pauses_within(began.elapsed());
            restarts += 2;
            acknowledged.extend(churn.finish().await.versions());
            if Instant::now() >= over {
                break;
            }
        }
        acknowledged.sort_unstable();
        std::fs::write(&busy, acknowledged.last().expect("it wrote").to_string()).expect("a file");
        for watches in pods {
            assert_unbroken(&watches.finish().await, &acknowledged);
        }
        let secret = json!({"metadata": {"name": plane.namespace("rolled").await}});
        let last = version_of(&plane.direct().create("/api/v1/namespaces/default/secrets", secret).await);
        std::fs::write(&idle, last.to_string()).expect("a file");
        assert_unbroken(&quiet.finish().await, &[last]);
        let (writes, watches) = (acknowledged.len(), 3 * COUNT);
        log_line(&format!(
            "{restarts} restarts: {writes} acknowledged versions in {watches} watches once and in order"
        ));
        log_line(&format!("{restarts} restarts: {}", lists(&proxy).await));
        for (labels, count) in questions(&proxy).await {
            log_line(&format!("upstream requests: {labels} {count}"));
            // An apiserver that listens before it is ready may refuse more requests, the longer that takes.
            assert!(
                !labels.contains("relist") || count <= restarts + pauses + REFUSALS_MAX,
                "one relist per feed and restart: {labels} {count}"
            );
        }
        assert_eq!(proxy.feed_requests("initial").await, initial, "no feed started over");
        let metrics = proxy.metrics().await;
        assert_eq!(metrics.sum("kube_fanout_history_gaps_total", &[("outcome", "new_history")]), 0);
        eventually("one stream for pods", async || (proxy.streams("pods.v1").await == 1).then_some(())).await;
        proxy.assert_sound();
    }
}
