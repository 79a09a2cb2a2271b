use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{ACCEPT, HeaderMap, HeaderValue};
use tokio::time::{Instant, timeout_at};

use super::delta_bases::{DeltaBases, FRAME_BYTES_MAX};
use super::feed_client::FeedTaskContext;
use crate::cache::{FeedState, ObjectChange};
use crate::feeds::FeedKey;
use crate::upstream::{
    DELTAS, PROXY_ACCEPT_ENCODING, STALE, UpstreamError, UpstreamRequestCause, UpstreamRequestKind,
    UpstreamResponseBody, UpstreamServer,
};
use crate::wire::{
    FeedEncoding, FrameSplitter, ObjectReader, ObjectRevision, TABLE_ACCEPT, WatchItem, WireError, is_delta,
};
use kubeapi::ResourceVersion;

/// One open upstream watch. It reads bytes and returns decoded items.
#[derive(Debug)]
pub(super) struct UpstreamWatchStream {
    body: UpstreamResponseBody,
    splitter: FrameSplitter,
    /// The bases of differences, if the server sends any.
    deltas: Option<Box<DeltaBases>>,
    /// Items that were read before the stream was passed on.
    ahead: VecDeque<StreamItem>,
    /// The next frame, if [`peek_frame`](Self::peek_frame) has read it.
    peeked: Option<Bytes>,
    /// The state of a feed that has just opened the stream. A proxy that has no stream itself sends no changes.
    pub(super) feed_state: FeedState,
    /// The time at which the last item was received. It is a field because a read may be cancelled at any time.
    last_item: Instant,
    /// [`FeedTaskContext::wants_plain`].
    wants_plain: Arc<AtomicBool>,
    /// Whether the stream is plain because of that, and has sent no item.
    is_substitute: bool,
}

/// An item of a stream.
#[derive(Debug)]
pub(super) enum StreamItem {
    /// A change, and the further changes of its transaction, which a
    /// [`TransactionBuffer`](super::transaction_buffer::TransactionBuffer) joins.
    Change { change: ObjectChange, more: Vec<ObjectChange> },
    /// Everything up to `rv` has been sent. `object` has the layout of a bookmark.
    Bookmark { object: ObjectRevision, rv: ResourceVersion, initial_events_end: bool },
}

/// How a stream ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchStreamEnd {
    /// Upstream closed the watch on a frame boundary, which is its ordinary end.
    #[error("upstream ended the watch")]
    Closed,
    /// Neither an event nor a bookmark was received for [`SILENCE_MAX`], so the connection counts as lost
    /// (R-UPSTREAM-2).
    #[error("no event or bookmark received for {SILENCE_MAX:?}")]
    IdleTimeout,
    /// It broke, cannot be decoded, or has sent an ERROR event, which is [`UpstreamError::Refused`].
    #[error(transparent)]
    Failed(#[from] UpstreamError),
}

impl WatchStreamEnd {
    /// Whether the stream broke, including in the middle of a frame.
    pub(super) fn broke_off(&self) -> bool {
        match self {
            Self::Failed(error) => {
                error.is_disconnected() || matches!(error, UpstreamError::Wire(WireError::Truncated))
            }
            Self::Closed | Self::IdleTimeout => false,
        }
    }
}

/// The maximum time without an item. The apiserver sends a bookmark every minute, so a minute and a half of silence
/// indicates a dead connection.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// The maximum size of the changes that are collected until a bookmark, in bytes. Above it, a relist is cheaper.
const CAUGHT_UP_BYTES_MAX: usize = 64 << 20;

impl FeedTaskContext {
    /// Opens a watch that is accounted to `cause`. If `deltas_after` is the version of a state, a proxy may send later
    /// events as differences to it. Before the caller reads them, the feed must have that state, and the caller calls
    /// [`index_deltas`](UpstreamWatchStream::index_deltas). Fails as [`send`](Self::send).
    pub(super) async fn open(
        &self,
        cause: UpstreamRequestCause,
        path: &str,
        deltas_after: Option<ResourceVersion>,
    ) -> Result<UpstreamWatchStream, UpstreamError> {
        let key = &self.feed.spec.key;
        let is_substitute = deltas_after.is_some() && self.wants_plain.load(Ordering::Relaxed);
        let deltas_after = deltas_after.filter(|_| !is_substitute);
        let response = self.send(cause.of(&key.gvr), UpstreamRequestKind::Watch, path, deltas_after).await?;
        self.behind_a_proxy.store(response.body().is_from_memory(), Ordering::Relaxed);
        let has_deltas = deltas_after.is_some() && response.headers().contains_key(DELTAS);
        let now = Instant::now();
        let stale = response.headers().get(STALE).and_then(|value| value.to_str().ok()?.parse().ok());
        let since = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap_or(now);
        let splitter = FrameSplitter::new(key.encoding, FRAME_BYTES_MAX);
        Ok(UpstreamWatchStream {
            body: response.into_body(),
            splitter: if has_deltas { splitter.with_deltas() } else { splitter },
            deltas: has_deltas.then(|| Box::new(DeltaBases::new(self))),
            ahead: VecDeque::new(),
            peeked: None,
            feed_state: stale.map_or(FeedState::Live, |seconds| FeedState::Stale { since: since(seconds) }),
            last_item: now,
            wants_plain: self.wants_plain.clone(),
            is_substitute,
        })
    }

    /// Sends a request in the feed's encoding. If the response has another encoding, fails with
    /// [`UpstreamError::OtherRepresentation`].
    pub(super) async fn send(
        &self,
        cause: UpstreamRequestCause,
        kind: UpstreamRequestKind,
        path_and_query: &str,
        deltas_after: Option<ResourceVersion>,
    ) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        let encoding = self.feed.spec.key.encoding;
        let mark = if path_and_query.contains('?') { '&' } else { '?' };
        let path = match encoding {
            FeedEncoding::Json | FeedEncoding::Protobuf => Cow::Borrowed(path_and_query),
            FeedEncoding::Table => Cow::Owned(format!("{path_and_query}{mark}includeObject=Object")),
        };
        let mut headers = self.headers(kind, accept(encoding));
        headers.extend(deltas_after.map(|rv| (DELTAS, rv.0.into())));
        let response = self.client.open_compressed(cause, kind, &path, headers).await?;
        let answered = crate::upstream::encoding_of(&response);
        if answered != Some(encoding.byte_encoding()) {
            return Err(UpstreamError::OtherRepresentation { requested: encoding.as_str().to_owned(), answered });
        }
        Ok(response)
    }

    /// Returns the headers of a request for the feed's objects or their metadata.
    pub(super) fn headers(&self, kind: UpstreamRequestKind, accept: &'static str) -> HeaderMap {
        headers(&self.feed.spec.key, kind, accept, self.wants_plain.load(Ordering::Relaxed))
    }

    /// Records that a list could not be read. If its compressed body is damaged, later lists are requested plain, and the
    /// next stream with whole events.
    pub(super) fn record_failed_list(&self, error: &UpstreamError) {
        if let UpstreamError::Wire(WireError::Gzip) = error {
            self.wants_plain.store(true, Ordering::Relaxed);
        }
    }
}

impl UpstreamWatchStream {
    /// Returns the server at the other end of the watch.
    pub(super) fn server(&self) -> &UpstreamServer {
        self.body.server()
    }

    /// Whether upstream is a proxy that responds from its cache.
    pub(super) fn is_from_memory(&self) -> bool {
        self.body.is_from_memory()
    }

    /// Records that the state at the start of the stream is complete. If it is compressed, it is valid only with the
    /// checksum after it.
    pub(super) async fn end_list(&mut self) -> Result<(), WatchStreamEnd> {
        // The first events may be compressed too.
        let mut left = FRAME_BYTES_MAX;
        while self.body.is_in_compressed_part()
            && let Some(data) = self.receive().await.map_err(|ended| self.failed(ended))?
        {
            let damaged = || self.failed(UpstreamError::Wire(WireError::Gzip).into());
            left = left.checked_sub(data.len()).ok_or_else(damaged)?;
            self.splitter.push(&data);
        }
        self.body.mark_listed();
        Ok(())
    }

    /// Prepends items that have already been read to the stream.
    pub(super) fn preceded_by(self, ahead: VecDeque<StreamItem>) -> Self {
        Self { ahead, ..self }
    }

    /// Indexes the feed's objects, if the server sends differences to them.
    pub(super) async fn index_deltas(&mut self) {
        if let Some(deltas) = &mut self.deltas {
            deltas.index().await;
        }
    }

    /// Returns the next item of the watch. Cancel-safe: bytes that were read stay in the splitter.
    pub(super) async fn next(&mut self, reader: &ObjectReader) -> Result<StreamItem, WatchStreamEnd> {
        let item = match self.ahead.pop_front() {
            Some(item) => item,
            None => {
                let frame = self.next_frame().await.map_err(|ended| self.failed(ended))?;
                self.decoded(reader, frame).map_err(|error| self.failed(error.into()))?
            }
        };
        if std::mem::take(&mut self.is_substitute) {
            self.wants_plain.store(false, Ordering::Relaxed);
        }
        self.last_item = Instant::now();
        Ok(item)
    }

    /// Records how the stream failed. If only a proxy could have sent what cannot be read, later streams and lists are
    /// requested plain.
    pub(super) fn failed(&self, ended: WatchStreamEnd) -> WatchStreamEnd {
        let error = match ended {
            // The checksum of what was decoded has not been received.
            WatchStreamEnd::Failed(UpstreamError::Wire(_) | UpstreamError::NotInitial(_))
                if self.body.is_in_compressed_part() =>
            {
                WireError::Gzip
            }
            WatchStreamEnd::Failed(UpstreamError::Wire(error)) => error,
            ended => return ended,
        };
        if let WireError::Gzip | WireError::Delta(_) = error {
            self.wants_plain.store(true, Ordering::Relaxed);
        }
        UpstreamError::Wire(error).into()
    }

    /// Reads the first frame ahead. It may be a difference to an object that is not indexed yet.
    pub(super) async fn peek_frame(&mut self) -> Result<Bytes, WatchStreamEnd> {
        let frame = self.next_frame().await?;
        self.peeked = Some(frame.clone());
        Ok(frame)
    }

    async fn next_frame(&mut self) -> Result<Bytes, WatchStreamEnd> {
        loop {
            let ready = self.peeked.take().map_or_else(|| self.splitter.next_frame(), |frame| Ok(Some(frame)));
            if let Some(frame) = ready.map_err(UpstreamError::Wire)? {
                return Ok(frame);
            }
            match self.receive().await? {
                Some(data) => self.splitter.push(&data),
                None => {
                    // An incomplete last frame is an error, and the watch resumes before it.
                    self.splitter.finish().map_err(UpstreamError::Wire)?;
                    return Err(WatchStreamEnd::Closed);
                }
            }
        }
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, WatchStreamEnd> {
        let data = timeout_at(self.last_item + SILENCE_MAX, self.body.data()).await;
        Ok(data.map_err(|_| WatchStreamEnd::IdleTimeout)??)
    }

    fn decoded(&mut self, reader: &ObjectReader, frame: Bytes) -> Result<StreamItem, UpstreamError> {
        let Some(deltas) = &mut self.deltas else { return decoded(reader, frame) };
        let frame = if is_delta(&frame) { deltas.frame(&frame).map_err(WireError::from)? } else { frame };
        let item = decoded(reader, frame)?;
        if let StreamItem::Change { change, .. } = &item {
            deltas.record(change);
        }
        Ok(item)
    }

    /// Reads until a bookmark shows up to which version the changes are complete. Returns the changes and that version.
    /// Fails if the stream ends before, or if the changes exceed [`CAUGHT_UP_BYTES_MAX`].
    pub(super) async fn until_bookmark(
        &mut self,
        reader: &ObjectReader,
    ) -> Result<(Vec<ObjectChange>, ResourceVersion), WatchStreamEnd> {
        let (mut changes, mut bytes) = (Vec::new(), 0);
        while bytes <= CAUGHT_UP_BYTES_MAX {
            match self.next(reader).await? {
                StreamItem::Change { change, .. } => {
                    bytes += change.frame.as_ref().map_or(0, Bytes::len);
                    changes.push(change);
                }
                StreamItem::Bookmark { rv, .. } => return Ok((changes, rv)),
            }
        }
        Err(UpstreamError::TooLarge(CAUGHT_UP_BYTES_MAX).into())
    }
}

/// Decodes a frame. An ERROR event is [`UpstreamError::Refused`].
pub(super) fn decoded(reader: &ObjectReader, frame: Bytes) -> Result<StreamItem, UpstreamError> {
    match reader.watch_event(frame)? {
        WatchItem::Change { event_type, object, frame } => {
            let change = ObjectChange { event_type, object, frame: Some(frame) };
            Ok(StreamItem::Change { change, more: Vec::new() })
        }
        WatchItem::Bookmark { object, rv, initial_events_end } => {
            Ok(StreamItem::Bookmark { object, rv, initial_events_end })
        }
        WatchItem::Error { status } => Err(UpstreamError::Refused(status)),
    }
}

fn headers(key: &FeedKey, kind: UpstreamRequestKind, accept: &'static str, wants_plain: bool) -> HeaderMap {
    let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
    // The length of compressed Secrets would show to the network how alike they are.
    if kind == UpstreamRequestKind::Short && !key.gvr.is_secrets() && !wants_plain {
        headers.insert(PROXY_ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers
}

/// Returns the `Accept` header for a feed of this encoding. Protobuf is followed by JSON, so that a server without
/// protobuf responds in JSON rather than with a 406 (R-ACCEPT-3).
fn accept(encoding: FeedEncoding) -> &'static str {
    match encoding {
        FeedEncoding::Json => "application/json",
        FeedEncoding::Protobuf => "application/vnd.kubernetes.protobuf,application/json",
        FeedEncoding::Table => TABLE_ACCEPT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feeds::FeedScope;
    use kubeapi::Gvr;

    #[test]
    fn lists_accept_gzip_from_proxies_alone_but_not_of_secrets() {
        for (group, resource, kind, wants_plain, expected) in [
            ("", "pods", UpstreamRequestKind::Short, false, true),
            ("", "pods", UpstreamRequestKind::Short, true, false),
            ("", "pods", UpstreamRequestKind::Watch, false, false),
            ("", "secrets", UpstreamRequestKind::Short, false, false),
            ("", "secrets", UpstreamRequestKind::Watch, false, false),
            ("example.org", "secrets", UpstreamRequestKind::Short, false, true),
        ] {
            let gvr = Gvr::new(group, "v1", resource);
            let key = FeedKey { gvr, scope: FeedScope::Cluster, encoding: FeedEncoding::Json };
            let headers = headers(&key, kind, "application/json", wants_plain);
            assert_eq!(headers.contains_key(PROXY_ACCEPT_ENCODING), expected, "{key} {kind:?}");
            assert!(!headers.contains_key(http::header::ACCEPT_ENCODING));
        }
    }
}
