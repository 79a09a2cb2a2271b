use std::sync::Arc;

use futures_util::FutureExt;

use super::*;
use crate::auth::{Authorizer, Caller};
use crate::cache::{CacheConfig, Snapshot};
use crate::feeds::{FeedStartRequest, Feeds};
use base::DrainTrigger;
use kubeapi::{Gvr, PageStore, Query, RequestInfo};

const DEADLINE: Duration = Duration::from_secs(3);

/// Waits for one of the events that a request may wait for, none of which occurs.
async fn waits(feed: &FeedHandle, wait: usize) -> FeedWaitError {
    let (reader, deadline, received) = (&feed.reader, Instant::now() + DEADLINE, Instant::now());
    let in_vain = match wait {
        0 => while_it_runs(reader, deadline, feed.freshness.reached(received)).await.err(),
        1 => while_it_runs(reader, deadline, reader.reached(ResourceVersion(11))).await.err(),
        _ => {
            let settled = feed.renderings.settled(Representation::Object(Encoding::Json));
            while_it_runs(reader, deadline, settled).await.err()
        }
    };
    in_vain.expect("nothing of it comes")
}

#[tokio::test(start_paused = true)]
async fn every_wait_ends_when_feed_ends_or_deadline_passes() {
    for wait in 0..3 {
        for (ends, expected) in [(true, FeedWaitError::FeedEnded), (false, FeedWaitError::Timeout)] {
            let (feeds, mut demands) = Feeds::new(CacheConfig::default());
            let key = FeedKey { gvr: Gvr::new("", "v1", "pods"), scope: Scope::Cluster, encoding: Encoding::Protobuf };
            let feed = feeds.handle(&FeedSpec::like_pods(key), None).expect("there is room");
            let FeedStartRequest { mut writer, .. } = demands.try_recv().expect("the feed is demanded");
            writer.replace(Snapshot::from_objects(ResourceVersion(10), Vec::new()));
            writer.set_state(FeedState::Live);
            let began = Instant::now();
            let waiting = tokio::spawn(async move { waits(&feed, wait).await });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished(), "{wait}: the feed runs");
            if ends {
                writer.set_state(FeedState::Ended(FeedEnd::Outdated));
            }
            assert_eq!(waiting.await.expect("no panic"), expected, "{wait}");
            let waited = if ends { Duration::ZERO } else { DEADLINE };
            assert!(began.elapsed().abs_diff(waited) < Duration::from_millis(10), "{wait}: {:?}", began.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ready_result_is_returned_although_feed_ended() {
    let (writer, reader) = crate::cache::CacheWriter::new(
        CacheConfig::default(),
        Gvr::new("", "v1", "pods"),
        crate::wire::Envelope::new(Encoding::Protobuf, "v1", "Pod", JsonLayout::BuiltIn),
        true,
    );
    drop(writer);
    let there = while_it_runs(&reader, Instant::now(), std::future::ready(7)).await;
    assert_eq!(there, Ok(7));
}

/// The catalog may have a new definition before the feed of the old one is retired.
#[test]
fn get_uses_only_feed_of_current_crd_definition() {
    let (feeds, mut demands) = Feeds::new(CacheConfig::default());
    let _handle = feeds.handle(&spec(&widgets("uid/1"), Scope::Cluster, Encoding::Json), None).expect("there is room");
    let FeedStartRequest { mut writer, .. } = demands.try_recv().expect("the feed is demanded");
    writer.replace(Snapshot::from_objects(ResourceVersion(10), Vec::new()));
    writer.set_state(FeedState::Live);
    let (_trigger, drain) = DrainTrigger::new();
    let sources = FeedSources::new(ServeConfig::default().into(), feeds, drain);
    let path = "/apis/example.com/v1/namespaces/a/widgets/w";
    let info = RequestInfo::parse("GET", path, &Query::default()).expect("a plain path");
    let grant = Authorizer::open().grant(&Caller::ProxyItself, &info).now_or_never().expect("nobody is asked");
    let permit = Permit::Whole(grant.expect("whoever asks is us"));
    for (edition, is_read) in [("uid/1", true), ("uid/2", false)] {
        let json = Representation::Object(Encoding::Json);
        let source = sources.running_source(&permit, &widgets(edition), Some("a"), json);
        assert_eq!(source.is_some(), is_read, "{edition}");
    }
}

fn widgets(edition: &str) -> Resource {
    let gvr = Gvr::new("example.com", "v1", "widgets");
    let (kind, list_kind, edition) = ("Widget".into(), "WidgetList".into(), Some(edition.into()));
    let (namespaced, watchable, origin, encoding) = (true, true, ResourceOrigin::Custom, Encoding::Json);
    let (fields, pages) = (Arc::default(), PageStore::default());
    Resource { gvr, kind, list_kind, namespaced, watchable, origin, encoding, fields, pages, edition }
}
