//! What is broken, where and when: drawn from a seed, one fault behind the other.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::framing::{Cargo, Class, Direction, EVENT, Unit, Wire};

/// What happens to bytes that are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Both sides get a FIN behind some byte, with the end of TLS before it or without.
    Cut,
    /// Both sides get an RST.
    Reset,
    /// Everything behind some byte waits.
    Delay,
    /// Byte by byte, each in a record of its own.
    Trickle,
    /// Nothing is passed on any more, and nobody is told, until the connection is reset much later.
    Blackhole,
    /// GOAWAY in front of a frame, and, half of the time, the end of the connection a little later.
    GoAway,
    /// One bit of what frames the bytes is another.
    Flip,
}

/// Which connections a relay carries, and what may happen to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Between the proxy and the apiserver.
    Upstream,
    /// Between clients, whose answers are judged, and the proxy.
    Downstream,
    /// Between clients of which nothing is judged and the proxy: any bit of anything may be another.
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

    /// Milliseconds between two faults, at least and at most. A feed whose streams do not live for some seconds waits
    /// longer each time before it asks again, which is not to be all that is seen.
    fn pause(self) -> (u64, u64) {
        match self {
            Self::Upstream => (50, 700),
            Self::Downstream | Self::Spoilt => (20, 150),
        }
    }
}

/// What bytes a fault meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub wire: Wire,
    pub direction: Direction,
    pub cargo: Cargo,
}

impl Place {
    /// Where each kind must have happened in a run that is long enough.
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
            // What the proxy only carries may be spoilt by nobody, and GOAWAY stands before what streams carry.
            places.extend((kind != Kind::Flip || side == Side::Spoilt).then_some(other));
            // A client of a WebSocket says nothing behind its request.
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
    /// Where it would rather happen.
    place: Place,
    /// What else has to be drawn for it.
    pub rng: fastrand::Rng,
}

/// A unit that is just passing.
#[derive(Clone, Copy, Debug)]
pub struct Passing<'a> {
    pub place: Place,
    /// Whether what the proxy reads for itself comes this way, and no answer that it only carries.
    pub is_its_own: bool,
    pub unit: Unit,
    /// What has come of the unit, and behind it.
    pub bytes: &'a [u8],
}

/// A plan for whose place nothing comes within this time takes any place in its direction, and its own comes again.
const CHOOSY: Duration = Duration::from_millis(300);
/// A plan that finds nothing at all within this time gives way to the next, and its kind comes again later.
const PATIENCE: Duration = Duration::from_secs(1);

/// The faults of one relay, in the order that the seed draws.
#[derive(Debug)]
pub struct Plans {
    side: Side,
    rng: fastrand::Rng,
    /// Kinds that are still to come before all of them come again, and likewise the places of each.
    deck: Vec<Kind>,
    places: BTreeMap<Kind, Vec<Place>>,
    next: Plan,
    /// From when on the next one is due.
    due: Instant,
}

impl Plans {
    pub fn new(seed: u64, side: Side) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ side as u64);
        let (mut deck, mut places) = (Vec::new(), BTreeMap::new());
        let next = Plan::draw(side, &mut deck, &mut places, &mut rng);
        Self { side, rng, deck, places, next, due: Instant::now() }
    }

    /// The next fault is due.
    pub fn begin(&mut self) {
        self.due = Instant::now();
    }

    /// The fault that a unit meets, if it meets one.
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

    /// The offset in a unit at which it happens.
    pub fn offset(&mut self, unit: &Unit) -> usize {
        match self.kind {
            Kind::GoAway => 0,
            _ => self.rng.usize(..unit.len),
        }
    }

    /// A time between two.
    pub fn time(&mut self, least_ms: u64, most_ms: u64) -> Duration {
        Duration::from_millis(self.rng.u64(least_ms..=most_ms))
    }

    /// Makes one bit another. Upstream it is one whose change shows: nobody can tell an object whose name is another
    /// from one that was always called so, or a frame of an unknown type, which is to be ignored, from one of an
    /// event. Returns which byte of the unit it was.
    pub fn flip(&mut self, side: Side, wire: Wire, unit: &Unit, bytes: &mut [u8]) -> usize {
        if side == Side::Spoilt {
            let at = self.rng.usize(..unit.len.min(bytes.len()));
            bytes[at] ^= 1 << self.rng.u8(..8);
            return at;
        }
        let is_json = bytes[unit.header..].starts_with(EVENT);
        // A length that becomes some megabytes is no fault yet: like every client the proxy waits for them.
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
