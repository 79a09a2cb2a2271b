//! The live view: shows figures in a few lines of the terminal.
//!
//! On a terminal the lines are redrawn in place; elsewhere each update is one plain line. Both are written to stderr;
//! stdout has only the final summary.

mod summary;

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

pub use summary::DemoSummary;
use summary::{count, latency, per_second};

/// A snapshot of the demo. Counters only grow; latencies cover the time since the last update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemoFigures {
    pub elapsed: Duration,
    /// The remaining time of the demo; `None` when it runs until it is interrupted.
    pub remaining: Option<Duration>,
    pub upstream_watches: u64,
    pub upstream_events: u64,
    pub downstream_watches: u64,
    pub deliveries: u64,
    pub errors: u64,
    pub latency_p50: Duration,
    pub latency_p99: Duration,
}

/// The rates per second between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct DemoRates {
    events: f64,
    deliveries: f64,
}

impl DemoFigures {
    fn rates_since(&self, earlier: &Self) -> DemoRates {
        let seconds = self.elapsed.saturating_sub(earlier.elapsed).as_secs_f64();
        let rate = |now: u64, then: u64| per_second(now.saturating_sub(then), seconds);
        DemoRates {
            events: rate(self.upstream_events, earlier.upstream_events),
            deliveries: rate(self.deliveries, earlier.deliveries),
        }
    }

    /// Writes the whole update in one line, for logs and pipes.
    fn line(&self, rates: DemoRates) -> String {
        let left = self.remaining.map(|left| format!(" left={}s", left.as_secs())).unwrap_or_default();
        format!(
            "elapsed={}s{left} upstream_watches={} upstream_events_per_s={:.0} watches={} deliveries_per_s={:.0} \
             deliveries={} p50={} p99={} errors={}",
            self.elapsed.as_secs(),
            self.upstream_watches,
            rates.events,
            self.downstream_watches,
            rates.deliveries,
            self.deliveries,
            latency(self.latency_p50),
            latency(self.latency_p99),
            self.errors,
        )
    }
}

/// Shows each update. About one per second is readable.
#[derive(Debug)]
pub struct DemoView {
    last: DemoFigures,
    output: DemoOutput,
}

#[derive(Debug)]
enum DemoOutput {
    Lines,
    Terminal(Box<DemoScreen>),
}

#[derive(Debug)]
struct DemoScreen {
    all: MultiProgress,
    time: ProgressBar,
    upstream: ProgressBar,
    fan_out: ProgressBar,
    latency: ProgressBar,
}

impl DemoView {
    /// Opens a live view if stderr is a terminal; otherwise it writes plain lines.
    pub fn open() -> Self {
        let output = if io::stderr().is_terminal() {
            DemoOutput::Terminal(Box::new(DemoScreen::new()))
        } else {
            DemoOutput::Lines
        };
        Self { last: DemoFigures::default(), output }
    }

    pub fn update(&mut self, now: DemoFigures) {
        let rates = now.rates_since(&self.last);
        self.last = now;
        match &self.output {
            // A closed stderr is no reason to stop the demo.
            DemoOutput::Lines => drop(writeln!(io::stderr(), "{}", now.line(rates))),
            DemoOutput::Terminal(screen) => screen.draw(&now, rates),
        }
    }

    /// Removes the live lines and prints the summary to stdout.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub fn close(self, summary: &DemoSummary) -> io::Result<()> {
        if let DemoOutput::Terminal(screen) = &self.output {
            screen.all.clear()?;
        }
        let mut out = io::stdout().lock();
        write!(out, "{summary}")?;
        out.flush()
    }
}

impl DemoScreen {
    fn new() -> Self {
        let all = MultiProgress::new();
        let line = |template: &str, len: Option<u64>| {
            let bar = all.add(ProgressBar::new(len.unwrap_or(1)));
            // The templates are constants of this file. If one is wrong, indicatif's default is shown.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("█▉ "));
            }
            bar
        };
        Self {
            time: line("{prefix:.bold}  {wide_bar:.cyan/dim}  {msg}", None),
            upstream: line("  upstream    {msg}", None),
            fan_out: line("  downstream  {msg}", None),
            latency: line("  latency     {msg}", None),
            all,
        }
    }

    fn draw(&self, now: &DemoFigures, rates: DemoRates) {
        let elapsed = now.elapsed.as_secs();
        let (len, left) = match now.remaining {
            Some(left) => (elapsed + left.as_secs(), format!("{}s left", left.as_secs())),
            None => (elapsed.max(1), "Ctrl-C to stop".to_owned()),
        };
        self.time.set_prefix(format!("fanoutctl demo  {elapsed}s"));
        self.time.set_length(len.max(1));
        self.time.set_position(elapsed.min(len));
        self.time.set_message(left);
        let watches = |n: u64| if n == 1 { "watch" } else { "watches" };
        self.upstream.set_message(format!(
            "{:>9} {:<8} {:>9.0} events/s",
            count(now.upstream_watches),
            watches(now.upstream_watches),
            rates.events
        ));
        let errors = if now.errors == 0 { String::new() } else { format!("   {} errors", count(now.errors)) };
        self.fan_out.set_message(format!(
            "{:>9} {:<8} {:>9.0} deliveries/s   {} in total{errors}",
            count(now.downstream_watches),
            watches(now.downstream_watches),
            rates.deliveries,
            count(now.deliveries)
        ));
        self.latency.set_message(format!(
            "      p50 {:<10} p99 {}",
            latency(now.latency_p50),
            latency(now.latency_p99)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_line_has_rates_since_the_last_update() {
        let first = DemoFigures { elapsed: Duration::from_secs(1), deliveries: 100, ..DemoFigures::default() };
        let second = DemoFigures {
            elapsed: Duration::from_secs(3),
            remaining: Some(Duration::from_secs(7)),
            upstream_watches: 1,
            upstream_events: 100,
            downstream_watches: 500,
            deliveries: 50_100,
            errors: 0,
            latency_p50: Duration::from_micros(1_234),
            latency_p99: Duration::from_millis(12),
        };
        assert_eq!(
            second.line(second.rates_since(&first)),
            "elapsed=3s left=7s upstream_watches=1 upstream_events_per_s=50 watches=500 deliveries_per_s=25000 \
             deliveries=50100 p50=1.2ms p99=12ms errors=0"
        );
        assert_eq!(first.rates_since(&first), DemoRates::default());
    }
}
