//! Sequences of outages, as a seed draws them.

use std::ops::RangeInclusive;
use std::time::Duration;

const OUTAGES: RangeInclusive<usize> = 2..=5;
/// The longest pause behind an outage, besides what is written in it.
const PAUSE_MAX: Duration = Duration::from_millis(1500);
/// As many changes of each busy resource in a pause at most.
const CHANGES_MAX: usize = 5;

/// Which server is killed and started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Apiserver,
    /// The apiserver, and once more while the proxy is stopped: nobody tells the proxy what was written in between.
    ApiserverUnheard,
    Proxy,
    Both,
}

/// When an outage begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// All servers are ready again, and a pause has passed.
    Apart,
    /// The proxy has begun to list what the outage before this one has broken.
    DuringRelist,
    /// The proxy has begun to read back what nobody had told it.
    DuringMend,
}

#[derive(Debug, Clone, Copy)]
pub struct Outage {
    pub begins: Begins,
    pub victim: Victim,
    /// Changes of configmaps in the pause behind it, and in one of which nobody tells.
    pub maps: usize,
    /// Events that are written and deleted likewise.
    pub events: usize,
    pub pause: Duration,
}

/// A sequence: each outage, the first of which begins apart.
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
        // Over half of them leave the proxy alive: what it does then is what most of this is about.
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
