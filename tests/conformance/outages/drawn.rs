//! Sequences of outages, drawn from a seed.

use std::ops::RangeInclusive;
use std::time::Duration;

const OUTAGES: RangeInclusive<usize> = 2..=5;
/// The longest pause after an outage, in addition to the time for its writes.
const PAUSE_MAX: Duration = Duration::from_millis(1500);
/// The maximum number of changes of each busy resource in a pause.
const CHANGES_MAX: usize = 5;

/// The server that is killed and restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Apiserver,
    /// The apiserver, and once more while the proxy is stopped, so that no server sends the proxy the writes in
    /// between.
    ApiserverUnheard,
    Proxy,
    Both,
}

/// The start condition of an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// All servers are ready, and a pause has passed.
    Apart,
    /// The proxy has started to relist after the previous outage.
    DuringRelist,
    /// The proxy has started to read back changes that it did not receive.
    DuringMend,
}

#[derive(Debug, Clone, Copy)]
pub struct Outage {
    pub begins: Begins,
    pub victim: Victim,
    /// The number of configmap changes in the pause after the outage, and in the gap that no server sends.
    pub maps: usize,
    /// The number of Events that are written and deleted in the same way.
    pub events: usize,
    pub pause: Duration,
}

/// A sequence of outages, the first of which starts apart.
pub fn sequence(rng: &mut fastrand::Rng) -> Vec<Outage> {
    let (maps_are_busy, events_are_busy) = (rng.bool(), rng.bool());
    let mut drawn: Vec<Outage> = Vec::new();
    for _ in 0..rng.usize(OUTAGES) {
        let begins = match drawn.last().map(|last| last.victim) {
            None => Begins::Apart,
            Some(Victim::ApiserverUnheard) => one_of(rng, &[Begins::Apart, Begins::DuringRelist, Begins::DuringMend]),
            Some(_) => one_of(rng, &[Begins::Apart, Begins::DuringRelist]),
        };
        let victims = [Victim::Apiserver, Victim::ApiserverUnheard, Victim::Proxy, Victim::Both];
        // In over half of them the proxy survives, because its recovery is the main subject of these tests.
        let victim = one_of(rng, &[&victims[..], &victims[..2]].concat());
        let changes = |rng: &mut fastrand::Rng, is_busy: bool| if is_busy { rng.usize(1..=CHANGES_MAX) } else { 0 };
        let (maps, events) = (changes(rng, maps_are_busy), changes(rng, events_are_busy));
        drawn.push(Outage { begins, victim, maps, events, pause: PAUSE_MAX.mul_f64(rng.f64()) });
    }
    drawn
}

fn one_of<T: Copy>(rng: &mut fastrand::Rng, all: &[T]) -> T {
    all[rng.usize(..all.len())]
}
