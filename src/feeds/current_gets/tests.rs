use std::collections::BTreeSet;

use super::*;

/// Counts GETs evenly over a window, each with this outcome. Returns the times at which they would ask.
fn second(meter: &CurrentGets, from: Instant, reads: u32, waited: Option<Duration>) -> Vec<Option<Instant>> {
    let turns = (0..reads).map(|n| {
        let turn = meter.turn(from + WINDOW * n / reads);
        if turn.is_some() {
            meter.came_to(waited.map_or(GetOutcome::Late, |waited| GetOutcome::Proven { waited }));
        }
        turn
    });
    turns.collect()
}

const SOON: Option<Duration> = Some(Duration::from_millis(3));

fn shared(turns: &[Option<Instant>]) -> usize {
    turns.iter().flatten().count()
}

#[test]
fn few_are_passed_on_and_many_share_proofs() {
    let (meter, start) = (CurrentGets::default(), Instant::now());
    assert_eq!(shared(&second(&meter, start, 150, SOON)), 0);
    let turns = second(&meter, start + WINDOW, 2000, SOON);
    assert_eq!(shared(&turns), 1801, "from the two hundredth on");
    let turns = second(&meter, start + 2 * WINDOW, 2000, SOON);
    assert_eq!(shared(&turns), 2000);
    let asked: BTreeSet<_> = turns.iter().flatten().collect();
    assert!((250..=251).contains(&asked.len()), "{} questions for two thousand reads", asked.len());
    assert_eq!(shared(&second(&meter, start + 3 * WINDOW, 150, SOON)), 150, "this second is judged at its end");
    assert_eq!(shared(&second(&meter, start + 4 * WINDOW, 150, SOON)), 0);
}

#[test]
fn nobody_gathers_for_longer_than_five_milliseconds() {
    let (meter, start) = (CurrentGets::default(), Instant::now());
    for (number, turn) in second(&meter, start, 300, SOON).into_iter().enumerate() {
        let came = start + WINDOW * u32::try_from(number).unwrap() / 300;
        assert!(turn.is_none_or(|turn| turn > came && turn <= came + GATHER_MAX));
    }
}

#[test]
fn what_costs_more_than_half_of_the_reads_or_takes_long_is_given_up_and_tried_ever_more_rarely() {
    let slow = Some(Duration::from_millis(20));
    for (waited, cost) in [(slow, 0), (SOON, 200)] {
        let (meter, start) = (CurrentGets::default(), Instant::now());
        let mut attempts = Vec::new();
        for number in 0..200 {
            let turns = second(&meter, start + number * WINDOW, 1000, waited);
            (0..cost).for_each(|_| meter.cost(ProofCost::Equality(36)));
            if shared(&turns) > 0 {
                attempts.push(number);
            }
        }
        assert_eq!(attempts.len(), 5, "{attempts:?}");
        assert!(attempts[4] > 70 + 80, "{attempts:?}");
    }
}

#[test]
fn some_that_are_late_stop_it_at_once() {
    let (meter, start) = (CurrentGets::default(), Instant::now());
    let turns = second(&meter, start, 1000, None);
    assert_eq!(shared(&turns), 8);
    assert_eq!(shared(&second(&meter, start + WINDOW, 1000, SOON)), 0);
    assert!(shared(&second(&meter, start + REST + WINDOW, 1000, SOON)) > 0, "another attempt");
}

#[test]
fn a_quiet_time_is_no_failure() {
    let (meter, start) = (CurrentGets::default(), Instant::now());
    second(&meter, start, 1000, SOON);
    let later = start + 60 * WINDOW;
    assert_eq!(shared(&second(&meter, later, 199, SOON)), 0);
    assert_eq!(shared(&second(&meter, later + WINDOW, 1000, SOON)), 801);
}
