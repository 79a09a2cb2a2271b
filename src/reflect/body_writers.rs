//! Which servers wrote the bodies that a feed holds, which server it follows, and whether they write the same bytes
//! (F10).

use std::sync::Arc;

use crate::feeds::Feed;
use crate::upstream::{Build, Server};
use crate::wire::Encoding;
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// The servers behind one feed's bodies. The reflector says which server it reads from; the [`Renewer`](super::renew)
/// finds out of which release these servers are.
#[derive(Debug)]
pub(super) struct BodyWriters {
    feed: Arc<Feed>,
    by: watch::Sender<By>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct By {
    /// The servers that may have written one of the bodies.
    bodies: Vec<Server>,
    /// The server whose stream is followed, or was last.
    stream: Option<Server>,
    /// The version that the feed had when the last of these came.
    since: ResourceVersion,
    /// Counts the changes of the two fields above.
    pub(super) count: u64,
}

/// Whether the servers that wrote the bodies and the one that is followed write the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EncoderMatch {
    /// All bodies are as the server that is followed writes them.
    Present,
    /// It is not known yet.
    Open,
    /// Some bodies are written differently.
    Other,
}

/// How many servers are kept apart: there are a few while a control plane is upgraded.
const SERVERS_MAX: usize = 16;

impl BodyWriters {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        Self { feed, by: watch::Sender::default() }
    }

    /// Whether a feed has to know. No row of a Table is ever shown as a state, and events stay as they were.
    pub(super) fn concerns(feed: &Feed) -> bool {
        feed.spec.key.encoding != Encoding::Table
    }

    pub(super) fn follow(&self) -> watch::Receiver<By> {
        self.by.subscribe()
    }

    /// Whether this server certainly writes what is held in the same bytes: it, the one that is followed and those who
    /// wrote the bodies say that they are of one build.
    pub(super) fn writes_as_held(&self, server: &Server) -> bool {
        let by = self.by.borrow();
        let Some(stream) = by.stream.as_ref().filter(|stream| stream.build().is_some()) else { return false };
        by.authorship() == EncoderMatch::Present && server.writes_as(stream) == Some(true)
    }

    /// What these have listed is about to be taken in: no state is shown until all of it is, unless they write the same
    /// as the one who was followed.
    pub(super) fn takes_in(&self, servers: &[Server]) {
        self.by.send_modify(|by| {
            servers.iter().for_each(|server| by.add(server));
            by.count += 1;
        });
        self.weigh(false);
    }

    /// All bodies are by these, and no stream is open.
    pub(super) fn listed(&self, servers: Vec<Server>) {
        self.by.send_modify(|by| {
            let (count, since) = (by.count + 1, self.feed.reader.progress().rv);
            *by = By { bodies: servers, stream: None, since, count };
        });
        self.weigh(false);
    }

    /// Notes that a stream of this server is open. No state is shown until it is known whether the others write the
    /// same bytes.
    pub(super) fn opened(&self, server: &Server) {
        self.by.send_modify(|by| {
            by.add(server);
            by.stream = Some(server.clone());
            by.since = self.feed.reader.progress().rv;
            by.count += 1;
        });
        self.weigh(false);
    }

    /// Whether nothing was read from another server since.
    pub(super) fn is_at(&self, count: u64) -> bool {
        self.by.borrow().count == count
    }

    /// Notes that all bodies were exchanged for what these servers wrote.
    pub(super) fn renewed(&self, servers: Vec<Server>) {
        self.by.send_modify(|by| {
            by.bodies = servers;
            if let Some(stream) = by.stream.clone() {
                by.add(&stream);
            }
            by.count += 1;
        });
        self.weigh(false);
    }

    /// Whether the release of the server that is followed is certain, whatever others at the same address say.
    pub(super) fn is_certain(&self) -> bool {
        self.by.borrow().stream.as_ref().is_some_and(Server::is_certain)
    }

    /// The build of the server that is followed, where a proxy says it of every answer.
    pub(super) fn told_by_a_proxy(&self) -> Option<Arc<Build>> {
        let by = self.by.borrow();
        by.stream.as_ref().filter(|stream| stream.is_behind_a_proxy()).and_then(Server::build)
    }

    /// Whether this server certainly writes other bytes than the one that is followed.
    pub(super) fn writes_otherwise(&self, server: &Server) -> bool {
        self.by.borrow().stream.as_ref().and_then(|stream| server.writes_as(stream)) == Some(false)
    }

    /// Notes that the server at the address of the followed one says, again and again, that it is this build.
    pub(super) fn presume(&self, build: &Build) {
        self.by.send_modify(|by| {
            if let Some(stream) = &by.stream {
                by.since = self.feed.reader.progress().rv;
                // The bodies that it wrote while it was thought to be another.
                let before = stream.known();
                stream.presume(build);
                by.bodies.retain(|server| !server.is(stream));
                by.bodies.push(before);
            }
            by.count += 1;
        });
        self.weigh(false);
    }

    /// Shows or hides states, by what is known now. With `indulgent` they are shown also if it is not known, for it may
    /// never be. But where servers have said of which release they are, one that has just started will say so too, or
    /// is given up soon.
    pub(super) fn weigh(&self, indulgent: bool) -> EncoderMatch {
        if !Self::concerns(&self.feed) {
            return EncoderMatch::Present;
        }
        let (authorship, minor, writer, since) = {
            let by = self.by.borrow();
            let minor = by.stream.as_ref().and_then(Server::build).map(|build| build.minor);
            (by.authorship(), minor, by.writer(), by.since)
        };
        let indulgent = indulgent && authorship == EncoderMatch::Open && !self.by.borrow().has_been_told();
        let may_be_shown = authorship == EncoderMatch::Present || indulgent;
        if !may_be_shown {
            self.feed.vintage.set_present(false);
        }
        // In this order: new bodies are rendered as of the new release, and old ones not at all while they are shown to
        // nobody.
        if let Some(minor) = minor {
            self.is_of(minor);
        }
        if self.feed.vintage.set_written(writer, since) {
            // Watches of proxies end, for whoever goes on hears that it is another one.
            self.feed.reader.nudge();
        }
        if may_be_shown {
            self.feed.vintage.set_present(true);
        }
        authorship
    }

    /// Sets the release. What was proven of renderings, or refused, was so for another one.
    fn is_of(&self, minor: u32) {
        let was = self.feed.renderings.release();
        if was == Some(minor) {
            return;
        }
        if let Some(was) = was {
            tracing::warn!(feed = %self.feed.spec.key, was, now = minor, "upstream is of another release");
            self.feed.renderings.start_over();
            self.feed.reader.forget_derived();
            self.feed.reader.nudge();
        }
        self.feed.renderings.set_release(minor);
    }
}

impl By {
    pub(super) fn authorship(&self) -> EncoderMatch {
        // If a server does not say of which release it is, nobody can tell when it changes.
        let Some(stream) = self.stream.as_ref().filter(|stream| !stream.is_mute()) else {
            return EncoderMatch::Present;
        };
        let as_it: Vec<_> = self.bodies.iter().map(|server| server.writes_as(stream)).collect();
        if as_it.contains(&Some(false)) {
            EncoderMatch::Other
        } else if as_it.contains(&None) {
            EncoderMatch::Open
        } else {
            EncoderMatch::Present
        }
    }

    /// The build that writes what is told from now on.
    fn writer(&self) -> Option<Arc<Build>> {
        match (&self.stream, &*self.bodies) {
            (Some(server), _) | (None, [server]) => server.build(),
            (None, _) => None,
        }
    }

    /// Whether one of the servers that wrote the bodies has said of which release it is.
    fn has_been_told(&self) -> bool {
        self.bodies.iter().any(|server| server.build().is_some())
    }

    /// The servers of which the release is not known.
    pub(super) fn unknown(&self) -> Vec<Server> {
        let mut unknown: Vec<Server> = Vec::new();
        for server in self.bodies.iter().chain(&self.stream).filter(|server| !server.is_known()) {
            if !unknown.iter().any(|known| known.is(server)) {
                unknown.push(server.clone());
            }
        }
        unknown
    }

    fn add(&mut self, server: &Server) {
        if self.bodies.len() < SERVERS_MAX && !self.bodies.iter().any(|known| known.writes_as(server) == Some(true)) {
            self.bodies.push(server.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheConfig;
    use crate::feeds::{Demand, FeedKey, FeedSpec, Feeds, Scope};
    use kubeapi::Gvr;

    fn server(minor: u32, patch: u32) -> Server {
        let version = format!(r#"{{"major": "1", "minor": "{minor}", "gitVersion": "v1.{minor}.{patch}"}}"#);
        Server::saying(Build::of(&version))
    }

    fn feed(encoding: Encoding) -> Arc<Feed> {
        let (feeds, mut demands) = Feeds::new(CacheConfig::default());
        let key = FeedKey { gvr: Gvr::new("", "v1", "pods"), scope: Scope::Cluster, encoding };
        let _lease = feeds.handle(&FeedSpec::like_pods(key), None).expect("there is room");
        let Demand { feed, .. } = demands.try_recv().expect("it is demanded");
        feed
    }

    fn written() -> (BodyWriters, Arc<Feed>) {
        let feed = feed(Encoding::Protobuf);
        (BodyWriters::new(feed.clone()), feed)
    }

    #[test]
    fn states_are_shown_while_one_build_has_written_all_and_is_followed() {
        let (written, feed) = written();
        let shown = || feed.vintage.is_present();
        let old = server(36, 1);
        written.listed(vec![old.clone()]);
        written.opened(&old);
        assert_eq!((shown(), feed.renderings.release()), (true, Some(36)));
        // Another connection, to a server of the same build.
        written.opened(&server(36, 1));
        assert!(shown());
        let new = server(36, 2);
        written.opened(&new);
        assert!(!shown(), "a patch may write otherwise, too");
        // What was told meanwhile is by the new one: back at the old one is not back where it was.
        written.opened(&old);
        assert!(!shown());
        let count = written.follow().borrow().count;
        assert!(written.is_at(count));
        written.renewed(vec![server(36, 1)]);
        assert!(shown() && !written.is_at(count));
        written.opened(&new);
        written.listed(vec![new]);
        assert!(shown(), "all of it was listed anew");
    }

    #[test]
    fn while_a_list_by_another_is_taken_in_no_state_is_shown() {
        let (written, feed) = written();
        let [old, same, new] = [server(36, 1), server(36, 1), server(37, 1)];
        written.listed(vec![old.clone()]);
        written.opened(&old);
        written.takes_in(&[same]);
        assert!(feed.vintage.is_present(), "it writes the same");
        for other in [new, Server::silent()] {
            let count = written.follow().borrow().count;
            written.takes_in(std::slice::from_ref(&other));
            assert!(!feed.vintage.is_present() && !written.is_at(count));
            written.listed(vec![other]);
            assert!(feed.vintage.is_present());
            written.listed(vec![old.clone()]);
            written.opened(&old);
        }
    }

    #[test]
    fn a_list_by_another_than_who_is_followed_does_not_make_states_whole() {
        let (written, feed) = written();
        let [old, new] = [server(36, 1), server(37, 1)];
        written.listed(vec![old.clone()]);
        written.opened(&new);
        written.renewed(vec![old]);
        assert!(!feed.vintage.is_present(), "a balancer had the old one list");
        written.renewed(vec![new]);
        assert!(feed.vintage.is_present());
    }

    #[test]
    fn who_is_not_known_yet_is_waited_for_and_who_does_not_say_is_not() {
        let (written, feed) = written();
        let (list, stream) = (Server::silent(), Server::silent());
        written.listed(vec![list.clone()]);
        written.opened(&stream);
        assert!(!feed.vintage.is_present());
        assert_eq!(written.follow().borrow().unknown().len(), 2);
        list.failed();
        assert_eq!(written.weigh(true), EncoderMatch::Open);
        assert!(feed.vintage.is_present(), "it was asked, and failed");
        written.listed(vec![server(36, 1)]);
        written.opened(&stream);
        assert_eq!(written.weigh(true), EncoderMatch::Open);
        assert!(!feed.vintage.is_present(), "servers of this cluster do say it, if not when they start");
        written.listed(vec![list]);
        written.opened(&Server::saying(None));
        assert_eq!((written.weigh(false), feed.renderings.release()), (EncoderMatch::Present, None));
        assert!(feed.vintage.is_present());
        written.opened(&server(36, 1));
        written.listed(vec![Server::saying(None)]);
        written.opened(&server(36, 1));
        assert!(!feed.vintage.is_present(), "nobody knows who wrote the bodies");
    }

    #[test]
    fn derivations_start_over_at_once_and_behind_the_state() {
        let (written, feed) = written();
        let old = server(36, 1);
        written.listed(vec![old.clone()]);
        written.opened(&old);
        let json = crate::wire::Representation::Object(Encoding::Json);
        let used = crate::wire::Renderer::derived(json, feed.reader.envelope(), 36).expect("pods are in the table");
        feed.renderings.qualify(used.clone());
        written.opened(&server(36, 2));
        assert!(!used.is_revoked(), "the table is that of the minor");
        written.opened(&server(37, 1));
        assert!(used.is_revoked() && !feed.vintage.is_present());
        assert_eq!((feed.renderings.derived().len(), feed.renderings.release()), (0, Some(37)));
    }

    #[test]
    fn rows_of_tables_are_no_state_and_are_not_waited_for() {
        let feed = feed(Encoding::Table);
        let written = BodyWriters::new(feed.clone());
        written.listed(vec![server(36, 1)]);
        written.opened(&server(37, 1));
        assert!(feed.vintage.is_present());
    }

    #[test]
    fn who_is_only_presumed_to_be_something_may_be_taken_for_something_else() {
        let (written, feed) = written();
        let old = server(36, 1);
        written.listed(vec![old.clone()]);
        written.opened(&old);
        assert!(written.is_certain());
        let build = server(37, 1).build().expect("it says so");
        written.presume(&build);
        assert!(!feed.vintage.is_present() && !written.is_certain());
        written.renewed(vec![server(37, 1)]);
        assert!(feed.vintage.is_present());
    }
}
