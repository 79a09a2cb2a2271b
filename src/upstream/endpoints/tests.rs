use std::time::Duration;

use tokio::time::Instant;

use super::*;
use base::BackoffBounds;

const SECOND: Duration = Duration::from_secs(1);

/// A selector, a clock, and the readiness of the servers.
struct World {
    selector: EndpointSelector,
    now: Instant,
    ready: Vec<bool>,
    /// Every readiness check, with its server and time.
    checked: Vec<(usize, Duration)>,
    switches: Vec<(usize, usize, EndpointSwitchCause)>,
    began: Instant,
    waits_until: Option<Instant>,
}

impl World {
    fn of(ready: &[bool]) -> Self {
        let now = Instant::now();
        let selector = EndpointSelector::new(ready.len(), EndpointTimings::default(), 0.0, now);
        let (checked, switches) = (Vec::new(), Vec::new());
        Self { selector, now, ready: ready.to_vec(), checked, switches, began: now, waits_until: None }
    }

    /// Completes readiness checks until the selector waits.
    fn check(&mut self) {
        loop {
            match self.selector.next_step(self.now) {
                EndpointNextStep::Check(at) => {
                    self.checked.push((at, self.now - self.began));
                    let switch = self.selector.on_check_result(self.ready[at], self.now);
                    self.switches.extend(switch.map(|EndpointSwitch { from, to, cause }| (from, to, cause)));
                }
                EndpointNextStep::Wait(until) => {
                    self.waits_until = until;
                    return;
                }
            }
        }
    }

    fn report_failure_of(&mut self, at: usize) {
        self.selector.on_failure(at, self.now);
        self.check();
    }

    fn report_failure(&mut self) {
        self.report_failure_of(self.selector.current());
    }

    /// Advances the clock, and calls `happens` at every step.
    fn pass(&mut self, time: Duration, mut happens: impl FnMut(&mut Self)) {
        let end = self.now + time;
        while self.now < end {
            self.now += SECOND / 4;
            if self.waits_until.is_some_and(|due| due <= self.now) {
                self.check();
            }
            happens(self);
        }
    }

    fn checked_servers(&self) -> Vec<usize> {
        self.checked.iter().map(|(at, _)| *at).collect()
    }
}

#[test]
fn healthy_servers_are_not_probed() {
    let mut world = World::of(&[true, true]);
    world.check();
    world.pass(1000 * SECOND, |_| {});
    assert_eq!((world.checked.len(), world.waits_until), (0, None));
}

#[test]
fn failover_selects_first_ready_server() {
    use EndpointSwitchCause::Failed;
    for (ready, checked, switches) in [
        (&[true, true, true][..], &[0][..], &[][..]),
        (&[false, true, true], &[0, 1], &[(0, 1, Failed)]),
        (&[false, false, true], &[0, 1, 2], &[(0, 2, Failed)]),
        (&[false, false, false], &[0, 1, 2], &[]),
    ] {
        let mut world = World::of(ready);
        world.report_failure();
        assert_eq!((&world.checked_servers()[..], &world.switches[..]), (checked, switches), "{ready:?}");
    }
}

#[test]
fn failure_of_unused_server_is_ignored() {
    let mut world = World::of(&[true, false]);
    world.report_failure_of(1);
    assert_eq!(world.checked, []);
}

#[test]
fn alarms_for_ready_server_back_off_probes() {
    let mut world = World::of(&[true, true]);
    world.pass(600 * SECOND, World::report_failure);
    assert!((30..60).contains(&world.checked.len()), "{} questions in ten minutes", world.checked.len());
    assert!(world.checked.iter().all(|(at, _)| *at == 0), "and none to another server");
    world.pass(400 * SECOND, |_| {});
    let before = world.checked.len();
    world.report_failure();
    assert_eq!(world.checked.len(), before + 1, "after a calm time at once");
}

#[test]
fn all_servers_are_probed_until_one_is_ready() {
    for first in 0..3 {
        let mut world = World::of(&[false; 3]);
        world.report_failure();
        world.pass(120 * SECOND, World::report_failure);
        let rounds = world.checked.len() / 3;
        assert!((12..20).contains(&rounds), "{rounds} rounds in two minutes, however many requests fail");
        world.ready[first] = true;
        world.pass(11 * SECOND, |_| {});
        assert_eq!(world.selector.current(), first);
    }
}

#[test]
fn preferred_server_is_used_again_after_staying_ready() {
    let mut world = World::of(&[false, true]);
    world.report_failure();
    assert_eq!(world.selector.current(), 1);
    world.ready[0] = true;
    world.pass(29 * SECOND, |_| {});
    assert_eq!(world.checked_servers(), [0, 1], "not before it may have recovered");
    world.pass(30 * SECOND, |_| {});
    assert_eq!((world.selector.current(), world.checked.len()), (1, 5));
    world.pass(2 * SECOND, |_| {});
    assert_eq!(world.switches.last(), Some(&(1, 0, EndpointSwitchCause::Preferred)));
    let checked = world.checked.len();
    world.pass(1000 * SECOND, |_| {});
    assert_eq!((world.checked.len(), world.waits_until), (checked, None), "all is well again");
}

/// The checks of preferred servers may all time out.
#[test]
fn failed_server_is_checked_before_preferred_ones() {
    let mut world = World::of(&[false, false, true, true]);
    world.report_failure();
    assert_eq!(world.selector.current(), 2);
    world.now += 100 * SECOND;
    assert_eq!(world.selector.next_step(world.now), EndpointNextStep::Check(0));
    assert!(world.selector.is_failing_back());
    world.selector.on_failure(0, world.now);
    assert_eq!(world.selector.next_step(world.now), EndpointNextStep::Check(0), "it is not in use");
    world.ready[2] = false;
    world.checked.clear();
    world.report_failure();
    assert_eq!(world.checked_servers(), [2, 0, 1, 3]);
    assert_eq!(world.switches.last(), Some(&(2, 3, EndpointSwitchCause::Failed)));
}

#[test]
fn probes_of_failed_preferred_server_back_off() {
    let mut world = World::of(&[false, true]);
    world.report_failure();
    world.pass(24 * 3600 * SECOND, |_| {});
    let checked = world.checked.len();
    assert!((45..60).contains(&checked), "{checked} questions in a day");
    assert_eq!(world.switches.len(), 1);
}

#[test]
fn intermittently_ready_server_is_not_failed_back_to() {
    let mut world = World::of(&[false, true]);
    world.report_failure();
    let mut steps = 0;
    world.pass(3600 * SECOND, |world| {
        steps += 1;
        // Ten seconds up, ten seconds down.
        world.ready[0] = steps / 40 % 2 == 0;
    });
    assert!(world.switches.len() <= 3, "{:?}", world.switches);
    assert!(world.checked.len() < 60, "{} questions in an hour", world.checked.len());
}

#[test]
fn flapping_preferred_server_delays_next_failback() {
    let mut world = World::of(&[false, true]);
    world.report_failure();
    world.pass(24 * 3600 * SECOND, |world| {
        // The server is ready until it is used.
        world.ready[0] = world.selector.current() == 1;
        if world.selector.current() == 0 {
            world.report_failure();
        }
    });
    let switches = world.switches.len();
    assert!((20..120).contains(&switches), "{switches} switches in a day");
}

#[test]
fn alternating_failures_switch_at_most_twice_a_minute() {
    let mut world = World::of(&[false, true, true]);
    world.pass(3600 * SECOND, |world| {
        // The server in use fails, and the others are ready.
        let current = world.selector.current();
        world.ready = (0..3).map(|at| at != current).collect();
        world.report_failure();
    });
    let switches = world.switches.len();
    assert!((60..=126).contains(&switches), "{switches} switches in an hour");
    assert!(world.checked.len() <= 3 * switches + 3 * 120, "{} questions in an hour", world.checked.len());
}

#[test]
fn second_consecutive_failure_fails_over_within_a_second() {
    let mut world = World::of(&[false, true, true]);
    world.report_failure();
    assert_eq!(world.selector.current(), 1);
    world.ready = vec![false, false, true];
    world.report_failure();
    assert_eq!(world.selector.current(), 1, "it has only come");
    world.pass(SECOND, |_| {});
    assert_eq!(world.selector.current(), 2);
}

#[test]
fn failback_time_is_jittered_between_processes() {
    let failbacks = |spread: f64| {
        let now = Instant::now();
        let mut selector = EndpointSelector::new(2, EndpointTimings::default(), spread, now);
        selector.on_failure(0, now);
        for is_ready in [false, true] {
            assert!(matches!(selector.next_step(now), EndpointNextStep::Check(_)));
            selector.on_check_result(is_ready, now);
        }
        match selector.next_step(now) {
            EndpointNextStep::Wait(Some(due)) => due - now,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((failbacks(0.0), failbacks(1.0)), (30 * SECOND, 45 * SECOND));
}

fn endpoints(servers: &[&str]) -> UpstreamEndpoints {
    let times = EndpointTimings { slow: SECOND, ..EndpointTimings::default() };
    let servers = servers.iter().map(|text| text.parse().expect("a URL")).collect();
    UpstreamEndpoints::new(UpstreamEndpointsConfig { servers, times })
}

const FAILED: EndpointSwitch = EndpointSwitch { from: 0, to: 1, cause: EndpointSwitchCause::Failed };

#[tokio::test(start_paused = true)]
async fn failover_aborts_own_requests_but_not_caller_requests() {
    let two = endpoints(&["https://a", "https://b"]);
    let mut failures = two.failures();
    let (other, switching) = (two.clone(), two.clone());
    let silent = || std::future::pending::<Result<(), UpstreamError>>();
    let caller =
        tokio::spawn(async move { other.watch_response(0, UpstreamRequestOrigin::Caller, pin!(silent())).await });
    let ours = tokio::spawn(async move { two.watch_response(0, UpstreamRequestOrigin::Proxy, pin!(silent())).await });
    assert_eq!(UpstreamEndpoints::next_failure(&mut failures).await, 0, "one that is slow is a sign");
    switching.switch(EndpointSwitch { cause: EndpointSwitchCause::Preferred, ..FAILED });
    switching.switch(EndpointSwitch { from: 1, to: 0, cause: EndpointSwitchCause::Failed });
    tokio::time::sleep(SECOND).await;
    assert!(!ours.is_finished(), "its server is well");
    switching.switch(FAILED);
    assert!(matches!(ours.await.expect("it ends"), Err(UpstreamError::Unreachable(_))));
    assert!(!caller.is_finished(), "it may be anything, and is not sent again");
    caller.abort();
    let late = switching.watch_response(0, UpstreamRequestOrigin::Proxy, pin!(silent())).await;
    assert!(late.is_err(), "also for a request that had selected the server before it failed");
}

#[tokio::test(start_paused = true)]
async fn single_server_raises_no_failover_alarms() {
    for one in [endpoints(&[]), endpoints(&["https://a"])] {
        let mut failures = one.failures();
        let failed = async { Err::<(), _>(UpstreamError::Timeout(SECOND)) };
        assert!(one.watch_response(0, UpstreamRequestOrigin::Proxy, pin!(failed)).await.is_err());
        one.report_failure(0);
        let next = tokio::time::timeout(60 * SECOND, UpstreamEndpoints::next_failure(&mut failures)).await;
        assert!(next.is_err() && !one.has_several());
    }
}

#[test]
fn backoff_doubles_up_to_maximum() {
    let waits = BackoffBounds { first: SECOND, longest: 10 * SECOND };
    let selector = EndpointSelector::new(2, EndpointTimings::default(), 0.0, Instant::now());
    let delays: Vec<_> = [1, 2, 3, 4, 5, 60].map(|times| selector.delay(waits, times).as_secs()).into();
    assert_eq!(delays, [1, 2, 4, 8, 10, 10]);
}

#[test]
fn plaintext_server_url_is_allowed_only_on_loopback() {
    for server in [
        "https://10.0.0.1:6443",
        "https://kubernetes.default.svc",
        "HTTPS://kubernetes.default.svc",
        "http://127.0.0.1:8001",
        "http://127.9.9.9",
        "http://localhost:8001/prefix",
        "http://LOCALHOST:8001",
        "http://[::1]:8001",
        "http://[::ffff:127.0.0.1]:8001",
    ] {
        assert!(is_private(&server.parse().expect(server)), "{server}");
    }
    for server in [
        "http://10.0.0.1:6443",
        "http://kubernetes.default.svc",
        "http://0.0.0.0:8001",
        "http://[::]:8001",
        "http://127.1:8001",
        "http://127.0.0.1.nip.io",
        "http://127.0.0.1:80@evil.example",
        "http://localhost.:8001",
        "http://localhost.evil.example",
        "HTTP://evil.example",
        "evil.example:80",
    ] {
        assert!(!is_private(&server.parse().expect(server)), "{server}");
    }
}

#[test]
fn server_url_requires_tls_or_loopback() {
    for text in ["https://10.0.0.1:6443", "https://kube.example/k8s/c1", "http://127.0.0.1:8001", "http://[::1]:80"] {
        assert_eq!(text.parse::<ServerUrl>().expect(text).to_string(), text);
    }
    assert_eq!("https://a:6443/".parse::<ServerUrl>().expect("a URL").to_string(), "https://a:6443");
    for text in ["", "a", "a:6443", "/x", "https://", "https://:6443", "ftp://a", "https://me:pw@a", "https://a?b=c"] {
        assert!(matches!(text.parse::<ServerUrl>(), Err(ServerUrlError::Invalid(_))), "{text}");
    }
    let refused = "http://10.0.0.1:6443".parse::<ServerUrl>().expect_err("without TLS").to_string();
    assert!(refused.contains("http://10.0.0.1:6443") && refused.contains("does not use TLS"), "{refused}");
}
