use std::time::Duration;

use tokio::time::Instant;

use super::choice::EndpointDecision;
use super::*;
use base::Waits;

const SECOND: Duration = Duration::from_secs(1);

/// A choice, a clock, and the readiness of the servers.
struct World {
    choice: EndpointChoice,
    now: Instant,
    ready: Vec<bool>,
    /// Every readiness check, with its server and time.
    asked: Vec<(usize, Duration)>,
    switches: Vec<(usize, usize, SwitchCause)>,
    began: Instant,
    waits_until: Option<Instant>,
}

impl World {
    fn of(ready: &[bool]) -> Self {
        let now = Instant::now();
        let choice = EndpointChoice::new(ready.len(), EndpointTimes::default(), 0.0, now);
        let (asked, switches) = (Vec::new(), Vec::new());
        Self { choice, now, ready: ready.to_vec(), asked, switches, began: now, waits_until: None }
    }

    /// Passes in an event, and completes readiness checks until the choice waits.
    fn hear(&mut self, mut event: EndpointEvent) {
        loop {
            let EndpointDecision { switch, next } = self.choice.next(event, self.now);
            self.switches.extend(switch.map(|EndpointSwitch { from, to, cause }| (from, to, cause)));
            match next {
                NextStep::Ask(at) => {
                    self.asked.push((at, self.now - self.began));
                    event = EndpointEvent::Answer { is_ready: self.ready[at] };
                }
                NextStep::Wait(until) => {
                    self.waits_until = until;
                    return;
                }
            }
        }
    }

    fn alarm(&mut self) {
        self.hear(EndpointEvent::Alarm { at: self.choice.current() });
    }

    /// Advances the clock, and calls `happens` at every step.
    fn pass(&mut self, time: Duration, mut happens: impl FnMut(&mut Self)) {
        let end = self.now + time;
        while self.now < end {
            self.now += SECOND / 4;
            if self.waits_until.is_some_and(|due| due <= self.now) {
                self.hear(EndpointEvent::Due);
            }
            happens(self);
        }
    }

    fn servers_asked(&self) -> Vec<usize> {
        self.asked.iter().map(|(at, _)| *at).collect()
    }
}

#[test]
fn while_all_is_well_nobody_is_asked() {
    let mut world = World::of(&[true, true]);
    world.hear(EndpointEvent::Due);
    world.pass(1000 * SECOND, |_| {});
    assert_eq!((world.asked.len(), world.waits_until), (0, None));
}

#[test]
fn the_first_server_that_is_ready_takes_the_place_of_one_that_is_not() {
    use SwitchCause::Failed;
    for (ready, asked, switches) in [
        (&[true, true, true][..], &[0][..], &[][..]),
        (&[false, true, true], &[0, 1], &[(0, 1, Failed)]),
        (&[false, false, true], &[0, 1, 2], &[(0, 2, Failed)]),
        (&[false, false, false], &[0, 1, 2], &[]),
    ] {
        let mut world = World::of(ready);
        world.alarm();
        assert_eq!((&world.servers_asked()[..], &world.switches[..]), (asked, switches), "{ready:?}");
    }
}

#[test]
fn a_server_that_is_not_used_may_fail() {
    let mut world = World::of(&[true, false]);
    world.hear(EndpointEvent::Alarm { at: 1 });
    assert_eq!(world.asked, []);
}

#[test]
fn signs_against_a_server_that_is_ready_cost_ever_fewer_questions() {
    let mut world = World::of(&[true, true]);
    world.pass(600 * SECOND, World::alarm);
    assert!((30..60).contains(&world.asked.len()), "{} questions in ten minutes", world.asked.len());
    assert!(world.asked.iter().all(|(at, _)| *at == 0), "and none to another server");
    world.pass(400 * SECOND, |_| {});
    let before = world.asked.len();
    world.alarm();
    assert_eq!(world.asked.len(), before + 1, "after a calm time at once");
}

#[test]
fn while_no_server_is_ready_all_are_asked_and_whichever_comes_first_is_used() {
    for first in 0..3 {
        let mut world = World::of(&[false; 3]);
        world.alarm();
        world.pass(120 * SECOND, World::alarm);
        let rounds = world.asked.len() / 3;
        assert!((12..20).contains(&rounds), "{rounds} rounds in two minutes, whoever asks for something");
        world.ready[first] = true;
        world.pass(11 * SECOND, |_| {});
        assert_eq!(world.choice.current(), first);
    }
}

#[test]
fn a_preferred_server_is_used_again_when_it_has_been_ready_for_a_while() {
    let mut world = World::of(&[false, true]);
    world.alarm();
    assert_eq!(world.choice.current(), 1);
    world.ready[0] = true;
    world.pass(29 * SECOND, |_| {});
    assert_eq!(world.servers_asked(), [0, 1], "not before it may have come to itself");
    world.pass(30 * SECOND, |_| {});
    assert_eq!((world.choice.current(), world.asked.len()), (1, 5));
    world.pass(2 * SECOND, |_| {});
    assert_eq!(world.switches.last(), Some(&(1, 0, SwitchCause::Preferred)));
    let asked = world.asked.len();
    world.pass(1000 * SECOND, |_| {});
    assert_eq!((world.asked.len(), world.waits_until), (asked, None), "all is well again");
}

#[test]
fn a_preferred_server_that_stays_away_is_asked_ever_more_rarely() {
    let mut world = World::of(&[false, true]);
    world.alarm();
    world.pass(24 * 3600 * SECOND, |_| {});
    let asked = world.asked.len();
    assert!((45..60).contains(&asked), "{asked} questions in a day");
    assert_eq!(world.switches.len(), 1);
}

#[test]
fn a_server_is_not_good_when_it_is_ready_now_and_then() {
    let mut world = World::of(&[false, true]);
    world.alarm();
    let mut steps = 0;
    world.pass(3600 * SECOND, |world| {
        steps += 1;
        // Ten seconds up, ten seconds down.
        world.ready[0] = steps / 40 % 2 == 0;
    });
    assert!(world.switches.len() <= 3, "{:?}", world.switches);
    assert!(world.asked.len() < 60, "{} questions in an hour", world.asked.len());
}

#[test]
fn a_return_that_does_not_last_makes_the_next_one_later() {
    let mut world = World::of(&[false, true]);
    world.alarm();
    world.pass(24 * 3600 * SECOND, |world| {
        // The server is ready until it is used.
        world.ready[0] = world.choice.current() == 1;
        if world.choice.current() == 0 {
            world.alarm();
        }
    });
    let switches = world.switches.len();
    assert!((20..120).contains(&switches), "{switches} switches in a day");
}

#[test]
fn servers_that_come_and_go_in_turn_are_changed_twice_a_minute_at_most() {
    let mut world = World::of(&[false, true, true]);
    world.pass(3600 * SECOND, |world| {
        // The server in use fails, and the others are ready.
        let current = world.choice.current();
        world.ready = (0..3).map(|at| at != current).collect();
        world.alarm();
    });
    let switches = world.switches.len();
    assert!((60..=126).contains(&switches), "{switches} switches in an hour");
    assert!(world.asked.len() <= 3 * switches + 3 * 120, "{} questions in an hour", world.asked.len());
}

#[test]
fn the_second_failure_in_a_row_is_acted_on_within_a_second() {
    let mut world = World::of(&[false, true, true]);
    world.alarm();
    assert_eq!(world.choice.current(), 1);
    world.ready = vec![false, false, true];
    world.alarm();
    assert_eq!(world.choice.current(), 1, "it has only come");
    world.pass(SECOND, |_| {});
    assert_eq!(world.choice.current(), 2);
}

#[test]
fn processes_that_began_together_go_back_at_different_times() {
    let returns = |spread: f64| {
        let now = Instant::now();
        let mut choice = EndpointChoice::new(2, EndpointTimes::default(), spread, now);
        for event in [EndpointEvent::Alarm { at: 0 }, EndpointEvent::Answer { is_ready: false }] {
            choice.next(event, now);
        }
        match choice.next(EndpointEvent::Answer { is_ready: true }, now).next {
            NextStep::Wait(Some(due)) => due - now,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((returns(0.0), returns(1.0)), (30 * SECOND, 45 * SECOND));
}

fn endpoints(servers: &[&str]) -> Endpoints {
    let times = EndpointTimes { slow: SECOND, ..EndpointTimes::default() };
    let servers = servers.iter().map(|text| text.parse().expect("a URL")).collect();
    Endpoints::new(EndpointsConfig { servers, times })
}

const FAILED: EndpointSwitch = EndpointSwitch { from: 0, to: 1, cause: SwitchCause::Failed };

#[tokio::test(start_paused = true)]
async fn a_question_of_ours_is_given_up_when_its_server_has_failed_and_a_callers_request_is_not() {
    let two = endpoints(&["https://a", "https://b"]);
    let mut alarms = two.alarms();
    let (other, switching) = (two.clone(), two.clone());
    let silent = || std::future::pending::<Result<(), Error>>();
    let caller = tokio::spawn(async move { other.heed(0, RequestOrigin::Caller, pin!(silent())).await });
    let ours = tokio::spawn(async move { two.heed(0, RequestOrigin::Ours, pin!(silent())).await });
    assert_eq!(Endpoints::next_alarm(&mut alarms).await, 0, "one that is slow is a sign");
    switching.switch(EndpointSwitch { cause: SwitchCause::Preferred, ..FAILED });
    switching.switch(EndpointSwitch { from: 1, to: 0, cause: SwitchCause::Failed });
    tokio::time::sleep(SECOND).await;
    assert!(!ours.is_finished(), "its server is well");
    switching.switch(FAILED);
    assert!(matches!(ours.await.expect("it ends"), Err(Error::Unreachable(_))));
    assert!(!caller.is_finished(), "it may be anything, and is not sent again");
    caller.abort();
    let late = switching.heed(0, RequestOrigin::Ours, pin!(silent())).await;
    assert!(late.is_err(), "whoever had chosen the server before it failed");
}

#[tokio::test(start_paused = true)]
async fn one_server_is_left_alone_however_it_fails() {
    for one in [endpoints(&[]), endpoints(&["https://a"])] {
        let mut alarms = one.alarms();
        let failed = async { Err::<(), _>(Error::Timeout(SECOND)) };
        assert!(one.heed(0, RequestOrigin::Ours, pin!(failed)).await.is_err());
        one.raise(0);
        let heard = tokio::time::timeout(60 * SECOND, Endpoints::next_alarm(&mut alarms)).await;
        assert!(heard.is_err() && !one.are_several());
    }
}

#[test]
fn waits_are_doubled_up_to_the_longest() {
    let waits = Waits { first: SECOND, longest: 10 * SECOND };
    let choice = EndpointChoice::new(2, EndpointTimes::default(), 0.0, Instant::now());
    let after: Vec<_> = [1, 2, 3, 4, 5, 60].map(|times| choice.after(waits, times).as_secs()).into();
    assert_eq!(after, [1, 2, 4, 8, 10, 10]);
}
