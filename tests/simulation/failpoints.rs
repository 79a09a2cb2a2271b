//! The failpoints: how long tasks linger there, and which of them panic.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{draw_delays, now_ns};

/// Every failpoint, and what lies between the two moments that it draws apart.
pub const FAILPOINTS: [(&str, &str); 8] = [
    ("feed begun", "a feed is in the registry for its first reader, and asks upstream for the first time"),
    ("listed, not watched", "a state is held, and the watch behind it is asked for"),
    ("recorded, not woken", "the ring has an event, and those who wait for it are woken"),
    ("amid a transaction", "an event is recorded whose version may have more, and the next item is looked at"),
    ("answered, not proven", "upstream has said how far it is, and the answer is used for a proof"),
    ("listed again, not swapped", "a list closes a gap, and the history is mended or swapped"),
    ("granted, not begun", "a watch is granted and has its place in the ring, and its answer begins"),
    ("left, not ended", "a feed has left the registry, and those who pull from it hear of its end"),
];

/// How often each failpoint was hit.
pub type Hits = BTreeMap<&'static str, FailpointHits>;

/// How often a failpoint was passed, and how often a task stayed there.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailpointHits {
    pub passed: u64,
    pub lingered: u64,
}

/// What the message of a panic that was drawn begins with.
pub const DRAWN: &str = "as it was drawn";
/// One of this many seeds has tasks that panic, at one of this many times that they pass a failpoint, and as often as
/// this at most.
const PANICKING: u8 = 4;
const PASSES_A_PANIC: u16 = 100;
const PANICS_MAX: usize = 3;

/// When tasks panicked, in nanoseconds of the records' clock.
pub type Panics = Rc<RefCell<Vec<u64>>>;

/// Delays and panics that a seed draws for as long as this lives.
pub struct Delays {
    hits: Rc<RefCell<Hits>>,
    panics: Panics,
}

impl Delays {
    /// Neither delays nor panics.
    pub fn none() -> Self {
        draw_delays(None);
        Self { hits: Rc::default(), panics: Panics::default() }
    }

    pub fn draw(seed: u64) -> Self {
        let (mut rng, hits) = (fastrand::Rng::with_seed(seed), Rc::<RefCell<Hits>>::default());
        // Some runs have none, and some many.
        let of_100 = [0, 10, 50, 100][rng.usize(..4)];
        // Drawn apart, so that a seed lingers as it did.
        let mut fate = fastrand::Rng::with_seed(!seed);
        let (panics, panicking) = (Panics::default(), fate.u8(..PANICKING) == 0);
        let (counted, panicked) = (hits.clone(), panics.clone());
        draw_delays(Some(Box::new(move |at| {
            let lingers = rng.u8(..100) < of_100;
            let mut counted = counted.borrow_mut();
            let hits = counted.entry(at).or_default();
            hits.passed += 1;
            hits.lingered += u64::from(lingers);
            drop(counted);
            if panicking && fate.u16(..PASSES_A_PANIC) == 0 && panicked.borrow().len() < PANICS_MAX {
                panicked.borrow_mut().push(now_ns());
                panic!("{DRAWN}, at {at:?}");
            }
            // Several in a row stay below the three seconds that a request waits for a version.
            let millis = match rng.u8(..8) {
                0..=2 => 0,
                3..=5 => rng.u64(1..=20),
                _ => rng.u64(20..=300),
            };
            lingers.then_some(Duration::from_millis(millis))
        })));
        Self { hits, panics }
    }

    pub fn panics(&self) -> Panics {
        self.panics.clone()
    }

    pub fn hits(&self) -> Hits {
        self.hits.borrow().clone()
    }
}

impl Drop for Delays {
    fn drop(&mut self) {
        draw_delays(None);
    }
}
