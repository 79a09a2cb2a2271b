//! Asks servers of upstream whether they are ready, when there are several and it matters.

use tokio::time::{Instant, sleep_until, timeout};

use super::endpoints::{EndpointEvent, EndpointSwitch, Endpoints, NextStep};
use super::metrics::EndpointMetrics;
use super::{Client, Error};

/// What an apiserver answers without looking at any object.
const READYZ: &str = "/readyz";

impl Client {
    /// Chooses between the servers of upstream for as long as it runs; to be spawned once. With one server it does
    /// nothing.
    pub async fn keep_servers(self) {
        let endpoints = self.endpoints().clone();
        if !endpoints.are_several() {
            return;
        }
        let metrics = EndpointMetrics::new(endpoints.servers());
        let (mut choice, mut alarms) = (endpoints.choice(), endpoints.alarms());
        let mut event = EndpointEvent::Due;
        let mut why = String::new();
        loop {
            let decision = choice.next(event, Instant::now());
            if let Some(switch) = decision.switch {
                endpoints.switch(switch);
                metrics.switched(switch);
                say(&endpoints, switch, &std::mem::take(&mut why));
                // Whoever waits until upstream can be reached again may go on.
                self.note_answer();
            }
            event = match decision.next {
                NextStep::Ask(at) => {
                    let answer = self.is_ready(at, &endpoints).await;
                    if let (Err(error), true) = (&answer, at == choice.current()) {
                        why.clone_from(error);
                    }
                    EndpointEvent::Answer { is_ready: answer.is_ok() }
                }
                NextStep::Wait(None) => EndpointEvent::Alarm { at: Endpoints::next_alarm(&mut alarms).await },
                NextStep::Wait(Some(due)) => tokio::select! {
                    at = Endpoints::next_alarm(&mut alarms) => EndpointEvent::Alarm { at },
                    () = sleep_until(due) => EndpointEvent::Due,
                },
            };
        }
    }

    /// Asks a server whether it is ready, on a connection of its own. Returns why it is not.
    async fn is_ready(&self, at: usize, endpoints: &Endpoints) -> Result<(), String> {
        let answer_max = endpoints.times().answer_max;
        let answered = timeout(answer_max, self.ask_server(at, READYZ)).await;
        match answered.unwrap_or(Err(Error::Timeout(answer_max))) {
            Ok(code) if is_well(code) => Ok(()),
            Ok(code) => Err(format!("{READYZ} is {code}")),
            Err(error) => Err(error.for_callers()),
        }
    }
}

/// Whether a server that answers this can be used: also one that is busy, or does not tell us how it is.
fn is_well(code: u16) -> bool {
    matches!(code, 200..=299 | 403 | 404 | 429)
}

fn say(endpoints: &Endpoints, switch: EndpointSwitch, why: &str) {
    let EndpointSwitch { from, to, cause } = switch;
    let [from, to] = [from, to].map(|at| &endpoints.servers()[at]);
    tracing::warn!(%from, %to, cause = cause.as_str(), why, "another server of upstream is used");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_answers_is_well_unless_it_says_otherwise_or_does_not_know_us() {
        for (code, expected) in
            [(200, true), (403, true), (404, true), (429, true), (401, false), (500, false), (503, false)]
        {
            assert_eq!(is_well(code), expected, "{code}");
        }
    }
}
