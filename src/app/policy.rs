//! Follows RBAC: after a change, open watches ask again within seconds whether they are still allowed.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::rights::Rights;
use crate::auth::{Affected, Gate, Policy, PolicyChange, PolicyKind};
use crate::base::Tasks;
use crate::cache::{Cursor, FeedState, Pull, Start, View};
use crate::feeds::{FeedHandle, Scope};
use crate::kube::{EventType, Gvr};
use crate::serve::feed_spec;
use crate::wire::{Encoding, Representation};

/// Listens to one kind of RBAC's objects, by an ordinary feed.
struct Listener {
    kind: PolicyKind,
    rights: Rights,
    heard: Arc<Heard>,
    /// The pause before the next attempt when there is no feed or it has ended. An attempt does not reach upstream more
    /// often than a refused request may be repeated.
    again: Duration,
}

/// The state that all listeners share.
struct Heard {
    gate: Gate,
    policy: Mutex<Policy>,
    kinds: Mutex<Vec<PolicyKind>>,
}

/// Bytes pulled at a time.
const ROOM: usize = 256 << 10;

/// Starts a listener for each kind.
pub(super) fn listen(rights: &Rights, gate: &Gate, tasks: &Tasks, again: Duration) {
    let heard = Heard { gate: gate.clone(), policy: Mutex::default(), kinds: Mutex::default() };
    heard.gate.hears_policy(false);
    let heard = Arc::new(heard);
    for kind in PolicyKind::ALL {
        let listener = Listener { kind, rights: rights.clone(), heard: heard.clone(), again };
        tasks.spawn("policy", listener.run());
    }
}

impl Listener {
    async fn run(self) {
        let mut is_told = false;
        loop {
            if let Some(feed) = self.feed() {
                self.listen(&feed).await;
            }
            self.hear(false);
            if !std::mem::replace(&mut is_told, true) {
                let resource = self.kind.resource();
                tracing::warn!(resource, "changes of RBAC are not heard of: open watches are checked once a minute");
            }
            tokio::time::sleep(self.again).await;
        }
    }

    fn feed(&self) -> Option<FeedHandle> {
        if !self.rights.follow_cluster() {
            return None;
        }
        let gvr = Gvr::new("rbac.authorization.k8s.io", "v1", self.kind.resource());
        let resource = self.rights.catalog.find(&gvr).filter(|resource| resource.watchable)?;
        self.rights.feeds.handle(&feed_spec(&resource, Scope::Cluster, resource.encoding), None).ok()
    }

    /// Follows the feed; returns when it has ended, or cannot be read as JSON.
    async fn listen(&self, feed: &FeedHandle) {
        let mut state = feed.reader.watch_state();
        loop {
            let Ok(now) = state.wait_for(|state| *state != FeedState::Syncing).await.map(|state| *state) else {
                return;
            };
            if matches!(now, FeedState::Ended(_)) {
                return;
            }
            let Some(mut cursor) = self.begin(feed).await else { return };
            let mut frames = Vec::new();
            while pull(&mut cursor, &mut frames).await {
                frames.drain(..).for_each(|frame| self.take(&frame));
            }
            // The feed has begun a new history or has ended: changes may have been missed.
            self.hear(false);
        }
    }

    /// Takes in the current objects and returns a cursor to what follows; `None` if they cannot be read as JSON.
    async fn begin(&self, feed: &FeedHandle) -> Option<Cursor> {
        let json = Representation::Object(Encoding::Json);
        let renderer = if feed.spec.key.encoding == Encoding::Json {
            feed.reader.verbatim().clone()
        } else {
            feed.renderings.settled(json).await.ok()?
        };
        let opened = feed.reader.open(Start::Current, View::everything()).ok()?;
        self.heard.policy.lock().forget(self.kind);
        let snapshot = opened.snapshot?;
        let cursor = opened.cursor.rendered_by(renderer);
        for object in snapshot.select(&View::everything(), feed.reader.namespaced(), None) {
            let body = feed.reader.body(object, cursor.renderer()).ok()?;
            let frame = cursor.renderer().envelope().frame(EventType::Added, &body);
            if let Ok(change) = serde_json::from_slice::<PolicyChange>(&frame) {
                self.heard.policy.lock().apply(self.kind, change);
            }
        }
        self.hear(true);
        self.heard.gate.policy_changed(&Affected::Everyone);
        Some(cursor)
    }

    fn take(&self, frame: &Bytes) {
        let affected = match serde_json::from_slice::<PolicyChange>(frame) {
            Ok(change) => self.heard.policy.lock().apply(self.kind, change),
            Err(error) => {
                tracing::warn!(%error, resource = self.kind.resource(), "an object of RBAC cannot be read");
                Some(Affected::Everyone)
            }
        };
        if let Some(affected) = affected {
            self.rights.changed();
            self.heard.gate.policy_changed(&affected);
        }
    }

    fn hear(&self, is_heard: bool) {
        let mut kinds = self.heard.kinds.lock();
        kinds.retain(|kind| *kind != self.kind);
        if is_heard {
            kinds.push(self.kind);
        }
        self.heard.gate.hears_policy(kinds.len() == PolicyKind::ALL.len());
    }
}

/// Completes when there are frames; false if the history that the cursor belongs to is lost.
async fn pull(cursor: &mut Cursor, frames: &mut Vec<Bytes>) -> bool {
    std::future::poll_fn(|cx| match cursor.pull(ROOM, Some(cx.waker()), frames) {
        Pull::Frames { .. } => Poll::Ready(true),
        Pull::CaughtUp { .. } => Poll::Pending,
        Pull::Expired { .. } | Pull::Refused(_) | Pull::Stopped(_) => Poll::Ready(false),
    })
    .await
}
