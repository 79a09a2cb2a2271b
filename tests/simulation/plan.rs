//! Plans that are drawn from a seed.

use std::collections::HashSet;
use std::time::Duration;

use verify::{ClientTransport, RecordedEncoding, VerifiedResource};

use crate::faults::{Fault, FaultKind};

/// A run as its seed has drawn it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Index into [`RESOURCES`].
    pub resource: usize,
    pub namespaces: usize,
    pub objects: usize,
    pub clients: u32,
    pub writers: u32,
    /// Writes per second of all writers together.
    pub rate: f64,
    pub pace: u32,
    pub duration: Duration,
    pub transports: Vec<ClientTransport>,
    pub latency: Duration,
    pub piece_bytes: usize,
    /// Whether connections to upstream use HTTP/2.
    pub multiplexes: bool,
    pub bookmark_period: Duration,
    /// Idle time after which a feed without readers stops.
    pub idle_max: Duration,
    pub faults: Vec<Fault>,
    /// Whether the application is stopped while clients read.
    pub drains: bool,
}

/// Encodings of the demo upstream.
pub const ENCODINGS: [RecordedEncoding; 2] = [RecordedEncoding::Json, RecordedEncoding::Metadata];

/// Group, version, plural and kind of a built-in resource, of a custom one, and of the one whose objects may be deleted
/// together.
const RESOURCES: [[&str; 4]; 3] = [
    ["", "v1", "configmaps", "ConfigMap"],
    ["demo.kube-fanout.io", "v1", "widgets", "Widget"],
    ["", "v1", "events", "Event"],
];
const EVENTS: usize = 2;

/// Possible delays of a piece.
const LATENCIES: [Duration; 5] =
    [Duration::ZERO, Duration::ZERO, Duration::from_millis(1), Duration::from_millis(5), Duration::from_millis(40)];
const PIECES: [usize; 3] = [16 << 10, 4 << 10, 1 << 10];
/// Minimum bytes of a piece for each millisecond of its delay.
const BYTES_OF_A_MILLISECOND: usize = 400;

impl Plan {
    pub fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let seconds = |rng: &mut fastrand::Rng, range| Duration::from_secs(rng.u64(range));
        let duration = seconds(&mut rng, 60..=300);
        let mut faults: Vec<_> = (0..rng.usize(0..=6)).map(|_| Fault::draw(&mut rng, duration)).collect();
        // One fault of each kind, so that its end does not end another one.
        let mut kinds = HashSet::new();
        faults.retain(|fault| kinds.insert(std::mem::discriminant(&fault.kind)));
        // Drawn from a generator of its own, so that other seeds keep their plans.
        faults.extend(Fault::dead_connections(&mut fastrand::Rng::with_seed(seed.rotate_left(32)), duration));
        let mut plan = Self {
            seed,
            resource: rng.usize(..EVENTS),
            namespaces: rng.usize(1..=3),
            objects: rng.usize(3..=12),
            clients: rng.u32(2..=8),
            writers: rng.u32(1..=3),
            rate: 0.2 + rng.f64(),
            pace: rng.u32(5..=30),
            duration,
            transports: vec![ClientTransport::H1, ClientTransport::H2, ClientTransport::Ws],
            latency: LATENCIES[rng.usize(..LATENCIES.len())],
            piece_bytes: PIECES[rng.usize(..PIECES.len())],
            multiplexes: rng.bool(),
            bookmark_period: seconds(&mut rng, 1..=100),
            // Half of all plans stop a feed as soon as a fault has kept all clients away.
            idle_max: if rng.bool() { seconds(&mut rng, 1..=15) } else { seconds(&mut rng, 15..=600) },
            faults,
            drains: rng.u8(..4) == 0,
        };
        // Transfers a large object within a second, because requests wait three seconds for a version.
        plan.piece_bytes = plan
            .piece_bytes
            .max(BYTES_OF_A_MILLISECOND * usize::try_from(plan.latency.as_millis()).expect("it is short"));
        if plan.faults.iter().any(|fault| matches!(fault.kind, FaultKind::DeleteAtOnce { .. })) {
            plan.resource = EVENTS;
            plan.latency = Duration::ZERO;
            plan.faults.retain(|fault| !fault.kind.parts_events());
        }
        plan
    }

    pub fn plural(&self) -> &'static str {
        RESOURCES[self.resource][2]
    }

    pub fn resource(&self) -> VerifiedResource {
        let [group, version, plural, kind] = RESOURCES[self.resource].map(str::to_owned);
        VerifiedResource { group, version, plural, kind }
    }
}
