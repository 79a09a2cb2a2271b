//! Tracks which servers encoded the object bodies of a feed, which server the feed follows, and whether both produce
//! the same bytes (F10).

use std::sync::Arc;

use crate::feeds::Feed;
use crate::upstream::{ServerBuild, UpstreamServer};
use crate::wire::FeedEncoding;
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// The servers that encoded the bodies of one feed. The reflector records the server that it reads from; the
/// [`body_encoding_refresher`](super::body_encoding_refresher) finds out which release each server runs.
#[derive(Debug)]
pub(super) struct BodyEncoderTracker {
    feed: Arc<Feed>,
    by: watch::Sender<BodyEncoderState>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct BodyEncoderState {
    /// The servers that may have encoded at least one of the bodies.
    bodies: Vec<UpstreamServer>,
    /// The server whose stream the feed follows, or followed last.
    stream: Option<UpstreamServer>,
    /// The feed's version when the fields above last changed.
    since: ResourceVersion,
    /// Counts the changes of `bodies` and `stream`.
    pub(super) count: u64,
}

/// Whether the servers that encoded the bodies and the followed server produce the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyEncodingMatch {
    /// All bodies have the encoding of the followed server.
    Match,
    /// Not known yet, because the release of a server is unknown.
    Unknown,
    /// Some bodies have another encoding than that of the followed server.
    Mismatch,
}

/// The maximum number of servers that are tracked separately. During a control-plane upgrade there are a few.
const SERVERS_MAX: usize = 16;

impl BodyEncoderTracker {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        Self { feed, by: watch::Sender::default() }
    }

    /// Whether a feed needs this tracking of encoders. Rows of a Table are never served as a state, and recorded events
    /// keep their bytes.
    pub(super) fn applies_to(feed: &Feed) -> bool {
        feed.spec.key.encoding != FeedEncoding::Table
    }

    pub(super) fn follow(&self) -> watch::Receiver<BodyEncoderState> {
        self.by.subscribe()
    }

    /// Whether `server` is known to encode objects in the bytes that the feed holds. This requires that it, the
    /// followed server and the servers that encoded the bodies all report the same build.
    pub(super) fn writes_like_cache(&self, server: &UpstreamServer) -> bool {
        let by = self.by.borrow();
        let Some(stream) = by.stream.as_ref().filter(|stream| stream.build().is_some()) else { return false };
        by.comparison() == BodyEncodingMatch::Match && server.encodes_like(stream) == Some(true)
    }

    /// Records that the feed is about to apply a list from `servers`. Unless they encode like the followed server, no
    /// state is served until the whole list is applied.
    pub(super) fn will_list_from(&self, servers: &[UpstreamServer]) {
        self.change(|by| servers.iter().for_each(|server| by.add(server)));
    }

    /// Records that `servers` encoded all bodies and that no stream is open.
    pub(super) fn listed(&self, servers: Vec<UpstreamServer>) {
        let since = self.feed.reader.progress().rv;
        self.change(|by| *by = BodyEncoderState { bodies: servers, stream: None, since, count: by.count });
    }

    /// Records that a stream from `server` is open. No state is served until the other servers are known to produce the
    /// same bytes.
    pub(super) fn opened(&self, server: &UpstreamServer) {
        self.change(|by| {
            by.add(server);
            by.stream = Some(server.clone());
            by.since = self.feed.reader.progress().rv;
        });
    }

    /// Whether nothing was read from another server since `count` was taken.
    pub(super) fn is_at(&self, count: u64) -> bool {
        self.by.borrow().count == count
    }

    /// Records that all bodies were replaced by ones that `servers` encoded.
    pub(super) fn renewed(&self, servers: Vec<UpstreamServer>) {
        self.change(|by| {
            by.bodies = servers;
            if let Some(stream) = by.stream.clone() {
                by.add(&stream);
            }
        });
    }

    /// Whether the release of the followed server is certain, whatever other servers at the same address report.
    pub(super) fn is_certain(&self) -> bool {
        self.by.borrow().stream.as_ref().is_some_and(UpstreamServer::is_certain)
    }

    /// Returns the build of the followed server if it is behind a proxy, which reports the build with every response.
    pub(super) fn reported_by_a_proxy(&self) -> Option<Arc<ServerBuild>> {
        let by = self.by.borrow();
        by.stream.as_ref().filter(|stream| stream.is_behind_a_proxy()).and_then(UpstreamServer::build)
    }

    /// Whether `server` is known to produce different bytes than the followed server.
    pub(super) fn encodes_differently(&self, server: &UpstreamServer) -> bool {
        self.by.borrow().stream.as_ref().and_then(|stream| server.encodes_like(stream)) == Some(false)
    }

    /// Records that the server at the address of the followed server repeatedly reports this build.
    pub(super) fn assume_build(&self, build: &ServerBuild) {
        self.change(|by| {
            if let Some(stream) = &by.stream {
                by.since = self.feed.reader.progress().rv;
                // Keeps the earlier identity for the bodies that the server encoded while it was taken for another
                // build.
                let before = stream.frozen();
                stream.assume_build(build);
                by.bodies.retain(|server| !server.is_same(stream));
                by.bodies.push(before);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut BodyEncoderState)) {
        self.by.send_modify(|by| {
            change(by);
            by.count += 1;
        });
        self.update(false);
    }

    /// Shows or hides states according to which servers encoded the bodies, and returns the result of the comparison.
    ///
    /// With `indulgent`, states are also served while the result is [`BodyEncodingMatch::Unknown`], because it may stay
    /// open forever. This does not apply if a server has reported its release: then the other server will report it
    /// too, or is soon treated as one that does not.
    pub(super) fn update(&self, indulgent: bool) -> BodyEncodingMatch {
        if !Self::applies_to(&self.feed) {
            return BodyEncodingMatch::Match;
        }
        let (authorship, minor, writer, since) = {
            let by = self.by.borrow();
            let minor = by.stream.as_ref().and_then(UpstreamServer::build).map(|build| build.minor);
            (by.comparison(), minor, by.writer(), by.since)
        };
        let indulgent = indulgent && authorship == BodyEncodingMatch::Unknown && !self.by.borrow().has_been_reported();
        let may_be_served = authorship == BodyEncodingMatch::Match || indulgent;
        if !may_be_served {
            self.feed.body_release.set_present(false);
        }
        // The order matters. New bodies must be rendered for the new release, and old ones must not be rendered at all
        // while states are hidden.
        if let Some(minor) = minor {
            self.set_release(minor);
        }
        if self.feed.body_release.set_written(writer, since) {
            // Ends the watches of proxies: when they resume, they learn that another build encodes the objects.
            self.feed.reader.wake_all();
        }
        if may_be_served {
            self.feed.body_release.set_present(true);
        }
        authorship
    }

    /// Sets the release of upstream. Resets all qualified and refused renderings, because they were checked against the
    /// previous release.
    fn set_release(&self, minor: u32) {
        let was = self.feed.renderings.release();
        if was == Some(minor) {
            return;
        }
        if let Some(was) = was {
            tracing::warn!(
                feed = %self.feed.spec.key, from = was, to = minor,
                "upstream changed to another Kubernetes minor version"
            );
            self.feed.renderings.start_over();
            self.feed.reader.forget_derived();
            self.feed.reader.wake_all();
        }
        self.feed.renderings.set_release(minor);
    }
}

impl BodyEncoderState {
    pub(super) fn comparison(&self) -> BodyEncodingMatch {
        // If a server does not report its release, a change of its release cannot be detected.
        let Some(stream) = self.stream.as_ref().filter(|stream| !stream.reports_no_build()) else {
            return BodyEncodingMatch::Match;
        };
        let comparisons: Vec<_> = self.bodies.iter().map(|server| server.encodes_like(stream)).collect();
        if comparisons.contains(&Some(false)) {
            BodyEncodingMatch::Mismatch
        } else if comparisons.contains(&None) {
            BodyEncodingMatch::Unknown
        } else {
            BodyEncodingMatch::Match
        }
    }

    /// Returns the build that encodes events from now on.
    fn writer(&self) -> Option<Arc<ServerBuild>> {
        match (&self.stream, &*self.bodies) {
            (Some(server), _) | (None, [server]) => server.build(),
            (None, _) => None,
        }
    }

    /// Whether a server that encoded bodies has reported its release.
    fn has_been_reported(&self) -> bool {
        self.bodies.iter().any(|server| server.build().is_some())
    }

    /// Returns the servers whose release is not known.
    pub(super) fn unknown(&self) -> Vec<UpstreamServer> {
        let mut unknown: Vec<UpstreamServer> = Vec::new();
        for server in self.bodies.iter().chain(&self.stream).filter(|server| !server.is_known()) {
            if !unknown.iter().any(|known| known.is_same(server)) {
                unknown.push(server.clone());
            }
        }
        unknown
    }

    fn add(&mut self, server: &UpstreamServer) {
        if self.bodies.len() < SERVERS_MAX && !self.bodies.iter().any(|known| known.encodes_like(server) == Some(true))
        {
            self.bodies.push(server.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheConfig;
    use crate::feeds::{FeedKey, FeedRegistry, FeedScope, FeedSpec, FeedStartRequest};
    use kubeapi::Gvr;

    fn server(minor: u32, patch: u32) -> UpstreamServer {
        let version = format!(r#"{{"major": "1", "minor": "{minor}", "gitVersion": "v1.{minor}.{patch}"}}"#);
        UpstreamServer::with_build(ServerBuild::of(&version))
    }

    fn feed(encoding: FeedEncoding) -> Arc<Feed> {
        let (feeds, mut demands) = FeedRegistry::new(CacheConfig::default());
        let key = FeedKey { gvr: Gvr::new("", "v1", "pods"), scope: FeedScope::Cluster, encoding };
        let _lease = feeds.handle(&FeedSpec::like_pods(key), None).expect("there is room");
        let FeedStartRequest { feed, .. } = demands.try_recv().expect("it is demanded");
        feed
    }

    fn written() -> (BodyEncoderTracker, Arc<Feed>) {
        let feed = feed(FeedEncoding::Protobuf);
        (BodyEncoderTracker::new(feed.clone()), feed)
    }

    #[test]
    fn states_are_served_only_while_one_build_wrote_all_bodies() {
        let (written, feed) = written();
        let serves = || feed.body_release.is_current();
        let old = server(36, 1);
        written.listed(vec![old.clone()]);
        written.opened(&old);
        assert_eq!((serves(), feed.renderings.release()), (true, Some(36)));
        // Another connection, to a server of the same build.
        written.opened(&server(36, 1));
        assert!(serves());
        let new = server(36, 2);
        written.opened(&new);
        assert!(!serves(), "a patch may write otherwise, too");
        // The new server encoded the events that came in between, so a return to the old server does not restore the
        // match.
        written.opened(&old);
        assert!(!serves());
        let count = written.follow().borrow().count;
        assert!(written.is_at(count));
        written.renewed(vec![server(36, 1)]);
        assert!(serves() && !written.is_at(count));
        written.opened(&new);
        written.listed(vec![new]);
        assert!(serves(), "all of it was listed again");
    }

    #[test]
    fn applying_a_list_from_another_build_hides_states() {
        let (written, feed) = written();
        let [old, same, new] = [server(36, 1), server(36, 1), server(37, 1)];
        written.listed(vec![old.clone()]);
        written.opened(&old);
        written.will_list_from(&[same]);
        assert!(feed.body_release.is_current(), "it writes the same");
        for other in [new, UpstreamServer::with_unknown_build()] {
            let count = written.follow().borrow().count;
            written.will_list_from(std::slice::from_ref(&other));
            assert!(!feed.body_release.is_current() && !written.is_at(count));
            written.listed(vec![other]);
            assert!(feed.body_release.is_current());
            written.listed(vec![old.clone()]);
            written.opened(&old);
        }
    }

    #[test]
    fn list_from_another_build_than_the_watch_hides_states() {
        let (written, feed) = written();
        let [old, new] = [server(36, 1), server(37, 1)];
        written.listed(vec![old.clone()]);
        written.opened(&new);
        written.renewed(vec![old]);
        assert!(!feed.body_release.is_current(), "a balancer had the old one list");
        written.renewed(vec![new]);
        assert!(feed.body_release.is_current());
    }

    #[test]
    fn unknown_build_blocks_states_but_unreported_build_does_not() {
        let (written, feed) = written();
        let (list, stream) = (UpstreamServer::with_unknown_build(), UpstreamServer::with_unknown_build());
        written.listed(vec![list.clone()]);
        written.opened(&stream);
        assert!(!feed.body_release.is_current());
        assert_eq!(written.follow().borrow().unknown().len(), 2);
        list.failed();
        assert_eq!(written.update(true), BodyEncodingMatch::Unknown);
        assert!(feed.body_release.is_current(), "the request failed");
        written.listed(vec![server(36, 1)]);
        written.opened(&stream);
        assert_eq!(written.update(true), BodyEncodingMatch::Unknown);
        assert!(!feed.body_release.is_current(), "servers of this cluster do say it, if not when they start");
        written.listed(vec![list]);
        written.opened(&UpstreamServer::with_build(None));
        assert_eq!((written.update(false), feed.renderings.release()), (BodyEncodingMatch::Match, None));
        assert!(feed.body_release.is_current());
        written.opened(&server(36, 1));
        written.listed(vec![UpstreamServer::with_build(None)]);
        written.opened(&server(36, 1));
        assert!(!feed.body_release.is_current(), "the encoder of the bodies is unknown");
    }

    #[test]
    fn minor_upgrade_of_watched_server_revokes_derived_renderings() {
        let (written, feed) = written();
        let old = server(36, 1);
        written.listed(vec![old.clone()]);
        written.opened(&old);
        let json = crate::wire::Representation::Object(FeedEncoding::Json);
        let used =
            crate::wire::ObjectRenderer::derived(json, feed.reader.envelope(), 36).expect("pods are in the table");
        feed.renderings.qualify(used.clone());
        written.opened(&server(36, 2));
        assert!(!used.is_revoked(), "the table is that of the minor");
        written.opened(&server(37, 1));
        assert!(used.is_revoked() && !feed.body_release.is_current());
        assert_eq!((feed.renderings.all().len(), feed.renderings.release()), (0, Some(37)));
    }

    #[test]
    fn table_feed_ignores_server_build_changes() {
        let feed = feed(FeedEncoding::Table);
        let written = BodyEncoderTracker::new(feed.clone());
        written.listed(vec![server(36, 1)]);
        written.opened(&server(37, 1));
        assert!(feed.body_release.is_current());
    }

    #[test]
    fn presumed_build_change_hides_states_until_relist() {
        let (written, feed) = written();
        let old = server(36, 1);
        written.listed(vec![old.clone()]);
        written.opened(&old);
        assert!(written.is_certain());
        let build = server(37, 1).build().expect("it says so");
        written.assume_build(&build);
        assert!(!feed.body_release.is_current() && !written.is_certain());
        written.renewed(vec![server(37, 1)]);
        assert!(feed.body_release.is_current());
    }
}
