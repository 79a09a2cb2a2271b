//! Runs with hand-picked faults. Virtual time makes minutes pass at once.

use std::time::Duration;

use demo::{CountPerResource, RequestCounts};
use verify::HistoryRecord;

use crate::excuses;
use crate::faults::{Fault, FaultKind};
use crate::panics::with_panics;
use crate::plan::Plan;
use crate::run::{Ran, run_plan};

/// Part of the 410 for a watch from version 1, which clients occasionally request.
const FROM_THE_FIRST: &str = "version: 1 (";

/// Results of clients in a run that kept every promise.
struct Kept {
    /// Arrival times of events since the start of the run.
    events: Vec<Duration>,
    /// Number of watches that received 410.
    expired: usize,
    counts: RequestCounts,
}

/// Eight clients for five minutes, with only the chosen faults.
fn quiet_plan() -> Plan {
    let plan = Plan::draw(1);
    let (duration, idle_max) = (Duration::from_secs(300), Duration::from_secs(600));
    Plan { clients: 8, writers: 2, rate: 1.0, latency: Duration::ZERO, faults: Vec::new(), duration, idle_max, ..plan }
}

/// Runs a plan. It must keep every promise.
fn kept(plan: Plan) -> Kept {
    let plan = Plan { drains: false, ..plan };
    let (ran, panics) = with_panics(|| run_plan(plan));
    let Ran { verdict, lines, began_ns, counts, .. } = ran.unwrap_or_else(|| panic!("{}", panics.join("\n")));
    let broken = excuses::broken(&verdict, &lines);
    let first = verdict.first().map(|violation| format!("{violation:?}")).unwrap_or_default();
    assert!(broken.is_empty() && panics.is_empty(), "{broken:?} {panics:?} {first}");
    let text = String::from_utf8(lines).expect("JSON");
    let (mut events, mut expired) = (Vec::new(), 0);
    for record in text.lines().map(|line| serde_json::from_str(line).expect("a record")) {
        let HistoryRecord::Event(event) = record else { continue };
        events.push(Duration::from_nanos(event.at_ns.saturating_sub(began_ns)));
        expired += usize::from(event.status.code == 410 && !event.status.message.contains(FROM_THE_FIRST));
    }
    Kept { events, expired, counts }
}

/// A silently dead upstream connection is detected by an unanswered ping or, without HTTP/2, by a silent stream (FU-2).
/// Clients only notice the delay.
#[test]
fn silently_dead_upstream_connection_is_detected_in_time() {
    let at = Duration::from_secs(100);
    for (multiplexes, longest) in [(true, Duration::from_secs(50)), (false, Duration::from_secs(95))] {
        let faults = vec![Fault { at, lasts: Duration::from_secs(100), kind: FaultKind::DeadenUpstream }];
        let kept = kept(Plan { multiplexes, faults, ..quiet_plan() });
        let silent = kept.events.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max().expect("events");
        assert!(silent > Duration::from_secs(20), "the connections died: {silent:?}");
        assert!(silent < longest, "over {}: {silent:?}", if multiplexes { "HTTP/2" } else { "HTTP/1.1" });
        assert_eq!(kept.expired, 0, "and no watch received 410");
    }
}

/// Without bookmarks a quiet stream counts as dead after 90 s, again and again. Each time, that costs a watch, and
/// small requests whether the storage is the same. The state is not listed (FU-16).
#[test]
fn upstream_without_bookmarks_causes_no_relist_when_quiet() {
    let (never, duration) = (Duration::from_secs(86_400), Duration::from_secs(1_800));
    let kept = kept(Plan { clients: 3, rate: 0.002, bookmark_period: never, duration, ..quiet_plan() });
    assert_eq!(kept.expired, 0);
    // Definitions of custom resources, of which none changes.
    let of = |counts: &CountPerResource| counts.of("customresourcedefinitions");
    let silences = duration.as_secs() / 90;
    let (opened, lists) = (of(&kept.counts.watches_opened), of(&kept.counts.lists));
    assert!((silences..3 * silences + 10).contains(&opened), "{opened} watches of a quiet resource");
    assert!(lists <= silences + 5, "{lists} lists of a quiet resource");
}
