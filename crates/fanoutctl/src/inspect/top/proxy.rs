use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::poll::ProxyPollResult;
use super::rates::{ProxyCounters, ProxyRates};
use crate::inspect::InspectError;

/// The state of a proxy according to its polls so far.
pub(super) struct PolledProxy {
    pub(super) name: String,
    /// The result of the last successful poll.
    pub(super) look: Option<ProxyPollResult>,
    pub(super) rates: Option<ProxyRates>,
    /// The number of events delivered per second, oldest first; `None` where the proxy did not respond.
    pub(super) delivered: VecDeque<Option<u64>>,
    pub(super) silence: Option<ProxyOutage>,
    /// The sample from which the next rates are measured.
    base: Option<ProxyCounters>,
    /// The minimum time between two samples; closer ones give inaccurate rates.
    between: Duration,
}

/// A period in which a proxy does not respond.
pub(super) struct ProxyOutage {
    pub(super) why: String,
    pub(super) since: Instant,
}

/// The number of rates kept for the chart of deliveries.
const RATES_MAX: usize = 300;

impl PolledProxy {
    /// Creates the state of a proxy that was not polled yet. It is polled at intervals of `every`.
    pub(super) fn new(name: String, every: Duration) -> Self {
        let (delivered, between) = (VecDeque::new(), every / 2);
        Self { name, look: None, rates: None, delivered, silence: None, base: None, between }
    }

    /// Stores the result of a poll. While a proxy does not respond, its last state is kept, without rates.
    pub(super) fn saw(&mut self, look: Result<ProxyPollResult, InspectError>, now: Instant) {
        match look {
            Ok(look) => {
                self.silence = None;
                self.measure(look.counters.clone());
                self.look = Some(look);
            }
            Err(error) => {
                let since = self.silence.take().map_or(now, |silence| silence.since);
                self.silence = Some(ProxyOutage { why: error.to_string(), since });
                // Measuring restarts with the next response, so that the outage is not part of a rate.
                (self.rates, self.base) = (None, None);
                self.note(None);
            }
        }
    }

    fn measure(&mut self, counters: ProxyCounters) {
        match &self.base {
            Some(base) if counters.at.duration_since(base.at) < self.between => {}
            Some(base) => {
                let rates = ProxyRates::between(base, &counters);
                (self.rates, self.base) = (Some(rates), Some(counters));
                self.note(Some(rates.delivered));
            }
            None => self.base = Some(counters),
        }
    }

    fn note(&mut self, delivered: Option<u64>) {
        self.delivered.push_back(delivered);
        if self.delivered.len() > RATES_MAX {
            self.delivered.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::top::samples;

    #[test]
    fn rates_ignore_samples_too_close_and_gaps_without_response() {
        let (at, every) = (Instant::now(), Duration::from_secs(2));
        let mut proxy = PolledProxy::new("a".to_owned(), every);
        let (mut delivered, mut seen) = (0, Vec::new());
        // The time in tenths of a second, and whether the proxy responds. It delivers ten events in each tenth.
        for (tenths, answers) in
            [(0, true), (20, true), (21, true), (40, true), (60, false), (80, false), (100, true), (120, true)]
        {
            let now = at + Duration::from_millis(100 * tenths);
            delivered = if answers { 10 * tenths } else { delivered };
            let look = samples::look(samples::counters(now, delivered));
            proxy.saw(if answers { Ok(look) } else { Err(InspectError::of("a", "refused")) }, now);
            seen.push((proxy.rates.map(|rates| rates.delivered), proxy.silence.as_ref().map(|s| s.since - at)));
        }
        let silent = Some(Duration::from_secs(6));
        let expected = [
            (None, None),
            (Some(100), None),
            (Some(100), None),
            (Some(100), None),
            (None, silent),
            (None, silent),
            (None, None),
            (Some(100), None),
        ];
        assert_eq!(seen, expected);
        assert_eq!(proxy.delivered, [Some(100), Some(100), None, None, Some(100)]);
        assert!(proxy.look.is_some(), "the last response stays");
    }
}
