//! Applies the items of an open stream to the cache.

use crate::cache::{ApplyResult, CacheWriter, Change, OutOfOrder};
use crate::upstream::Error;
use crate::wire::{BookmarkTemplate, WatchItem};
use kubeapi::{ResourceVersion, Status};

use super::metrics::FeedMetrics;

/// The result of applying an item of the stream.
#[derive(Debug)]
pub(super) enum StreamStep {
    /// It was applied, and the feed is at this version.
    At(ResourceVersion),
    /// The feed had it already.
    Skipped,
    /// Upstream sent an ERROR event with this Status.
    Refused(Box<Status>),
}

/// The stream contradicts its earlier items, or cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenStream {
    #[error(transparent)]
    OutOfOrder(#[from] OutOfOrder),
    #[error(transparent)]
    Upstream(#[from] Error),
}

/// Applies one item. Fails if a change is out of order.
pub(super) fn apply(
    item: WatchItem,
    writer: &mut CacheWriter,
    metrics: &FeedMetrics,
) -> Result<StreamStep, BrokenStream> {
    match item {
        WatchItem::Change { event_type, object, frame } => {
            metrics.received(frame.len());
            let rv = object.rv;
            match writer.apply(Change { event_type, object, frame: Some(frame) })? {
                ApplyResult::Fresh => Ok(StreamStep::At(rv)),
                ApplyResult::Duplicate => {
                    metrics.duplicate();
                    Ok(StreamStep::Skipped)
                }
            }
        }
        WatchItem::Bookmark { object, rv, .. } => {
            metrics.bookmark();
            if let Ok(template) = BookmarkTemplate::from_object(writer.envelope(), &object) {
                writer.set_bookmark(template);
            }
            writer.advance(rv, true);
            Ok(StreamStep::At(rv))
        }
        WatchItem::Error { status } => Ok(StreamStep::Refused(status)),
    }
}

/// Applies all changes of a transaction together. Fails if they are out of order.
pub(super) fn apply_together(
    changes: Vec<Change>,
    writer: &mut CacheWriter,
    metrics: &FeedMetrics,
) -> Result<StreamStep, BrokenStream> {
    changes.iter().flat_map(|change| &change.frame).for_each(|frame| metrics.received(frame.len()));
    let (count, last) = (changes.len(), changes.last().map(|change| change.object.rv));
    let fresh = writer.apply_all(changes)?;
    (fresh..count).for_each(|_| metrics.duplicate());
    Ok(last.filter(|_| fresh > 0).map_or(StreamStep::Skipped, StreamStep::At))
}
