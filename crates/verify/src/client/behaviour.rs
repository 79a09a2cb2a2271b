use std::time::Duration;

use crate::object_set::ObjectSet;
use crate::record::{ClientTransport, RecordedEncoding, RequestServerRole};
use crate::run_context::{VerifyRunContext, between};

/// The properties of a client for a whole run, drawn from the seed and its number.
#[derive(Clone, Debug)]
pub(crate) struct ClientBehaviour {
    pub(crate) role: ClientRole,
    pub(crate) server: RequestServerRole,
    pub(crate) encoding: RecordedEncoding,
    pub(crate) transport: ClientTransport,
    /// The namespace that the client reads; `None` means all.
    pub(crate) namespace: Option<String>,
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
    pub(crate) bookmarks: bool,
}

/// The kind of requests that a verifying client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientRole {
    /// A client that lists, watches from there, resumes, and relists if necessary.
    Informer,
    /// An informer whose list is in the watch (`sendInitialEvents`).
    Streamer,
    /// A client that watches without a version or from 0, as very old clients do.
    Legacy,
    /// A client that lists, in all supported ways.
    Lister,
    /// A client that gets single objects.
    Reader,
    /// A client that watches from versions that informers rarely use: expired, recent, future.
    Prober,
}

/// The roles of sixteen consecutive clients. A few clients already cover all roles.
const ROLES: [ClientRole; 16] = [
    ClientRole::Informer,
    ClientRole::Streamer,
    ClientRole::Lister,
    ClientRole::Informer,
    ClientRole::Prober,
    ClientRole::Reader,
    ClientRole::Streamer,
    ClientRole::Informer,
    ClientRole::Legacy,
    ClientRole::Informer,
    ClientRole::Streamer,
    ClientRole::Lister,
    ClientRole::Informer,
    ClientRole::Informer,
    ClientRole::Streamer,
    ClientRole::Informer,
];

/// The roles of clients that resume for as long as they can.
const INFORMERS: [ClientRole; 2] = [ClientRole::Informer, ClientRole::Streamer];

/// The duration of one watch, and who ends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchDuration {
    /// The query parameter `timeoutSeconds`.
    pub(crate) timeout_seconds: Option<u32>,
    /// The time after which the client ends the watch.
    pub(crate) cut: Option<Duration>,
}

impl ClientBehaviour {
    pub(crate) fn draw(client: u32, scene: &VerifyRunContext, rng: &mut fastrand::Rng) -> Self {
        let world = &scene.world;
        let of_all = if scene.informers { &INFORMERS[..] } else { &ROLES[..] };
        let role = of_all[client as usize % of_all.len()];
        // All values are drawn whether or not they are used, so that later draws do not depend on them.
        let (encoding, transport) = (rng.usize(..), rng.usize(..));
        let encodings = &scene.encodings;
        // Half of all clients read JSON, the only encoding whose whole content is compared.
        let of_encodings = if encoding % 2 == 0 { 0 } else { encoding / 2 % encodings.len() };
        let namespace = rng.usize(..world.namespaces.len());
        let namespace = rng.bool().then(|| world.namespaces[namespace].clone());
        let (labels, fields) = (ObjectSet::label_selector(rng), world.field_selector(rng));
        // A resuming client must learn its position. So informers request bookmarks, and do not use field selectors
        // that may never match an object.
        let (selects, bookmarks) = (rng.u8(..10), rng.u8(..4) > 0 || scene.informers);
        let selects_fields = matches!(selects, 4..=5) && !scene.informers;
        let servers: Vec<_> = scene.servers().collect();
        let server = if servers.len() > 1 { servers[rng.usize(..servers.len())] } else { servers[0] };
        Self {
            role,
            server,
            encoding: encodings[of_encodings],
            transport: scene.transports[transport % scene.transports.len()],
            namespace,
            labels: matches!(selects, 0..=4).then_some(labels),
            fields: selects_fields.then_some(fields),
            bookmarks,
        }
    }

    /// Returns a client that follows everything directly at the apiserver, for comparison.
    pub(crate) fn twin(encoding: RecordedEncoding) -> Self {
        Self {
            role: ClientRole::Informer,
            server: RequestServerRole::Direct,
            encoding,
            transport: ClientTransport::H2,
            namespace: None,
            labels: None,
            fields: None,
            bookmarks: true,
        }
    }

    /// Returns the `limit` of a list that must be paged. A list of all namespaces is not paged if a field selector
    /// narrows it to one. In that case kube-apiserver (1.37) omits the namespace from its continue tokens, and returns
    /// nothing after the first page.
    pub(crate) fn limit(&self, fields: Option<&str>, max: u32, rng: &mut fastrand::Rng) -> Option<String> {
        let drawn = (rng.u8(..3) == 0).then(|| rng.u32(1..=max).to_string());
        let narrowed = self.namespace.is_none() && fields.is_some_and(|fields| fields.contains("metadata.namespace="));
        drawn.filter(|_| !narrowed)
    }

    pub(crate) fn path(&self, world: &ObjectSet) -> String {
        world.resource.collection(self.namespace.as_deref())
    }
}

impl WatchDuration {
    pub(crate) fn draw(rng: &mut fastrand::Rng, pace: u32) -> Self {
        let (timeout_seconds, cut) = (rng.u32(2..=8), between(rng, Duration::from_millis(200), Duration::from_secs(6)));
        let (timeout_seconds, cut) = (timeout_seconds * pace, cut * pace);
        match rng.u8(..8) {
            // The client ends a watch without a timeout too. Otherwise it would not resume from it before the end of
            // the run.
            0 => Self { cut: Some(3 * cut), ..Self::default() },
            1..=3 => Self { cut: Some(cut), ..Self::default() },
            4..=6 => Self { timeout_seconds: Some(timeout_seconds), ..Self::default() },
            _ => Self { timeout_seconds: Some(timeout_seconds), cut: Some(cut) },
        }
    }

    /// Draws the length of an informer's watch, which always has a timeout. Some informers end it earlier.
    pub(crate) fn of_informer(rng: &mut fastrand::Rng) -> Self {
        let timeout_seconds = Some(rng.u32(3..=12));
        let cut = between(rng, Duration::from_millis(300), Duration::from_secs(8));
        Self { timeout_seconds, cut: (rng.u8(..3) == 0).then_some(cut) }
    }
}
