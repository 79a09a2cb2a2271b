//! The summary at the end of the demo.

use std::fmt;
use std::time::Duration;

/// The figures of the whole demo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DemoSummary {
    pub elapsed: Duration,
    pub pods: u64,
    /// The number of watches that the upstream had to serve.
    pub upstream_watches: u64,
    /// The number of events that the upstream sent, once for each of its watches.
    pub upstream_events: u64,
    /// The number of watches that clients had open.
    pub downstream_watches: u64,
    /// The number of events that clients received.
    pub deliveries: u64,
    /// The number of events that clients should have received and had not at the end. `None` if a client was not
    /// connected from the first change on.
    pub missed: Option<u64>,
    /// The number of events that a client received more than once.
    pub repeated: u64,
    /// The number of watches that had to relist. Events that they missed are not in `missed`.
    pub relisted: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    pub latency_p50: Duration,
    pub latency_p99: Duration,
}

impl DemoSummary {
    /// Returns the number of client watches per upstream watch.
    fn saving(&self) -> u64 {
        self.downstream_watches / self.upstream_watches.max(1)
    }

    /// Writes how many deliveries failed. Missed and repeated events are written even if there were none.
    fn faults(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let repeated = count(self.repeated);
        match self.missed {
            Some(missed) => writeln!(f, "  {:>13}  missed events, {repeated} repeated", count(missed))?,
            None => writeln!(
                f,
                "  {repeated:>13}  repeated events (missed events unknown: not all watches synced in time)"
            )?,
        }
        if self.relisted > 0 {
            writeln!(f, "  {:>13}  watches that had to relist", count(self.relisted))?;
        }
        if self.errors > 0 {
            let first = self.first_error.as_ref().map(|why| format!(", first: {why}")).unwrap_or_default();
            writeln!(f, "  {:>13}  client errors{first}", count(self.errors))?;
        }
        Ok(())
    }
}

impl fmt::Display for DemoSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        let plural = |n: u64| if n == 1 { "watch" } else { "watches" };
        let (up, down) = (self.upstream_watches, self.downstream_watches);
        writeln!(f)?;
        writeln!(
            f,
            "{} upstream {} served {}.",
            count(up),
            plural(up),
            plurals(down, "client watch", "client watches")
        )?;
        writeln!(f)?;
        writeln!(f, "  {:>13}  pods, watched for {seconds:.0} seconds", count(self.pods))?;
        let events = self.upstream_events;
        writeln!(f, "  {:>13}  events from upstream, {:.0}/s", count(events), per_second(events, seconds))?;
        let deliveries = self.deliveries;
        writeln!(
            f,
            "  {:>13}  events delivered to clients, {:.0}/s",
            count(deliveries),
            per_second(deliveries, seconds)
        )?;
        self.faults(f)?;
        writeln!(f, "  {:>13}  delivery latency p50, p99 {}", latency(self.latency_p50), latency(self.latency_p99))?;
        writeln!(f)?;
        writeln!(
            f,
            "Without the proxy, upstream would have served {} and sent {} events: {} times as many.",
            plurals(down, "watch", "watches"),
            count(deliveries),
            count(self.saving())
        )
    }
}

fn plurals(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// Writes a number with a no-break space between thousands: `1 234 567`.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() * 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push('\u{a0}');
        }
        out.push(digit);
    }
    out
}

/// Writes a duration with two or three significant digits, in the unit that fits.
pub(super) fn latency(duration: Duration) -> String {
    let microseconds = duration.as_secs_f64() * 1e6;
    match microseconds {
        ..1e3 => format!("{microseconds:.0}µs"),
        ..1e4 => format!("{:.1}ms", microseconds / 1e3),
        ..1e6 => format!("{:.0}ms", microseconds / 1e3),
        _ => format!("{:.1}s", microseconds / 1e6),
    }
}

/// Returns a rate per second, or zero if no time has passed.
pub(super) fn per_second(n: u64, seconds: f64) -> f64 {
    // Precision is lost only beyond 2^53 events.
    let n = n as f64;
    if seconds > 0.0 { n / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_shows_the_saved_watches_and_events() {
        let summary = DemoSummary {
            elapsed: Duration::from_secs(30),
            pods: 500,
            upstream_watches: 1,
            upstream_events: 1_500,
            downstream_watches: 500,
            deliveries: 750_000,
            missed: Some(0),
            latency_p50: Duration::from_micros(900),
            latency_p99: Duration::from_micros(7_249),
            ..DemoSummary::default()
        };
        let text = summary.to_string().replace('\u{a0}', " ");
        for expected in [
            "1 upstream watch served 500 client watches.",
            "750 000  events delivered to clients, 25000/s",
            "0  missed events, 0 repeated",
            "900µs  delivery latency p50, p99 7.2ms",
            "would have served 500 watches and sent 750 000 events: 500 times as many.",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        assert!(!text.contains("errors") && !text.contains("relist"), "{text}");
    }

    #[test]
    fn summary_shows_failures() {
        let first_error = Some("a watch was refused: 429".to_owned());
        let summary =
            DemoSummary { missed: Some(3), repeated: 2, relisted: 4, errors: 5, first_error, ..DemoSummary::default() };
        let text = summary.to_string();
        for expected in [
            "3  missed events, 2 repeated",
            "4  watches that had to relist",
            "5  client errors, first: a watch was refused: 429",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        let unknown = DemoSummary { missed: None, ..summary }.to_string();
        assert!(unknown.contains("2  repeated events (missed events unknown"), "{unknown}");
    }
}
