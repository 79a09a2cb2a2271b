use std::time::Duration;

use super::*;
use crate::cache::{CacheConfig, FeedEndReason};
use crate::feeds::{FeedScope, FeedSpec, FeedStartRequest};
use crate::wire::FeedEncoding;
use kubeapi::Gvr;

fn spec(namespace: &str) -> FeedSpec {
    FeedSpec::like_pods(FeedKey {
        gvr: Gvr::new("", "v1", "pods"),
        scope: FeedScope::Namespace(namespace.into()),
        encoding: FeedEncoding::Json,
    })
}

fn written(feeds: &FeedRegistry) -> Vec<String> {
    let mut text = String::new();
    write_feeds(feeds, &mut text);
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// A thousand namespaces are read, one after the other. In the end, no series of them remain.
#[tokio::test(start_paused = true)]
async fn metric_series_are_removed_after_their_feed_ends() {
    let config = CacheConfig::default();
    let kept = config.counts_age_max;
    let (feeds, mut demands) = FeedRegistry::new(config);
    for namespace in 0..1_000 {
        let handle = feeds.handle(&spec(&format!("n{namespace}")), None).expect("there is room");
        let FeedStartRequest { feed, mut writer } = demands.try_recv().expect("it is demanded");
        writer.set_state(FeedState::Live);
        FeedTrafficCounts::add(&feed.counts.events, 1);
        drop(handle);
        let text = written(&feeds);
        let labels = format!("resource=\"pods.v1\",namespace=\"n{namespace}\",selector=\"\",form=\"json\"");
        for expected in [
            format!("kube_fanout_upstream_events_total{{{labels}}} 1"),
            format!("kube_fanout_feed_state{{{labels},state=\"live\"}} 1"),
            format!("kube_fanout_feed_objects{{{labels}}} 0"),
        ] {
            assert!(text.contains(&expected), "{expected} is not in {text:#?}");
        }
        assert!(feeds.end_if_idle(&feed, Duration::ZERO));
        feeds.ended(&feed, FeedEndReason::Idle);
        let text = written(&feeds);
        assert!(text.contains(&format!("kube_fanout_feed_state{{{labels},state=\"ended\"}} 1")));
        assert!(!text.iter().any(|line| line.starts_with("kube_fanout_feed_objects")), "it holds none");
        if namespace % 100 == 99 {
            tokio::time::advance(kept).await;
            assert_eq!(written(&feeds), [""; 0]);
        }
    }
}

#[test]
fn label_values_are_escaped() {
    assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
}
