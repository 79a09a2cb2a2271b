//! The plan of faults: kind, place and time of each, drawn from a seed, one fault after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::framing::{Cargo, Class, Direction, EVENT, Unit, Wire};

/// The effect of a fault on bytes in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Both sides receive a FIN after some byte, with or without a TLS close before it.
    Cut,
    /// Both sides receive an RST.
    Reset,
    /// Everything after some byte is delayed.
    Delay,
    /// Single bytes, each in its own TLS record.
    Trickle,
    /// Nothing is forwarded and neither side notices, until the connection is reset much later.
    Blackhole,
    /// A GOAWAY before a frame. In half of the cases the connection is closed a little later.
    GoAway,
    /// One flipped bit in the framing.
    Flip,
}

/// The connections that a relay carries, which determine the possible faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Between the proxy and the apiserver.
    Upstream,
    /// Between the proxy and clients whose results are checked.
    Downstream,
    /// Between the proxy and clients whose results are not checked. Any bit may be flipped.
    Spoilt,
}

impl Side {
    pub fn kinds(self) -> &'static [Kind] {
        use Kind::{Blackhole, Cut, Delay, Flip, GoAway, Reset, Trickle};
        match self {
            Self::Upstream => &[Cut, Reset, Delay, Trickle, Blackhole, GoAway, Flip],
            Self::Downstream => &[Cut, Reset, Delay, Trickle, Blackhole, GoAway],
            Self::Spoilt => &[Flip],
        }
    }

    /// The minimum and maximum time between two faults, in milliseconds. Without pauses, the streams of a feed would
    /// live so short that its growing backoff dominates the run.
    fn pause(self) -> (u64, u64) {
        match self {
            Self::Upstream => (50, 700),
            Self::Downstream | Self::Spoilt => (20, 150),
        }
    }
}

/// The kind of bytes that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub wire: Wire,
    pub direction: Direction,
    pub cargo: Cargo,
}

impl Place {
    /// The places at which each kind must have occurred in a long run.
    pub fn all(side: Side, kind: Kind) -> Vec<Self> {
        let wires: &[Wire] = match (side, kind) {
            (_, Kind::GoAway) => &[Wire::H2],
            (Side::Upstream, _) => &[Wire::H1, Wire::H2],
            (Side::Downstream | Side::Spoilt, _) => &[Wire::H1, Wire::H2, Wire::Ws],
        };
        let mut places = Vec::new();
        for &wire in wires {
            places.extend([Cargo::Json, Cargo::Protobuf].map(|cargo| Self { wire, direction: Direction::Down, cargo }));
            let other = Self { wire, direction: Direction::Down, cargo: Cargo::Other };
            // Only the spoilt side may flip bits of forwarded payload. A GOAWAY is inserted before payload only.
            places.extend((kind != Kind::Flip || side == Side::Spoilt).then_some(other));
            // A WebSocket client sends nothing after its request.
            let speaks = wire != Wire::Ws && kind != Kind::GoAway && (kind != Kind::Flip || side == Side::Spoilt);
            places.extend(speaks.then_some(Self { direction: Direction::Up, ..other }));
        }
        places
    }
}

/// One fault.
#[derive(Clone, Debug)]
pub struct Plan {
    pub kind: Kind,
    /// The preferred place.
    place: Place,
    /// The source of the fault's other random values.
    pub rng: fastrand::Rng,
}

/// A unit in transit.
#[derive(Clone, Copy, Debug)]
pub struct Passing<'a> {
    pub place: Place,
    /// Whether the connection carries the proxy's own reads, and no forwarded responses.
    pub is_its_own: bool,
    pub unit: Unit,
    /// The received bytes of the unit and after it.
    pub bytes: &'a [u8],
}

/// If no unit at the plan's place arrives within this time, the plan takes any place in its direction, and its place is
/// scheduled again.
const CHOOSY: Duration = Duration::from_millis(300);
/// If no unit at all arrives within this time, the next plan follows, and the kind is scheduled again later.
const PATIENCE: Duration = Duration::from_secs(1);

/// The faults of one relay, in the order that the seed draws.
#[derive(Debug)]
pub struct Plans {
    side: Side,
    rng: fastrand::Rng,
    /// The kinds that remain before all of them repeat, and the places that remain for each kind.
    deck: Vec<Kind>,
    places: BTreeMap<Kind, Vec<Place>>,
    next: Plan,
    /// The time from which the next fault is due.
    due: Instant,
}

impl Plans {
    pub fn new(seed: u64, side: Side) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ side as u64);
        let (mut deck, mut places) = (Vec::new(), BTreeMap::new());
        let next = Plan::draw(side, &mut deck, &mut places, &mut rng);
        Self { side, rng, deck, places, next, due: Instant::now() }
    }

    /// Makes the next fault due now.
    pub fn begin(&mut self) {
        self.due = Instant::now();
    }

    /// The fault for a unit, if there is one.
    pub fn meet(&mut self, passing: &Passing<'_>) -> Option<Plan> {
        let now = Instant::now();
        if now < self.due {
            return None;
        }
        let waited = now - self.due;
        if waited > PATIENCE {
            self.deck.insert(0, self.next.kind);
            self.comes_again();
            self.go_on(now);
            return None;
        }
        if !self.next.fits(self.side, passing, waited > CHOOSY) {
            return None;
        }
        if self.next.place != passing.place {
            self.comes_again();
        }
        let met = self.next.clone();
        self.go_on(now);
        Some(met)
    }

    fn comes_again(&mut self) {
        self.places.entry(self.next.kind).or_default().insert(0, self.next.place);
    }

    fn go_on(&mut self, now: Instant) {
        self.next = Plan::draw(self.side, &mut self.deck, &mut self.places, &mut self.rng);
        let (least, most) = self.side.pause();
        self.due = now + Duration::from_millis(self.rng.u64(least..=most));
    }
}

impl Plan {
    fn draw(
        side: Side,
        deck: &mut Vec<Kind>,
        places: &mut BTreeMap<Kind, Vec<Place>>,
        rng: &mut fastrand::Rng,
    ) -> Self {
        if deck.is_empty() {
            deck.extend(side.kinds());
            rng.shuffle(deck);
        }
        let kind = deck.pop().expect("every side has kinds");
        let of_kind = places.entry(kind).or_default();
        if of_kind.is_empty() {
            of_kind.extend(Place::all(side, kind));
            rng.shuffle(of_kind);
        }
        let place = of_kind.pop().expect("every kind has places");
        Self { kind, place, rng: rng.fork() }
    }

    fn fits(&self, side: Side, passing: &Passing<'_>, any_place: bool) -> bool {
        let Passing { place, is_its_own, unit, bytes } = *passing;
        let is_its_place = self.place == place || any_place && self.place.direction == place.direction;
        let is_its_unit = match (self.kind, side) {
            (Kind::Flip, Side::Upstream) => {
                is_its_own && unit.class == Class::Event && bytes.len() >= unit.header + EVENT.len()
            }
            (Kind::Flip, _) => !bytes.is_empty(),
            (Kind::GoAway, _) => place.wire == Wire::H2 && matches!(unit.class, Class::Event | Class::Data),
            _ => place.direction == Direction::Up || unit.class != Class::Control,
        };
        is_its_place && is_its_unit
    }

    /// The offset of the fault in a unit.
    pub fn offset(&mut self, unit: &Unit) -> usize {
        match self.kind {
            Kind::GoAway => 0,
            _ => self.rng.usize(..unit.len),
        }
    }

    /// A random duration between two limits.
    pub fn time(&mut self, least_ms: u64, most_ms: u64) -> Duration {
        Duration::from_millis(self.rng.u64(least_ms..=most_ms))
    }

    /// Flips one bit. Upstream it must be a detectable one: a client cannot detect a changed name of an object, or an
    /// event that became a frame of an unknown type, which it must ignore. Returns the position of the byte in the
    /// unit.
    pub fn flip(&mut self, side: Side, wire: Wire, unit: &Unit, bytes: &mut [u8]) -> usize {
        if side == Side::Spoilt {
            let at = self.rng.usize(..unit.len.min(bytes.len()));
            bytes[at] ^= 1 << self.rng.u8(..8);
            return at;
        }
        let is_json = bytes[unit.header..].starts_with(EVENT);
        // Of a protobuf length, only the most significant byte is flipped. A length of some megabytes is not an error
        // yet: like every client, the proxy waits for that many bytes.
        let carried = unit.header..unit.header + if is_json { EVENT.len() } else { 1 };
        let of_frame = match wire {
            // The length, the type and the flags END_STREAM and PADDED.
            Wire::H2 => 0..5,
            Wire::H1 | Wire::Ws => 0..unit.header - 2,
        };
        let at = if self.rng.bool() { self.rng.usize(of_frame) } else { self.rng.usize(carried) };
        let bit = match (wire, at) {
            (Wire::H2, 3) => self.rng.u8(..4),
            (Wire::H2, 4) => 3 * self.rng.u8(..2),
            _ => self.rng.u8(..8),
        };
        bytes[at] ^= 1 << bit;
        at
    }
}
