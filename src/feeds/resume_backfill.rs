//! Clients may resume from a version that is older than the history of a feed. They wait here while upstream is asked
//! for the events before it, and its answers are remembered.
//!
//! Upstream is asked for the oldest version that somebody waits for, one question at a time, and at most
//! `QUESTIONS_MAX` times. When five thousand clients come back one by one in random order, about nine of them are older
//! than all before them. A refusal is kept for good: upstream does not remember later what it has forgotten.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::cache::{CacheReader, View};
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// The clients that come from before a feed's history. Only the first history of a feed can be made to begin earlier,
/// so nothing here is reset.
#[derive(Debug, Default)]
pub struct ResumeBackfills {
    ledger: Mutex<Ledger>,
    /// Notified when a client begins to wait.
    came: Notify,
    /// The number of questions that upstream did not answer. It is sent after every answer, changed or not.
    failures: watch::Sender<u64>,
}

/// A question to upstream about earlier history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackfillRequest {
    /// Which events followed this version?
    Events(ResourceVersion),
    /// The events after this version are known. What were their objects before the first of them?
    Before(ResourceVersion),
}

/// The outcome of a [`BackfillRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackfillOutcome {
    /// The events were put in front of the history.
    Joined,
    /// Upstream has forgotten what followed versions below `before`.
    Gone { before: ResourceVersion },
    /// The events after `from` cannot be had, because they are too many or because upstream has forgotten them. It is
    /// unknown from which version on they could.
    TooEarly { from: ResourceVersion },
    /// The events do not lead to the state that was listed, so no earlier ones will either.
    OtherHistory,
    /// What the objects were before is known now.
    Explained,
    /// What objects were before their events up to `upto` cannot be found out.
    Inexplicable { upto: ResourceVersion },
    /// The answer broke off, which says nothing of what upstream remembers.
    BrokeOff,
    /// Upstream did not answer, or not in time.
    Failed,
}

/// Whether a client that comes from before the history has something to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prospect {
    Waits,
    TurnedAway,
}

#[derive(Debug, Default)]
struct Ledger {
    waiting: Crowd,
    /// The waiting clients whose view also needs what each object was before a change.
    inquiring: Crowd,
    memory: Memory,
}

/// The number of clients by the version that they come from.
type Crowd = BTreeMap<ResourceVersion, usize>;

/// What upstream's answers so far have taught.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Memory {
    /// Events that followed versions below this one cannot be had.
    gone_before: ResourceVersion,
    /// What objects were before events up to this version cannot be found out.
    inexplicable_upto: ResourceVersion,
    questions: u32,
    /// The question that upstream has not answered yet.
    under_way: Option<BackfillRequest>,
    /// Upstream has refused without saying where its history begins, so the oldest version is as likely to be refused
    /// as any other.
    is_blind: bool,
    is_over: bool,
    rests_until: Option<Instant>,
    /// The number of answers in a row that broke off.
    broken: u32,
}

/// A client that waits; dropping it takes it off the ledger.
struct Waiting<'a> {
    returners: &'a ResumeBackfills,
    who: ResumingClient,
}

/// The version that a client comes from, and whether its view also needs what each object was before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ResumingClient {
    from: ResourceVersion,
    inquires: bool,
}

/// The history that a feed holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    /// The version that its first event follows.
    floor: ResourceVersion,
    /// The version from which on it is known of every event what its object was before.
    known: ResourceVersion,
}

/// How many times upstream is asked in the life of a feed.
const QUESTIONS_MAX: u32 = 16;
/// The number of answers in a row that may break off before that counts as no answer.
const BROKEN_MAX: u32 = 3;
/// How long nobody is waited for after a question that was not answered.
const REST: Duration = Duration::from_secs(5);

impl ResumeBackfills {
    /// Waits until a watch with this view can start after `from`, or it is known that it cannot. This may never
    /// complete, so callers set a deadline.
    pub async fn wait(&self, from: ResourceVersion, view: &View, reader: &CacheReader) {
        let who = ResumingClient { from, inquires: !view.goes_by_key() };
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

    fn enter(&self, who: ResumingClient) -> Option<Waiting<'_>> {
        let mut ledger = self.ledger.lock();
        if ledger.memory.prospect(who, Instant::now()) == Prospect::TurnedAway {
            return None;
        }
        ledger.crowds_of(who).for_each(|crowd| *crowd.entry(who.from).or_default() += 1);
        self.came.notify_one();
        Some(Waiting { returners: self, who })
    }

    /// Completes when a client has begun to wait since the last call.
    pub async fn came(&self) {
        self.came.notified().await;
    }

    /// Returns the next question for upstream, if a waiting client comes from before what `reader` has. The question is
    /// counted as asked.
    pub fn next(&self, reader: &CacheReader) -> Option<BackfillRequest> {
        let held = Held { floor: reader.floor(), known: reader.known() };
        let mut ledger = self.ledger.lock();
        let next = ledger.next(held, Instant::now())?;
        ledger.memory.ask(next);
        Some(next)
    }

    /// Remembers an answer and wakes the clients that wait.
    pub fn answered(&self, answer: BackfillOutcome) {
        let has_failed = self.ledger.lock().memory.note(answer, Instant::now());
        self.failures.send_modify(|failures| *failures += u64::from(has_failed));
    }
}

impl Ledger {
    fn crowds_of(&mut self, who: ResumingClient) -> impl Iterator<Item = &mut Crowd> {
        std::iter::once(&mut self.waiting).chain(Some(&mut self.inquiring).filter(|_| who.inquires))
    }

    /// Chooses the oldest version that upstream may still have, because its events serve all later versions too. If it
    /// is unknown how far upstream's history reaches, it chooses the one in the middle, so that each refusal halves the
    /// rest.
    fn next(&self, held: Held, now: Instant) -> Option<BackfillRequest> {
        let memory = &self.memory;
        // Clients that were turned away may still be counted here.
        if memory.is_over || memory.rests(now) || memory.questions >= QUESTIONS_MAX {
            return None;
        }
        let from_before = |crowd: &Crowd, begins: ResourceVersion, ends: ResourceVersion| -> Vec<ResourceVersion> {
            if begins < ends { crowd.range(begins..ends).map(|(from, _)| *from).collect() } else { Vec::new() }
        };
        let earlier = from_before(&self.waiting, memory.gone_before, held.floor);
        let at = if memory.is_blind { earlier.len() / 2 } else { 0 };
        if let Some(from) = earlier.get(at) {
            return Some(BackfillRequest::Events(*from));
        }
        let inquiring = from_before(&self.inquiring, held.floor.max(memory.inexplicable_upto), held.known);
        inquiring.first().map(|from| BackfillRequest::Before(*from))
    }
}

impl Memory {
    fn prospect(&self, who: ResumingClient, now: Instant) -> Prospect {
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

    fn ask(&mut self, question: BackfillRequest) {
        self.questions += 1;
        self.under_way = Some(question);
    }

    /// Returns whether those who wait have nothing more to wait for, because upstream does not answer.
    fn note(&mut self, answer: BackfillOutcome, now: Instant) -> bool {
        self.under_way = None;
        self.broken = if answer == BackfillOutcome::BrokeOff { self.broken + 1 } else { 0 };
        let has_failed = answer == BackfillOutcome::Failed || self.broken >= BROKEN_MAX;
        if has_failed {
            self.rests_until = Some(now + REST);
            self.broken = 0;
        }
        match answer {
            BackfillOutcome::Joined
            | BackfillOutcome::Explained
            | BackfillOutcome::BrokeOff
            | BackfillOutcome::Failed => {}
            BackfillOutcome::Gone { before } => self.gone_before = self.gone_before.max(before),
            BackfillOutcome::TooEarly { from } => {
                self.gone_before = self.gone_before.max(ResourceVersion(from.0.saturating_add(1)));
                self.is_blind = true;
            }
            BackfillOutcome::OtherHistory => self.is_over = true,
            BackfillOutcome::Inexplicable { upto } => self.inexplicable_upto = self.inexplicable_upto.max(upto),
        }
        has_failed
    }
}

impl BackfillRequest {
    /// Whether the answer can be all that this client waits for.
    fn serves(self, who: ResumingClient) -> bool {
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
