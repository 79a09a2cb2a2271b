use std::pin::pin;

use futures_util::FutureExt as _;

use super::*;
use crate::cache::tests::fixture::{POD, added, drawn_seed, listed, ring, rv};

fn who(from: u64) -> ResumingClient {
    ResumingClient { from: rv(from), needs_previous: false }
}

fn inquirer(from: u64) -> ResumingClient {
    ResumingClient { from: rv(from), needs_previous: true }
}

fn crowd(versions: &[u64]) -> BTreeMap<ResumingClient, usize> {
    versions.iter().map(|from| (who(*from), 1)).collect()
}

/// A feed that has everything after 100.
const HELD: FeedHistoryBounds = FeedHistoryBounds { floor: ResourceVersion(100), known: ResourceVersion(100) };

fn remembers(answers: &[BackfillOutcome], now: Instant) -> BackfillProgress {
    let mut memory = BackfillProgress::default();
    for answer in answers {
        memory.ask(BackfillRequest::Events(rv(1)));
        memory.note(*answer, now);
    }
    memory
}

#[test]
fn backfill_outcome_decides_if_later_clients_wait() {
    use BackfillOutcome::{
        Failed, Gone, Interrupted, OtherHistory, Prepended, PreviousFound, PreviousUnknown, TooEarly,
    };
    let now = Instant::now();
    let spent = [Prepended; REQUESTS_MAX as usize];
    let gone = Gone { before: rv(50) };
    for (answers, from, later, waits) in [
        (&[][..], 1, 0, true),
        (&[Prepended], 1, 0, true),
        (&[gone], 49, 0, false),
        (&[gone], 49, 86_400, false),
        (&[gone], 50, 0, true),
        // An older outcome stays valid.
        (&[gone, Gone { before: rv(20) }], 49, 0, false),
        (&[TooEarly { from: rv(50) }], 50, 0, false),
        (&[TooEarly { from: rv(50) }], 51, 0, true),
        (&[OtherHistory], 99, 86_400, false),
        (&[Failed], 99, 0, false),
        (&[Failed], 99, 4, false),
        (&[Failed], 99, 5, true),
        // A broken response is retried, for a limited number of times.
        (&[Interrupted], 99, 0, true),
        (&[Interrupted, Interrupted], 99, 0, true),
        (&[Interrupted, Interrupted, Prepended, Interrupted, Interrupted], 99, 0, true),
        (&[Interrupted, Interrupted, Interrupted], 99, 4, false),
        (&[Interrupted, Interrupted, Interrupted], 99, 5, true),
        (&spent, 99, 86_400, false),
        (&spent[1..], 99, 0, true),
        // Irrelevant to clients that do not need previous states.
        (&[PreviousUnknown { upto: rv(50) }], 49, 0, true),
        (&[PreviousFound], 49, 0, true),
    ] {
        let memory = remembers(answers, now);
        let may_wait = memory.may_wait(who(from), now + Duration::from_secs(later));
        assert_eq!(may_wait, waits, "{answers:?}, from {from}, {later} s later");
    }
}

#[test]
fn unexplained_range_rejects_later_clients_without_a_request() {
    let now = Instant::now();
    let memory = remembers(&[BackfillOutcome::PreviousUnknown { upto: rv(50) }], now);
    assert!(!memory.may_wait(inquirer(49), now));
    assert!(memory.may_wait(inquirer(50), now));
}

#[test]
fn clients_wait_for_the_last_request_only_if_served_by_its_range() {
    let now = Instant::now();
    for (question, served) in [
        (BackfillRequest::Events(rv(50)), [false, true, true, true]),
        (BackfillRequest::Before(rv(50)), [false, false, false, true]),
    ] {
        let mut memory = remembers(&[BackfillOutcome::Prepended; REQUESTS_MAX as usize - 1], now);
        memory.ask(question);
        let those = [who(49), who(50), who(51), inquirer(51)];
        assert_eq!(those.map(|who| memory.may_wait(who, now)), served, "{question:?}");
        memory.note(BackfillOutcome::Prepended, now);
        assert_eq!(those.map(|who| memory.may_wait(who, now)), [false; 4]);
    }
}

#[test]
fn backfill_requests_the_oldest_version_not_known_to_be_expired() {
    use BackfillOutcome::{Failed, Gone, OtherHistory, PreviousUnknown};
    let (now, fresh) = (Instant::now(), BackfillProgress::default());
    let gone = |before| remembers(&[Gone { before: rv(before) }], now);
    let over = remembers(&[OtherHistory], now);
    let blind = BackfillProgress { start_unknown: true, ..fresh };
    let spent = BackfillProgress { requests: REQUESTS_MAX, ..fresh };
    let partly = FeedHistoryBounds { known: rv(150), ..HELD };
    let events = |from| Some(BackfillRequest::Events(rv(from)));
    let before = |from| Some(BackfillRequest::Before(rv(from)));
    for (what, memory, bounds, waiting, inquiring, next) in [
        ("no client waits", fresh, HELD, &[][..], &[][..], None),
        ("the oldest", fresh, HELD, &[30, 10, 20], &[], events(10)),
        ("the oldest that was not refused", gone(20), HELD, &[30, 10, 20, 19], &[], events(20)),
        ("all were refused", gone(20), HELD, &[10, 19], &[], None),
        ("those within the history wait no longer", fresh, HELD, &[100, 120], &[], None),
        ("the middle if the start is unknown", blind, HELD, &[10, 20, 30, 40, 50], &[], events(30)),
        ("the last one, too", blind, HELD, &[10], &[], events(10)),
        ("it is left alone", remembers(&[Failed], now), HELD, &[10], &[], None),
        ("it is of no use", over, HELD, &[10], &[], None),
        ("often enough", spent, HELD, &[10], &[], None),
        ("all is gone", gone(100), HELD, &[10, 99], &[], None),
        ("more than all is gone", gone(101), HELD, &[10, 99], &[], None),
        ("what happened comes first", fresh, partly, &[90, 120], &[120], events(90)),
        ("then what was there before", fresh, partly, &[120, 130], &[130, 120], before(120)),
        ("no client inquires", fresh, partly, &[120], &[], None),
        ("all is explained", fresh, HELD, &[120], &[120], None),
        (
            "previous states are unknown",
            remembers(&[PreviousUnknown { upto: rv(130) }], now),
            partly,
            &[120],
            &[120],
            None,
        ),
        (
            "that could be explained",
            remembers(&[PreviousUnknown { upto: rv(130) }], now),
            partly,
            &[140],
            &[140],
            before(140),
        ),
    ] {
        let mut ledger = ResumeBackfillState { waiting: crowd(waiting), memory };
        ledger.waiting.extend(inquiring.iter().map(|from| (inquirer(*from), 1)));
        assert_eq!(ledger.next(bounds, now), next, "{what}");
    }
}

/// Clients of a fleet reconnect in any order, each from its own version.
#[test]
fn five_thousand_resume_versions_cost_few_backfill_requests() {
    let seed = drawn_seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut resume_backfills: Vec<_> = (1..=5_000).collect();
    for at_once in [1, 10, 100] {
        random.shuffle(&mut resume_backfills);
        let (mut ledger, mut bounds) =
            (ResumeBackfillState::default(), FeedHistoryBounds { floor: rv(6_000), known: rv(6_000) });
        for some in resume_backfills.chunks(at_once) {
            ledger.waiting = crowd(some);
            if let Some(BackfillRequest::Events(from)) = ledger.next(bounds, Instant::now()) {
                ledger.memory.ask(BackfillRequest::Events(from));
                ledger.memory.note(BackfillOutcome::Prepended, Instant::now());
                bounds = FeedHistoryBounds { floor: from, known: from };
            }
        }
        let requests = ledger.memory.requests;
        assert!(requests <= REQUESTS_MAX, "seed {seed}: {requests}");
        assert!(bounds.floor <= rv(50), "seed {seed}, {at_once} at once: nearly all are served: {bounds:?}");
    }
}

#[test]
fn backfill_bisects_if_upstream_reports_no_oldest_version() {
    let mut ledger = ResumeBackfillState {
        waiting: (1..=5_000).map(|from| (who(from), 1)).collect(),
        ..ResumeBackfillState::default()
    };
    let (mut bounds, had) = (FeedHistoryBounds { floor: rv(6_000), known: rv(6_000) }, rv(4_321));
    while let Some(BackfillRequest::Events(from)) = ledger.next(bounds, Instant::now()) {
        ledger.memory.ask(BackfillRequest::Events(from));
        let answer = if from < had { BackfillOutcome::TooEarly { from } } else { BackfillOutcome::Prepended };
        if answer == BackfillOutcome::Prepended {
            bounds.floor = from;
        }
        ledger.memory.note(answer, Instant::now());
    }
    assert_eq!(bounds.floor, had, "after {} requests", ledger.memory.requests);
}

#[tokio::test(start_paused = true)]
async fn waiting_resume_returns_when_backfill_joins_or_fails() {
    let (mut writer, reader) = listed(ring(10), 100, &[]);
    let (resume_backfills, everything) = (ResumeBackfills::default(), CollectionView::everything());
    let [mut served, mut earlier, mut later] =
        [50, 40, 60].map(|from| Box::pin(resume_backfills.wait(rv(from), &everything, &reader)));
    for waits in [&mut served, &mut earlier, &mut later] {
        assert!(waits.as_mut().now_or_never().is_none());
    }
    resume_backfills.requested().await;
    assert_eq!(resume_backfills.next(&reader), Some(BackfillRequest::Events(rv(40))), "the oldest");
    resume_backfills.answered(BackfillOutcome::Gone { before: rv(45) });
    assert!(earlier.as_mut().now_or_never().is_some(), "upstream has no more of it");
    assert!(served.as_mut().now_or_never().is_none());
    assert_eq!(resume_backfills.next(&reader), Some(BackfillRequest::Events(rv(50))));
    let beginning = reader.history_start().expect("the first history, and whole");
    assert!(writer.prepend(beginning.joined_by(rv(50), Vec::new()).expect("nothing happened")));
    resume_backfills.answered(BackfillOutcome::Prepended);
    assert!(served.as_mut().now_or_never().is_some() && later.as_mut().now_or_never().is_some());
    assert!(resume_backfills.state.lock().waiting.is_empty(), "a client that leaves is removed");
}

#[tokio::test(start_paused = true)]
async fn failed_backfill_rejects_clients_until_the_pause_ends() {
    let (_writer, reader) = listed(ring(10), 100, &[]);
    let (resume_backfills, everything) = (ResumeBackfills::default(), CollectionView::everything());
    let mut waits = pin!(resume_backfills.wait(rv(50), &everything, &reader));
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(resume_backfills.next(&reader), Some(BackfillRequest::Events(rv(50))));
    resume_backfills.answered(BackfillOutcome::Failed);
    assert!(waits.now_or_never().is_some());
    assert!(resume_backfills.wait(rv(60), &everything, &reader).now_or_never().is_some());
    tokio::time::advance(REST).await;
    assert!(resume_backfills.wait(rv(60), &everything, &reader).now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn broken_backfill_is_retried_until_the_third_failure() {
    let (_writer, reader) = listed(ring(10), 100, &[]);
    let (resume_backfills, everything) = (ResumeBackfills::default(), CollectionView::everything());
    let mut waits = pin!(resume_backfills.wait(rv(50), &everything, &reader));
    assert!(waits.as_mut().now_or_never().is_none());
    for breaks in 1..BROKEN_MAX {
        assert_eq!(resume_backfills.next(&reader), Some(BackfillRequest::Events(rv(50))), "{breaks}");
        resume_backfills.answered(BackfillOutcome::Interrupted);
        assert!(waits.as_mut().now_or_never().is_none(), "{breaks}");
    }
    assert_eq!(resume_backfills.next(&reader), Some(BackfillRequest::Events(rv(50))));
    resume_backfills.answered(BackfillOutcome::Interrupted);
    assert!(waits.now_or_never().is_some());
}

#[tokio::test]
async fn resume_does_not_wait_if_history_cannot_be_extended() {
    let (mut writer, reader) = listed(ring(1), 100, &[]);
    let (resume_backfills, everything) = (ResumeBackfills::default(), CollectionView::everything());
    assert!(resume_backfills.wait(rv(50), &everything, &reader).now_or_never().is_none());
    for (version, note) in [(101, 1), (102, 2)] {
        writer.apply([added(&crate::cache::tests::fixture::Pod { note, ..POD }, version)]).expect("in order");
    }
    assert_eq!(reader.floor(), rv(101), "the ring is full");
    assert!(resume_backfills.wait(rv(50), &everything, &reader).now_or_never().is_some());
}
