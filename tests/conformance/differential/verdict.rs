//! The outcomes of comparing two answers to one request, and how often each may occur.
//!
//! The test never repeats a request because its answers differ. A difference is an error, unless the answers themselves
//! show that it is one of the permitted kinds below. The exception is a watch whose time was up too early: it is
//! repeated with more time, because nothing else shows whether the missing events would have arrived.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

use super::compare::{Compared, Seen};
use super::probe::Probe;
use crate::bed::{TOO_LARGE, ages, is_cut_short};

/// The result of comparing an answer of the proxy with the apiserver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Same,
    /// The answers differ only by their time: in ages of a Table, by no more than the time between the answers; or in
    /// the time of a document that is generated for each request, and that the proxy keeps for an hour
    /// (docs/DIFFERENCES.md).
    AnotherMoment,
    /// On one side, the watch's time was up before it had sent everything. It sent a prefix of the other side's events,
    /// or the 504 for a state that could not be proven in time. The same watch with more time is equal on both sides.
    Late,
    /// The answers differ as docs/DIFFERENCES.md describes.
    Documented,
    Different,
}

/// The maximum rate of each outcome (one in this many requests), and its reason. The limits are far above the observed
/// rates: they detect a systematic cause, and tolerate a busy machine.
const ONE_IN: [(Verdict, u64, &str); 3] = [
    (Verdict::AnotherMoment, 20, "one question in twenty is for a Table, and answers are milliseconds apart"),
    // By L5 a watch-list waits up to 30 s for its proof, and these watches last for one second.
    (Verdict::Late, 20, "each was the same with more time, but a proxy that needs it is slow"),
    (
        Verdict::Documented,
        50,
        "the apiserver aborts a response if a handler panics, and forgets earlier impersonation checks",
    ),
];
/// The maximum rate of unprocessed requests: a server closes the connection after an unauthenticated request, without
/// processing requests that arrive at the same time.
const RESENT_ONE_IN: u64 = 100;
/// The smallest number of occurrences that counts as a rate.
const FEW: u64 = 3;

/// The times of two answers, and the state of the world.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances {
    /// The time of both together, followed by the time of each.
    pub took: Duration,
    pub direct_took: Duration,
    pub through_took: Duration,
    /// The version of the world, which does not change.
    pub settled: u64,
}

impl Verdict {
    pub fn of(probe: &Probe, expected: &Seen, actual: &Seen, when: Circumstances) -> Self {
        // A missing answer never equals another one.
        let alike = actual.status != 0 && expected.status == actual.status && expected.body == actual.body;
        if alike && expected.headers == actual.headers && expected.ages == actual.ages {
            Self::Same
        } else if alike && is_another_moment(expected, actual, when.took) {
            Self::AnotherMoment
        } else if is_late(probe, expected, actual, when.through_took, when.settled)
            || is_late(probe, actual, expected, when.direct_took, when.settled)
            || is_cut(probe, expected, actual, when.through_took)
            || is_cut(probe, actual, expected, when.direct_took)
        {
            Self::Late
        } else if expected.status == 0 && matches!(actual.status, 502 | 503) {
            // Here a connection that upstream closes counts as an answer.
            Self::Documented
        } else {
            Self::Different
        }
    }
}

fn is_another_moment(expected: &Seen, actual: &Seen, took: Duration) -> bool {
    const MODIFIED: &str = "last-modified";
    const SECONDS_OF_DAY: u64 = 24 * 60 * 60;
    const KEPT_SECONDS_MAX: u64 = 60 * 60;
    let others = |seen: &Seen| seen.headers.iter().filter(|(name, _)| name != MODIFIED).cloned().collect::<Vec<_>>();
    let modified = |seen: &Seen| seen.headers.iter().find(|(name, _)| name == MODIFIED).map(|(_, date)| second(date));
    let of_ages = ages::all_agree(&expected.ages, &actual.ages, took);
    let of_documents = match (modified(expected), modified(actual)) {
        (Some(Some(one)), Some(Some(other))) => {
            let age = (one + SECONDS_OF_DAY - other) % SECONDS_OF_DAY;
            age <= KEPT_SECONDS_MAX || SECONDS_OF_DAY - age <= took.as_secs() + 1
        }
        (one, other) => one == other,
    };
    others(expected) == others(actual) && of_ages && of_documents
}

/// The second of the day of an HTTP date such as `Mon, 23 Nov 2026 00:28:42 GMT`.
fn second(date: &str) -> Option<u64> {
    let time = date.strip_suffix(" GMT")?.rsplit_once(' ')?.1;
    let parts = time.split(':').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>()?;
    let [hours, minutes, seconds] = parts[..] else { return None };
    Some(hours * 3600 + minutes * 60 + seconds)
}

/// Whether a watch for the current state, with a timeout of one second, ended at that timeout. Its error contains the
/// version after the one that the server has reached, which is the world's or an earlier one. An immediate refusal, or
/// one of a requested version, does not count.
///
/// A stalled apiserver gives the same answer.
fn is_late(probe: &Probe, expected: &Seen, actual: &Seen, took: Duration, settled: u64) -> bool {
    let Some((first, others)) = actual.body.split_first() else { return false };
    // A WebSocket also sends its close.
    let is_all = others.iter().all(|message| message.starts_with("Ok(Close("));
    let Some((head, rest)) = first.split_once(TOO_LARGE) else { return false };
    let version: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let is_there = version.parse::<u64>().is_ok_and(|version| version <= settled + 1);
    let lasts = probe.first("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    let waited = lasts.is_some_and(|lasts| took >= lasts);
    let of_now = probe.first("resourceVersion").is_none_or(str::is_empty);
    is_all
        && expected.status == actual.status
        && expected.headers == actual.headers
        && head.contains("ERROR")
        && is_there
        && waited
        && of_now
}

/// Whether a watch lasted until its timeout and sent only a prefix of the other one's events.
fn is_cut(probe: &Probe, expected: &Seen, actual: &Seen, took: Duration) -> bool {
    // A WebSocket also sends its close.
    let events = |seen: &Seen| {
        let events = seen.body.iter().filter(|message| !message.starts_with("Ok(Close("));
        events.cloned().collect::<Vec<_>>()
    };
    let lasts = probe.first("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    expected.status == actual.status
        && expected.headers == actual.headers
        && lasts.is_some_and(|lasts| !lasts.is_zero() && took >= lasts)
        && is_cut_short(&events(actual), &events(expected))
}

/// The outcomes of the requests of a run.
#[derive(Debug, Default)]
pub struct Counts {
    pub requests: u64,
    pub watches: u64,
    pub cached: u64,
    resent: u64,
    verdicts: BTreeMap<Verdict, u64>,
}

impl Counts {
    pub fn count(&mut self, compared: &Compared, verdict: Verdict) {
        self.requests += 1;
        self.watches += u64::from(compared.watch);
        self.cached += u64::from(compared.cached);
        self.resent += u64::from(compared.resent);
        *self.verdicts.entry(verdict).or_default() += 1;
    }

    fn of(&self, verdict: Verdict) -> u64 {
        self.verdicts.get(&verdict).copied().unwrap_or_default()
    }

    /// The reasons why the run is void although no answer was wrong: an outcome was too frequent, or too few answers
    /// came from the cache. In the second case upstream was compared with itself.
    pub fn complaints(&self, cached_one_in: u64) -> Vec<String> {
        let may = |one_in: u64| FEW.max(self.requests / one_in);
        let too_many = ONE_IN.into_iter().filter(|(verdict, one_in, _)| self.of(*verdict) > may(*one_in));
        let mut complaints: Vec<_> = too_many
            .map(|(verdict, one_in, why)| {
                format!("{} of {} are {verdict:?}, and {} may be: {why}", self.of(verdict), self.requests, may(one_in))
            })
            .collect();
        if self.resent > may(RESENT_ONE_IN) {
            complaints.push(format!("{} of {} got no response and were sent again", self.resent, self.requests));
        }
        if self.cached < self.requests / cached_one_in {
            complaints.push(format!("only {} of {} were answered from the cache", self.cached, self.requests));
        }
        complaints
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, watches, cached, resent, verdicts } = self;
        write!(
            f,
            "{requests} requests, {watches} watches, {cached} answered from the cache, {resent} sent again; {verdicts:?}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe::{Over, Parameter};
    use super::*;

    const WHEN: Circumstances = Circumstances {
        took: Duration::from_millis(1100),
        direct_took: Duration::from_millis(900),
        through_took: Duration::from_millis(1010),
        settled: 500,
    };

    fn probe(query: &[(&'static str, &str)]) -> Probe {
        let query = query.iter().map(|(name, value)| Parameter::Value(name, (*value).to_owned())).collect();
        Probe { method: "GET", path: "/".to_owned(), query, headers: vec![], body: String::new(), over: Over::H1 }
    }

    fn seen(status: u16, body: &str, ages: &[&str], modified: &str) -> Seen {
        let headers = vec![("last-modified".to_owned(), modified.to_owned())];
        let ages = ages.iter().map(|age| (*age).to_owned()).collect();
        Seen { status, headers, body: vec![body.to_owned()], ages }
    }

    #[test]
    fn age_and_date_differences_are_excused_within_response_gap() {
        let of = |other: &Seen| {
            Verdict::of(&probe(&[]), &seen(200, "a", &["9s"], "Mon, 23 Nov 2026 00:28:59 GMT"), other, WHEN)
        };
        assert_eq!(of(&seen(200, "a", &["9s"], "Mon, 23 Nov 2026 00:28:59 GMT")), Verdict::Same);
        assert_eq!(of(&seen(200, "a", &["10s"], "Mon, 23 Nov 2026 00:29:00 GMT")), Verdict::AnotherMoment);
        assert_eq!(of(&seen(200, "a", &["14s"], "Mon, 23 Nov 2026 00:28:59 GMT")), Verdict::Different);
        assert_eq!(of(&seen(200, "a", &["9s"], "Mon, 23 Nov 2026 00:29:09 GMT")), Verdict::Different);
        // The proxy keeps a document for an hour, also over midnight.
        assert_eq!(of(&seen(200, "a", &["9s"], "Sun, 22 Nov 2026 23:29:09 GMT")), Verdict::AnotherMoment);
        assert_eq!(of(&seen(200, "a", &["9s"], "Sun, 22 Nov 2026 23:28:09 GMT")), Verdict::Different);
        assert_eq!(of(&seen(200, "a", &[], "Mon, 23 Nov 2026 00:28:59 GMT")), Verdict::Different);
        assert_eq!(of(&seen(200, "b", &["9s"], "Mon, 23 Nov 2026 00:28:59 GMT")), Verdict::Different);
        assert_eq!(of(&seen(404, "a", &["9s"], "Mon, 23 Nov 2026 00:28:59 GMT")), Verdict::Different);
    }

    #[test]
    fn too_large_version_is_excused_after_full_wait_if_unrequested() {
        let now = [("timeoutSeconds", "1"), ("watch", "1")];
        let error =
            |version: u64| seen(200, &format!("ERROR Too large resource version: {version}, current: M"), &[], "");
        let of = |probe: &Probe, actual: &Seen, when| Verdict::of(probe, &seen(200, "ADDED", &[], ""), actual, when);
        assert_eq!(of(&probe(&now), &error(501), WHEN), Verdict::Late);
        assert_eq!(of(&probe(&now), &error(502), WHEN), Verdict::Different);
        let directly = |when| Verdict::of(&probe(&now), &error(501), &seen(200, "ADDED", &[], ""), when);
        assert_eq!(directly(WHEN), Verdict::Different);
        assert_eq!(directly(Circumstances { direct_took: WHEN.through_took, ..WHEN }), Verdict::Late);
        let at_once = Circumstances { through_took: Duration::from_millis(900), ..WHEN };
        assert_eq!(of(&probe(&now), &error(500), at_once), Verdict::Different);
        let named = [now[0], now[1], ("resourceVersion", "500")];
        assert_eq!(of(&probe(&named), &error(500), WHEN), Verdict::Different);
        assert_eq!(of(&probe(&now), &seen(200, "ERROR expired", &[], ""), WHEN), Verdict::Different);
    }

    #[test]
    fn watch_that_times_out_after_first_events_counts_as_late() {
        let watch = |events: &[&str]| {
            let body = events.iter().map(|event| (*event).to_owned()).collect();
            Seen { body, ..seen(200, "", &[], "") }
        };
        let probe = probe(&[("watch", "1"), ("timeoutSeconds", "1")]);
        let whole = watch(&["ADDED a", "ADDED b", "Ok(Close(None))"]);
        let of = |actual: &[&str], when| Verdict::of(&probe, &whole, &watch(actual), when);
        assert_eq!(of(&["ADDED a"], WHEN), Verdict::Late);
        assert_eq!(of(&["ADDED a", "Ok(Close(None))"], WHEN), Verdict::Late);
        assert_eq!(of(&[], WHEN), Verdict::Late);
        assert_eq!(of(&["ADDED b"], WHEN), Verdict::Different, "an event is missing before it");
        let early = Circumstances { through_took: Duration::from_millis(900), ..WHEN };
        assert_eq!(of(&["ADDED a"], early), Verdict::Different, "its time was not up");
        assert_eq!(Verdict::of(&probe, &whole, &watch(&["ADDED a", "ADDED b", "ADDED c"]), early), Verdict::Different);
    }

    #[test]
    fn run_with_few_cached_or_many_excused_responses_fails() {
        let counts = |cached, late| Counts {
            requests: 1000,
            cached,
            verdicts: BTreeMap::from([(Verdict::Late, late), (Verdict::Same, 1000 - late)]),
            ..Counts::default()
        };
        assert_eq!(counts(200, 50).complaints(5), Vec::<String>::new());
        assert_eq!(counts(199, 50).complaints(5).len(), 1);
        assert_eq!(counts(200, 51).complaints(5).len(), 1);
        assert_eq!(Counts { resent: 11, ..counts(200, 0) }.complaints(5).len(), 1);
    }
}
