//! Watches from before the history that a feed holds: who waits until it begins earlier, and what upstream has said to
//! that.
//!
//! However many there are and wherever they come from, upstream is asked for the oldest of them, one at a time, and so
//! many times at most. Clients that come back one by one in any order bring a new oldest version some nine times in
//! five thousand. A refusal is remembered: what upstream has forgotten it does not remember later.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::cache::{CacheReader, View};
use crate::kube::ResourceVersion;

/// Those who come from before a feed's history. Only its first history can begin earlier, so nothing here is reset.
#[derive(Debug, Default)]
pub struct Returners {
    ledger: Mutex<Ledger>,
    /// Somebody has come.
    came: Notify,
    /// Tells of each answer. Its number is that of questions which upstream did not answer.
    failures: watch::Sender<u64>,
}

/// A question for earlier history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retrospect {
    /// What happened behind this version?
    Events(ResourceVersion),
    /// What were the objects before, whose changes behind this version are known?
    Before(ResourceVersion),
}

/// What came of a question for earlier history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookedBack {
    /// The history begins there now.
    Joined,
    /// Upstream has no history behind versions before this one.
    Gone { before: ResourceVersion },
    /// What follows `from` cannot be had, and nobody knows what can: it is too much, or upstream does not say where its
    /// history begins.
    TooEarly { from: ResourceVersion },
    /// It does not lead to what is held, so it never will.
    OtherHistory,
    /// It is known of all that was asked about what was there before.
    Explained,
    /// It cannot be known of changes up to this version.
    Inexplicable { upto: ResourceVersion },
    /// Upstream did not answer, or not in time.
    Failed,
}

/// What becomes of somebody who comes from before the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prospect {
    Waits,
    TurnedAway,
}

#[derive(Debug, Default)]
struct Ledger {
    waiting: Crowd,
    /// Those of them that need to know what was there before each change.
    inquiring: Crowd,
    memory: Memory,
}

/// How many there are, by the version that they come from.
type Crowd = BTreeMap<ResourceVersion, usize>;

/// What is remembered of upstream's answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Memory {
    /// What follows versions below this one cannot be had.
    gone_before: ResourceVersion,
    /// What was there before changes up to this version cannot be known.
    inexplicable_upto: ResourceVersion,
    questions: u32,
    /// The version that is being asked for.
    under_way: Option<Retrospect>,
    /// Nobody knows where upstream's history begins: the oldest is no better a guess than any other.
    is_blind: bool,
    is_over: bool,
    rests_until: Option<Instant>,
}

/// Somebody who waits, until dropped.
struct Waiting<'a> {
    returners: &'a Returners,
    who: Returner,
}

/// Where somebody comes from, and whether they need to know what was there before each change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Returner {
    from: ResourceVersion,
    inquires: bool,
}

/// What a feed holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// Its history begins behind this version.
    floor: ResourceVersion,
    /// It is known of every change behind this version what was there before.
    known: ResourceVersion,
}

/// How many times upstream is asked in the life of a feed.
const QUESTIONS_MAX: u32 = 16;
/// How long nobody is waited for after a question that was not answered.
const REST: Duration = Duration::from_secs(5);

impl Returners {
    /// Waits until a watch with this view may start behind `from`, or it is known that it never may. It may take for
    /// ever: the caller has a deadline.
    pub async fn wait(&self, from: ResourceVersion, view: &View, reader: &CacheReader) {
        let who = Returner { from, inquires: !view.goes_by_key() };
        let mut failures = self.failures.subscribe();
        let before = *failures.borrow_and_update();
        let Some(_waiting) = self.enter(who) else { return };
        loop {
            let may_come = !reader.reaches(from, view) && reader.may_begin_earlier();
            let is_told = *failures.borrow_and_update() > before
                || self.ledger.lock().memory.prospect(who, Instant::now()) == Prospect::TurnedAway;
            if !may_come || is_told || failures.changed().await.is_err() {
                return;
            }
        }
    }

    fn enter(&self, who: Returner) -> Option<Waiting<'_>> {
        let mut ledger = self.ledger.lock();
        if ledger.memory.prospect(who, Instant::now()) == Prospect::TurnedAway {
            return None;
        }
        ledger.crowds_of(who).for_each(|crowd| *crowd.entry(who.from).or_default() += 1);
        self.came.notify_one();
        Some(Waiting { returners: self, who })
    }

    /// Completes when somebody has come since the last time.
    pub async fn came(&self) {
        self.came.notified().await;
    }

    /// What to ask upstream, if somebody waits for it who comes from before what `reader` has. It counts as asked.
    pub fn next(&self, reader: &CacheReader) -> Option<Retrospect> {
        let held = Held { floor: reader.floor(), known: reader.known() };
        let mut ledger = self.ledger.lock();
        let next = ledger.next(held, Instant::now())?;
        ledger.memory.ask(next);
        Some(next)
    }

    /// Notes an answer, and tells those who wait.
    pub fn answered(&self, answer: LookedBack) {
        self.ledger.lock().memory.note(answer, Instant::now());
        self.failures.send_modify(|failures| *failures += u64::from(answer == LookedBack::Failed));
    }
}

impl Ledger {
    fn crowds_of(&mut self, who: Returner) -> impl Iterator<Item = &mut Crowd> {
        std::iter::once(&mut self.waiting).chain(Some(&mut self.inquiring).filter(|_| who.inquires))
    }

    /// The oldest of those that may be read, for the others are served with it. Without an idea of how far upstream's
    /// history reaches, it is the one in the middle, so that each refusal halves what is left.
    fn next(&self, held: Held, now: Instant) -> Option<Retrospect> {
        let memory = &self.memory;
        // Whoever was turned away may not have left yet.
        if memory.is_over || memory.rests(now) || memory.questions >= QUESTIONS_MAX {
            return None;
        }
        let from_before = |crowd: &Crowd, begins: ResourceVersion, ends: ResourceVersion| -> Vec<ResourceVersion> {
            if begins < ends { crowd.range(begins..ends).map(|(from, _)| *from).collect() } else { Vec::new() }
        };
        let earlier = from_before(&self.waiting, memory.gone_before, held.floor);
        let at = if memory.is_blind { earlier.len() / 2 } else { 0 };
        if let Some(from) = earlier.get(at) {
            return Some(Retrospect::Events(*from));
        }
        let inquiring = from_before(&self.inquiring, held.floor.max(memory.inexplicable_upto), held.known);
        inquiring.first().map(|from| Retrospect::Before(*from))
    }
}

impl Memory {
    fn prospect(&self, who: Returner, now: Instant) -> Prospect {
        let may_be_asked = self.questions < QUESTIONS_MAX || self.under_way.is_some_and(|asked| asked.serves(who));
        let is_inexplicable = who.inquires && who.from < self.inexplicable_upto;
        if self.is_over || self.rests(now) || !may_be_asked || is_inexplicable || who.from < self.gone_before {
            Prospect::TurnedAway
        } else {
            Prospect::Waits
        }
    }

    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    fn ask(&mut self, question: Retrospect) {
        self.questions += 1;
        self.under_way = Some(question);
    }

    fn note(&mut self, answer: LookedBack, now: Instant) {
        self.under_way = None;
        match answer {
            LookedBack::Joined | LookedBack::Explained => {}
            LookedBack::Gone { before } => self.gone_before = self.gone_before.max(before),
            LookedBack::TooEarly { from } => {
                self.gone_before = self.gone_before.max(ResourceVersion(from.0.saturating_add(1)));
                self.is_blind = true;
            }
            LookedBack::OtherHistory => self.is_over = true,
            LookedBack::Inexplicable { upto } => self.inexplicable_upto = self.inexplicable_upto.max(upto),
            LookedBack::Failed => self.rests_until = Some(now + REST),
        }
    }
}

impl Retrospect {
    /// Whether the answer may be all that somebody waits for.
    fn serves(self, who: Returner) -> bool {
        match self {
            Self::Events(from) => from <= who.from,
            Self::Before(from) => who.inquires && from <= who.from,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let who = self.who;
        for crowd in self.returners.ledger.lock().crowds_of(who) {
            if let Entry::Occupied(mut there) = crowd.entry(who.from) {
                *there.get_mut() -= 1;
                if *there.get() == 0 {
                    there.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
