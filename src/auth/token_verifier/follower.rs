//! Follows the metadata of the objects that tokens are bound to, one kind at a time, while they are used.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::{Instant, sleep, timeout};

use super::bound_objects::{BoundKind, BoundObjects, key, parse_uid};
use super::keys::TokenKeys;
use crate::upstream::{
    JsonListPage, METADATA_LIST, UpstreamClient, UpstreamError, UpstreamRequestCause, UpstreamRequestKind, parse_json,
};
use crate::wire::{FeedEncoding, FrameSplitter};
use base::{Backoff, BackoffBounds};

/// Follows one kind of objects.
pub(super) struct BoundObjectFollower {
    pub(super) client: UpstreamClient,
    pub(super) objects: Arc<BoundObjects>,
    pub(super) keys: Arc<TokenKeys>,
    pub(super) kind: BoundKind,
    /// The node whose objects are followed; `None` for all.
    pub(super) node: Option<Arc<str>>,
    /// How long the kind is followed after its last use.
    pub(super) idle_max: Duration,
}

#[derive(Deserialize)]
struct PartialObject {
    metadata: ObjectMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMetadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    object: PartialObject,
}

const PAGE_LIMIT: usize = 1_000;
/// The maximum size of a page, and of an event, in bytes.
const PAGE_BYTES_MAX: usize = 128 << 20;
const EVENT_BYTES_MAX: usize = 16 << 20;
/// The maximum time without an event: the apiserver sends a bookmark every minute (R-UPSTREAM-2).
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// The shortest duration of a watch that upstream has not refused. It ends watches after half an hour to an hour.
const ORDINARY_MIN: Duration = Duration::from_secs(1);
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

impl BoundObjectFollower {
    /// Follows the objects whenever they are used. Never returns.
    pub(super) async fn run(self) {
        let mut is_reported = false;
        loop {
            self.objects.needed(self.kind).await;
            tokio::select! {
                biased;
                () = self.objects.idle(self.kind, self.idle_max) => {}
                never = self.follow(&mut is_reported) => match never {},
            }
        }
    }

    async fn follow(&self, is_reported: &mut bool) -> Infallible {
        let (mut backoff, mut refusals) = (Backoff::default(), 0);
        loop {
            let mut live_since = None;
            let Err(ended) = self.list_and_watch(&mut live_since).await;
            if let Some(since) = live_since {
                backoff.succeeded(since);
                refusals = 0;
            }
            // An apiserver that restarts may have other keys.
            self.keys.expire();
            let resource = self.kind.resource();
            let delay = match ended.code() {
                Some(401 | 403 | 404 | 406) => {
                    if !std::mem::replace(is_reported, true) {
                        tracing::warn!(
                            resource, error = %ended,
                            "cannot watch objects that tokens are bound to; such tokens are reviewed by the apiserver"
                        );
                    }
                    refusals += 1;
                    BackoffBounds::REFUSED.after(refusals)
                }
                _ => {
                    tracing::debug!(resource, error = %ended, "watch of bound objects ended");
                    refusals = 0;
                    backoff.failed(Instant::now())
                }
            };
            sleep(delay).await;
        }
    }

    /// Lists the objects and follows them until that fails. A new list follows any failure, because the storage may
    /// have been restored from a backup. `live_since` is when the first watch began that sent something.
    async fn list_and_watch(&self, live_since: &mut Option<Instant>) -> Result<Infallible, UpstreamError> {
        let mut version = self.list().await?;
        self.objects.reached(self.kind, version);
        loop {
            let began = Instant::now();
            let mut last_sign = began;
            let ended = self.watch(&mut version, &mut last_sign).await;
            if last_sign > began {
                live_since.get_or_insert(began);
            }
            self.objects.set_live(self.kind, Some(last_sign));
            self.objects.reached(self.kind, version);
            ended?;
            if began.elapsed() < ORDINARY_MIN {
                return Err(UpstreamError::Timeout(ORDINARY_MIN));
            }
        }
    }

    /// Lists all objects in pages. Returns the version of the list.
    async fn list(&self) -> Result<u64, UpstreamError> {
        let mut next = String::new();
        self.objects.begin_list(self.kind);
        loop {
            let path = self.path(&format!("limit={PAGE_LIMIT}{next}"));
            let (cause, kind) = (UpstreamRequestCause::Identity, UpstreamRequestKind::Short);
            let response = self.client.open(cause, kind, &path, METADATA_LIST).await?;
            let page = self.client.read_at_most(response, PAGE_BYTES_MAX).await?;
            let JsonListPage { metadata, items } = parse_json(&page, &path)?;
            for object in items {
                let PartialObject { metadata } = parse_json(object.get().as_bytes(), &path)?;
                self.put(metadata)?;
            }
            let Some(token) = metadata.continue_.filter(|token| !token.is_empty()) else {
                let version = parse_version(&metadata.resource_version.unwrap_or_default(), &path)?;
                let (resource, objects) = (self.kind.resource(), self.objects.end_list(self.kind));
                tracing::info!(resource, objects, version, "objects that tokens are bound to are known");
                return Ok(version);
            };
            // Tokens are base64url without padding, so they need no escaping.
            let continued = format!("&continue={token}");
            if continued == next {
                return Err(UpstreamError::EndlessPages);
            }
            next = continued;
        }
    }

    /// Follows the objects from a version, which it advances, until upstream ends the watch. `last_sign` is when it last
    /// sent something. A watch that sends nothing fails: a server that has stopped to send may accept the next one, too.
    async fn watch(&self, version: &mut u64, last_sign: &mut Instant) -> Result<(), UpstreamError> {
        let path = self.path(&format!("watch=true&allowWatchBookmarks=true&resourceVersion={version}"));
        let (cause, kind) = (UpstreamRequestCause::Identity, UpstreamRequestKind::Watch);
        let mut body = self.client.open(cause, kind, &path, METADATA).await?.into_body();
        self.objects.set_live(self.kind, None);
        let mut splitter = FrameSplitter::new(FeedEncoding::Json, EVENT_BYTES_MAX);
        loop {
            while let Some(frame) = splitter.next_frame()? {
                *version = self.apply(&frame, *version, &path)?;
            }
            let silent = |_| UpstreamError::Timeout(SILENCE_MAX);
            let Some(frame) = timeout(SILENCE_MAX, body.frame()).await.map_err(silent)? else {
                splitter.finish()?;
                return Ok(());
            };
            *last_sign = Instant::now();
            if let Ok(data) = frame.map_err(UpstreamError::ConnectionLost)?.into_data() {
                splitter.push(&data);
            }
        }
    }

    /// Applies an event after version `before`. Returns its version.
    fn apply(&self, frame: &[u8], before: u64, path: &str) -> Result<u64, UpstreamError> {
        // An ERROR event, such as an expired version, has another object and ends the watch.
        let WatchEvent { event_type, object: PartialObject { metadata } } = parse_json(frame, path)?;
        let version = parse_version(&metadata.resource_version, path)?;
        match event_type {
            // Another server, or a restored storage.
            _ if version < before => return Err(UpstreamError::OtherDocument(path.to_owned())),
            "ADDED" | "MODIFIED" => self.put(metadata)?,
            "DELETED" => self.objects.remove(self.kind, &key(&metadata.namespace, &metadata.name)),
            "BOOKMARK" => {}
            _ => return Err(UpstreamError::OtherDocument(path.to_owned())),
        }
        Ok(version)
    }

    fn put(&self, object: ObjectMetadata) -> Result<(), UpstreamError> {
        let ObjectMetadata { name, namespace, uid, deletion_timestamp, .. } = object;
        let is_deleting = deletion_timestamp.is_some();
        let is_kept = self.objects.put(self.kind, key(&namespace, &name), parse_uid(&uid), is_deleting);
        is_kept.then_some(()).ok_or(UpstreamError::OverBudget)
    }

    fn path(&self, query: &str) -> String {
        let selector = match (&self.node, self.kind) {
            (Some(node), BoundKind::Pod) => format!("&fieldSelector=spec.nodeName%3D{node}"),
            (Some(node), BoundKind::Node) => format!("&fieldSelector=metadata.name%3D{node}"),
            _ => String::new(),
        };
        format!("/api/v1/{}?{query}{selector}", self.kind.resource())
    }
}

fn parse_version(version: &str, path: &str) -> Result<u64, UpstreamError> {
    version.parse().map_err(|_| UpstreamError::OtherDocument(path.to_owned()))
}
