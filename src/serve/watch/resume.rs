//! Opens watches. A watch from before a feed's history is held while the history is extended from upstream.
//!
//! A client does not receive "too old" because a feed or the proxy ends. The next feed or proxy may have the history.

use std::time::Duration;

use crate::cache::{CacheReader, FeedState, OpenedWatch, StartPosition, TooOld, View};
use crate::feeds::FeedHandle;
use crate::serve::read::{FeedSources, NotServable};
use crate::serve::route::WatchRead;
use crate::wire::Encoding;
use kubeapi::WatchStart;

/// The maximum time that a watch is held for a backfill. After that, the client receives the error that it would have
/// received at once.
const HELD_MAX: Duration = Duration::from_secs(8);

impl FeedSources {
    /// Opens a watch at its start version. If the version precedes the feed's history, the watch is held for a while,
    /// because the history may be extended. `is_part` marks a partial view; if the watch `follows` the stream, it starts
    /// at the stream's version.
    pub(super) async fn open(
        &self,
        feed: &FeedHandle,
        read: &WatchRead,
        is_part: bool,
        follows: bool,
    ) -> Result<Result<OpenedWatch, TooOld>, NotServable> {
        // A partial view needs the previous state of each object, because revoking a permission deletes visible objects.
        let view = if is_part { read.view.clone().knowing_before() } else { read.view.clone() };
        let mut opened = open(&feed.reader, read.start, view.clone(), follows);
        if let Err(TooOld { requested: from, .. }) = opened {
            // Upstream would print an old change with current cells.
            let is_table = feed.spec.key.encoding == Encoding::Table;
            if !is_table && !feed.reader.reaches(from, &view) && feed.reader.may_begin_earlier() {
                let history = feed.resume_backfills.wait(from, &view, &feed.reader);
                self.hold(feed, read.timeout_seconds, HELD_MAX, history).await?;
            }
            opened = open(&feed.reader, read.start, view, follows);
        }
        // The next feed may have what an ended feed does not.
        if opened.is_err() && matches!(feed.reader.state(), FeedState::Ended(_)) {
            Err(NotServable::FeedEnded)
        } else {
            Ok(opened)
        }
    }
}

fn open(reader: &CacheReader, start: WatchStart, view: View, follows: bool) -> Result<OpenedWatch, TooOld> {
    match start {
        WatchStart::State { .. } if follows => reader.open(StartPosition::UpstreamProgress, view),
        WatchStart::After(rv) => reader.open(StartPosition::After(rv), view),
        WatchStart::State { .. } => reader.open(StartPosition::Current, view),
        WatchStart::FromCached | WatchStart::FromCurrent => Ok(reader.open_at_end(view)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::cache::{CacheConfig, CacheWriter, FeedEnd, Snapshot};
    use crate::feeds::{BackfillOutcome, BackfillRequest, FeedKey, FeedSpec, FeedStartRequest, Feeds, Scope};
    use crate::serve::serve_config::ServeConfig;
    use crate::wire::Representation;
    use base::DrainTrigger;
    use kubeapi::{Gvr, ResourceVersion};

    /// The events that can end the wait of a watch.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Event {
        Nothing,
        HistoryBeginsEarlier,
        Refusal,
        Drain,
        EndOfFeed,
    }

    fn feed(encoding: Encoding) -> (Feeds, FeedHandle, CacheWriter) {
        let (feeds, mut demands) = Feeds::new(CacheConfig::default());
        let key = FeedKey { gvr: Gvr::new("", "v1", "pods"), scope: Scope::Cluster, encoding };
        let feed = feeds.handle(&FeedSpec::like_pods(key), None).expect("there is room");
        let FeedStartRequest { mut writer, .. } = demands.try_recv().expect("the feed is demanded");
        writer.replace(Snapshot::from_objects(ResourceVersion(100), Vec::new()));
        writer.set_state(FeedState::Live);
        (feeds, feed, writer)
    }

    fn from(version: u64) -> WatchRead {
        let (representation, start) = (Representation::Object(Encoding::Json), ResourceVersion(version));
        let (view, start) = (View::everything(), WatchStart::After(start));
        WatchRead { representation, view, start, bookmarks: false, timeout_seconds: None }
    }

    fn said(opened: &Result<Result<OpenedWatch, TooOld>, NotServable>) -> String {
        match opened {
            Ok(Ok(_)) => "opened".into(),
            Ok(Err(_)) => "too old".into(),
            Err(NotServable::FeedEnded) => "routed again".into(),
            Err(NotServable::Refuse(status)) => {
                format!("refused with {}, again in {} s", status.code, status.retry_after_seconds().unwrap_or_default())
            }
            Err(NotServable::Forward(reason)) => format!("{reason:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resume_on_ended_feed_is_routed_again() {
        for encoding in [Encoding::Json, Encoding::Table] {
            let (feeds, feed, mut writer) = feed(encoding);
            let (_trigger, drain) = DrainTrigger::new();
            let sources = FeedSources::new(ServeConfig::default().into(), feeds, drain);
            writer.set_state(FeedState::Ended(FeedEnd::Outdated));
            assert_eq!(said(&sources.open(&feed, &from(90), false, false).await), "routed again", "{encoding:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resume_before_history_waits_for_backfill_up_to_limit() {
        for (event, comes_to, held) in [
            (Event::Nothing, "too old", HELD_MAX),
            (Event::HistoryBeginsEarlier, "opened", Duration::from_secs(1)),
            (Event::Refusal, "too old", Duration::from_secs(1)),
            (Event::Drain, "refused with 503, again in 1 s", Duration::from_secs(1)),
            (Event::EndOfFeed, "routed again", Duration::from_secs(1)),
        ] {
            let (feeds, feed, mut writer) = feed(Encoding::Json);
            let (trigger, drain) = DrainTrigger::new();
            let sources = FeedSources::new(ServeConfig::default().into(), feeds, drain);
            let (watched, began) = (feed.clone(), Instant::now());
            let watch = tokio::spawn(async move { sources.open(&watched, &from(90), false, false).await });
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(
                feed.resume_backfills.next(&feed.reader),
                Some(BackfillRequest::Events(ResourceVersion(90))),
                "it waits"
            );
            let mut draining = None;
            match event {
                Event::Nothing => {}
                Event::HistoryBeginsEarlier => {
                    let beginning = feed.reader.beginning().expect("nothing was evicted");
                    let past = beginning.joined_by(ResourceVersion(90), Vec::new()).expect("nothing happened");
                    assert!(writer.begin_earlier(past));
                    feed.resume_backfills.answered(BackfillOutcome::Prepended);
                }
                Event::Refusal => feed.resume_backfills.answered(BackfillOutcome::Gone { before: ResourceVersion(91) }),
                Event::Drain => draining = Some(tokio::spawn(trigger.drain(Duration::from_secs(60)))),
                Event::EndOfFeed => writer.set_state(FeedState::Ended(FeedEnd::Outdated)),
            }
            assert_eq!(said(&watch.await.expect("no panic")), comes_to, "{event:?}");
            assert!(began.elapsed().abs_diff(held) < Duration::from_millis(10), "{event:?}: {:?}", began.elapsed());
            drop(draining);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resume_within_history_or_of_table_does_not_wait() {
        for (encoding, version, comes_to) in [
            (Encoding::Json, 100, "opened"),
            (Encoding::Json, 120, "opened"),
            // A row shows the cells that upstream printed when the event occurred.
            (Encoding::Table, 90, "too old"),
        ] {
            let (feeds, feed, _writer) = feed(encoding);
            let (_trigger, drain) = DrainTrigger::new();
            let (sources, began) = (FeedSources::new(ServeConfig::default().into(), feeds, drain), Instant::now());
            let opened = sources.open(&feed, &from(version), false, false).await;
            assert_eq!(said(&opened), comes_to, "{encoding:?} {version}");
            assert_eq!(began.elapsed(), Duration::ZERO);
        }
    }
}
