use std::time::Duration;

use crate::record::{AskedServer, RecordedEncoding, Transport};
use crate::scene::{Scene, between};
use crate::world::World;

/// What a client is, for the whole of a run: drawn from the seed and its number.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    pub(crate) role: Role,
    pub(crate) server: AskedServer,
    pub(crate) encoding: RecordedEncoding,
    pub(crate) transport: Transport,
    /// The namespace that it asks about; all of them without it.
    pub(crate) namespace: Option<String>,
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
    pub(crate) bookmarks: bool,
}

/// What a client does all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Lists, watches from there, goes on from where it was, and lists again when it must.
    Informer,
    /// The same with the list in the watch (`sendInitialEvents`).
    Streamer,
    /// Watches without a version or from 0, as clients did that are older than both.
    Legacy,
    /// Lists, in all the ways there are.
    Lister,
    /// Gets single objects.
    Reader,
    /// Watches from versions that informers rarely have: long gone, of a moment ago, of the future.
    Prober,
}

/// The roles of sixteen clients in a row: the first ones already do something of everything.
const ROLES: [Role; 16] = [
    Role::Informer,
    Role::Streamer,
    Role::Lister,
    Role::Informer,
    Role::Prober,
    Role::Reader,
    Role::Streamer,
    Role::Informer,
    Role::Legacy,
    Role::Informer,
    Role::Streamer,
    Role::Lister,
    Role::Informer,
    Role::Informer,
    Role::Streamer,
    Role::Informer,
];

/// The roles of those who all go on for as long as they can.
const INFORMERS: [Role; 2] = [Role::Informer, Role::Streamer];

/// How long one watch goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchLength {
    /// `timeoutSeconds`.
    pub(crate) timeout_seconds: Option<u32>,
    /// The client leaves by itself.
    pub(crate) cut: Option<Duration>,
}

impl Behaviour {
    pub(crate) fn draw(client: u32, scene: &Scene, rng: &mut fastrand::Rng) -> Self {
        let world = &scene.world;
        let of_all = if scene.informers { &INFORMERS[..] } else { &ROLES[..] };
        let role = of_all[client as usize % of_all.len()];
        // What has been drawn is used whether or not it is needed: what comes later does not depend on it.
        let (encoding, transport) = (rng.usize(..), rng.usize(..));
        let encodings = &scene.encodings;
        // Half of all clients read JSON, the only encoding whose content is compared whole.
        let of_encodings = if encoding % 2 == 0 { 0 } else { encoding / 2 % encodings.len() };
        let namespace = rng.usize(..world.namespaces.len());
        let namespace = rng.bool().then(|| world.namespaces[namespace].clone());
        let (labels, fields) = (World::label_selector(rng), world.field_selector(rng));
        // Whoever wants to go on from where it was must hear how far that is: informers ask for bookmarks, and select
        // by nothing that no object may ever match.
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

    /// One that follows everything at the apiserver itself, for comparison.
    pub(crate) fn twin(encoding: RecordedEncoding) -> Self {
        Self {
            role: Role::Informer,
            server: AskedServer::Direct,
            encoding,
            transport: Transport::H2,
            namespace: None,
            labels: None,
            fields: None,
            bookmarks: true,
        }
    }

    /// `limit` of a list, if it is to come in pages. A list of all namespaces that a field selector narrows to one is
    /// not: the continue tokens of kube-apiserver (1.37) leave the namespace out, and nothing comes behind its first
    /// page.
    pub(crate) fn limit(&self, fields: Option<&str>, max: u32, rng: &mut fastrand::Rng) -> Option<String> {
        let drawn = (rng.u8(..3) == 0).then(|| rng.u32(1..=max).to_string());
        let narrowed = self.namespace.is_none() && fields.is_some_and(|fields| fields.contains("metadata.namespace="));
        drawn.filter(|_| !narrowed)
    }

    pub(crate) fn path(&self, world: &World) -> String {
        world.resource.collection(self.namespace.as_deref())
    }
}

impl WatchLength {
    pub(crate) fn draw(rng: &mut fastrand::Rng, pace: u32) -> Self {
        let (timeout_seconds, cut) = (rng.u32(2..=8), between(rng, Duration::from_millis(200), Duration::from_secs(6)));
        let (timeout_seconds, cut) = (timeout_seconds * pace, cut * pace);
        match rng.u8(..8) {
            // One without a time of its own is left all the same: nobody would go on from it before the end of the run.
            0 => Self { cut: Some(3 * cut), ..Self::default() },
            1..=3 => Self { cut: Some(cut), ..Self::default() },
            4..=6 => Self { timeout_seconds: Some(timeout_seconds), ..Self::default() },
            _ => Self { timeout_seconds: Some(timeout_seconds), cut: Some(cut) },
        }
    }

    /// As informers do it, which always name a time; some leave before it is over.
    pub(crate) fn of_informer(rng: &mut fastrand::Rng) -> Self {
        let timeout_seconds = Some(rng.u32(3..=12));
        let cut = between(rng, Duration::from_millis(300), Duration::from_secs(8));
        Self { timeout_seconds, cut: (rng.u8(..3) == 0).then_some(cut) }
    }
}
