//! A model of the set: a task, a stream, a codec and the threads that wake them, whose single steps interleave in any
//! order.
//!
//! Each step is one operation on a shared word, as in the code, in the single order that `SeqCst` gives. Each reason
//! for an order of steps is a [`Rule`]: without any one of them, the model finds a lost wake-up.

use std::collections::HashSet;

/// The reasons for the order of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// After the task has cleared its polling flag, it looks once more.
    LookAgain,
    /// A stream is removed from the set before it is polled.
    AnswerFirst,
    /// A waker adds its part to the set before it reads the task's polling flag.
    ComeFirst,
    /// The codec's flag is cleared before the codec is polled.
    TakeFirst,
}

const RULES: [Rule; 4] = [Rule::LookAgain, Rule::AnswerFirst, Rule::ComeFirst, Rule::TakeFirst];
/// The part that each waker wakes.
const WAKERS: [Part; 3] = [Part::Stream, Part::Stream, Part::Codec];
/// The rounds that the task takes in one poll. The code takes more; this many suffice for the last one to matter.
const TURNS: u8 = 2;
/// The number of steps of a waker that has finished.
const DONE: u8 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Stream,
    Codec,
}

/// The shared state, and the position of each thread.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the code's")]
struct State {
    /// The executor will run the task.
    is_woken: bool,
    is_polling: bool,
    /// Whether the stream is marked as in the set.
    is_marked: bool,
    /// Whether the stream is in the set.
    is_listed: bool,
    codec: bool,
    /// The number of occurrences for stream and codec, and how many each has seen.
    happened: [u8; 2],
    seen: [u8; 2],
    task: Task,
    turn: u8,
    /// The number of steps of each waker.
    wakers: [u8; WAKERS.len()],
    /// The polling flag as read by a waker that reads it too early.
    saw: [bool; WAKERS.len()],
}

/// The next step of the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Task {
    Sleep,
    TakeStreams,
    /// The two steps for a stream from the set: unmark it and poll it.
    First,
    Second,
    TakeCodec,
    PollCodec,
    ClearCodec,
    IsQuiet,
    EndLook,
    LookAgain,
}

const BEGUN: State = State {
    is_woken: true,
    is_polling: false,
    is_marked: false,
    is_listed: false,
    codec: true,
    happened: [0; 2],
    seen: [0; 2],
    task: Task::Sleep,
    turn: 0,
    wakers: [0; WAKERS.len()],
    saw: [false; WAKERS.len()],
};

impl State {
    /// Takes the task's next step, unless it sleeps.
    fn task(&mut self, broken: Option<Rule>) -> bool {
        let keeps = |rule| broken != Some(rule);
        self.task = match self.task {
            Task::Sleep if !self.is_woken => return false,
            Task::Sleep => {
                (self.is_woken, self.is_polling, self.turn) = (false, true, 0);
                Task::TakeStreams
            }
            Task::TakeStreams => {
                self.turn += 1;
                if std::mem::take(&mut self.is_listed) { Task::First } else { Task::TakeCodec }
            }
            Task::First => {
                self.step_of_stream(keeps(Rule::AnswerFirst));
                Task::Second
            }
            Task::Second => {
                self.step_of_stream(!keeps(Rule::AnswerFirst));
                Task::TakeCodec
            }
            Task::TakeCodec if !self.codec => Task::IsQuiet,
            Task::TakeCodec => {
                self.codec = !keeps(Rule::TakeFirst);
                Task::PollCodec
            }
            Task::PollCodec => {
                self.poll(Part::Codec);
                if keeps(Rule::TakeFirst) { Task::IsQuiet } else { Task::ClearCodec }
            }
            Task::ClearCodec => {
                self.codec = false;
                Task::IsQuiet
            }
            Task::IsQuiet if self.is_quiet() || self.turn == TURNS => Task::EndLook,
            Task::IsQuiet => Task::TakeStreams,
            Task::EndLook => {
                self.is_polling = false;
                // Without the rule, the task relies on what it has seen before.
                if !keeps(Rule::LookAgain) {
                    self.is_woken |= self.turn == TURNS;
                }
                if keeps(Rule::LookAgain) { Task::LookAgain } else { Task::Sleep }
            }
            Task::LookAgain => {
                self.is_woken |= !self.is_quiet();
                Task::Sleep
            }
        };
        true
    }

    fn step_of_stream(&mut self, answers: bool) {
        if answers { self.is_marked = false } else { self.poll(Part::Stream) }
    }

    fn poll(&mut self, part: Part) {
        self.seen[part as usize] = self.happened[part as usize];
    }

    fn is_quiet(&self) -> bool {
        !self.codec && !self.is_listed
    }

    /// Takes the next step of a waker, if there is one.
    fn waker(&mut self, number: usize, broken: Option<Rule>) -> bool {
        let (part, comes_first) = (WAKERS[number], broken != Some(Rule::ComeFirst));
        if self.wakers[number] == DONE {
            return false;
        }
        self.wakers[number] += 1;
        match (self.wakers[number], part) {
            (1, _) => self.happened[part as usize] += 1,
            (2, _) => self.saw[number] = !comes_first && self.is_polling,
            (3, Part::Codec) => self.codec = true,
            // Another waker adds the stream and wakes the task.
            (3, Part::Stream) if self.is_marked => self.wakers[number] = DONE,
            (3, Part::Stream) => self.is_marked = true,
            (4, Part::Codec) => {}
            (4, Part::Stream) => self.is_listed = true,
            _ => self.is_woken |= !(if comes_first { self.is_polling } else { self.saw[number] }),
        }
        true
    }
}

/// Visits every reachable state. Returns their number, and a final state in which a part has not seen an occurrence.
fn explore(broken: Option<Rule>) -> (usize, Option<State>) {
    let (mut known, mut next, mut lost) = (HashSet::from([BEGUN]), vec![BEGUN], None);
    while let Some(state) = next.pop() {
        let mut is_over = true;
        for hand in 0..=WAKERS.len() {
            let mut then = state.clone();
            let moved = match hand.checked_sub(1) {
                None => then.task(broken),
                Some(number) => then.waker(number, broken),
            };
            is_over &= !moved;
            if moved && known.insert(then.clone()) {
                next.push(then);
            }
        }
        if is_over && state.seen != state.happened {
            lost = Some(state);
        }
    }
    (known.len(), lost)
}

#[test]
fn no_interleaving_loses_a_wake() {
    let (states, lost) = explore(None);
    assert_eq!(lost, None);
    assert!(states > 5_000, "{states} states are not all of them");
}

/// The model finds a lost wake-up if any rule is missing.
#[test]
fn dropping_any_rule_loses_a_wake_in_the_model() {
    for rule in RULES {
        assert!(explore(Some(rule)).1.is_some(), "{rule:?}");
    }
}
