//! Several servers of one upstream, of which one is used at a time.
//!
//! [`choice`] decides which one. Here is what it decides by: who sends a request says when it fails or is slow, and a
//! task asks the servers that are to be asked ([`super::readiness`]).

mod choice;
#[cfg(test)]
mod tests;

use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::time::{Instant, sleep};

pub use self::choice::EndpointTimes;
pub(super) use self::choice::{EndpointChoice, EndpointEvent, EndpointSwitch, NextStep, SwitchCause};
use super::{Error, ServerUrl};
use base::random;
use tokio::sync::watch;

/// The servers of upstream besides what the credentials say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndpointsConfig {
    /// In the order of preference. Empty: the one that the credentials name.
    pub servers: Vec<ServerUrl>,
    pub times: EndpointTimes,
}

impl EndpointsConfig {
    /// How many servers there may be.
    pub const SERVERS_MAX: usize = 8;
}

/// The servers of upstream, and which one is used. Cloning shares.
#[derive(Debug, Clone)]
pub struct Endpoints {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: EndpointsConfig,
    current: watch::Sender<usize>,
    /// The server that was left last because it had failed.
    left: watch::Sender<Option<usize>>,
    /// The server that a request has failed at last while it was used.
    alarm: watch::Sender<Option<usize>>,
}

/// Whose request it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestOrigin {
    /// Ours: it is a read, or a question that changes nothing.
    Ours,
    /// A caller's: it may be anything.
    Caller,
}

impl Endpoints {
    pub fn new(config: EndpointsConfig) -> Self {
        let (current, left, alarm) = (watch::Sender::new(0), watch::Sender::new(None), watch::Sender::new(None));
        Self { shared: Arc::new(Shared { config, current, left, alarm }) }
    }

    /// Whether there is anything to choose from. If not, a server is never asked whether it is ready.
    pub fn are_several(&self) -> bool {
        self.servers().len() > 1
    }

    pub(super) fn servers(&self) -> &[ServerUrl] {
        &self.shared.config.servers
    }

    pub(super) fn times(&self) -> &EndpointTimes {
        &self.shared.config.times
    }

    /// The server that is used.
    pub(super) fn current(&self) -> usize {
        *self.shared.current.borrow()
    }

    /// The choice between them, as it is at the start.
    pub(super) fn choice(&self) -> EndpointChoice {
        EndpointChoice::new(self.servers().len(), self.times().clone(), random::f64(), Instant::now())
    }

    /// Has another server be used from now on. What runs at the one before goes on there; of those that it has failed,
    /// whoever waits for an answer to a question of ours hears of it.
    pub(super) fn switch(&self, switch: EndpointSwitch) {
        self.shared.current.send_replace(switch.to);
        if switch.cause == SwitchCause::Failed {
            self.shared.left.send_replace(Some(switch.from));
        }
    }

    /// Completes at the next sign that the server in use may have failed. Returns that server.
    pub(super) async fn next_alarm(alarms: &mut watch::Receiver<Option<usize>>) -> usize {
        loop {
            if alarms.changed().await.is_err() {
                // Whoever waits holds the sender.
                std::future::pending::<()>().await;
            }
            if let Some(at) = *alarms.borrow_and_update() {
                return at;
            }
        }
    }

    /// The signs from now on, and the last one before.
    pub(super) fn alarms(&self) -> watch::Receiver<Option<usize>> {
        let mut alarms = self.shared.alarm.subscribe();
        alarms.mark_changed();
        alarms
    }

    /// Waits for the answer of a server. If that fails or takes long, it is a sign that the server may have failed. A
    /// question of ours is given up when the server has, so that it can be put to the next one at once.
    pub(super) async fn heed<T>(
        &self,
        at: usize,
        origin: RequestOrigin,
        mut asking: Pin<&mut impl Future<Output = Result<T, Error>>>,
    ) -> Result<T, Error> {
        if !self.are_several() {
            return asking.await;
        }
        let (mut left, mut slow) = (pin!(self.left(at)), pin!(sleep(self.times().slow)));
        let mut is_slow = false;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut asking => break answer,
                () = &mut slow, if !is_slow => {
                    is_slow = true;
                    self.raise(at);
                }
                () = &mut left, if origin == RequestOrigin::Ours => {
                    break Err(Error::Unreachable("another server is used now".into()));
                }
            }
        };
        if answer.as_ref().is_err_and(|error| is_alarming(error, origin)) {
            self.raise(at);
        }
        answer
    }

    /// Notes a sign that a server may have failed.
    pub(super) fn raise(&self, at: usize) {
        if self.are_several() && at == self.current() {
            self.shared.alarm.send_replace(Some(at));
        }
    }

    /// Completes when another server is used because this one has failed.
    async fn left(&self, at: usize) {
        let mut left = self.shared.left.subscribe();
        loop {
            if *left.borrow_and_update() == Some(at) && self.current() != at {
                return;
            }
            if left.changed().await.is_err() {
                // Whoever waits holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Whether an error may be the server's. A caller's request may also fail because of its body.
fn is_alarming(error: &Error, origin: RequestOrigin) -> bool {
    match error {
        Error::Unreachable(_) => origin == RequestOrigin::Ours || !error.may_have_been_carried_out(),
        Error::Timeout(_) | Error::Broken(_) => true,
        _ => false,
    }
}
