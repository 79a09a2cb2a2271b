use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

use super::fault::{Fault, Reason};

/// What a client may do that brings nothing: pings, settings, priorities, empty frames, requests that it takes back
/// before they are answered. Each costs us about as much as it costs the client, but they leave no trace in any other
/// limit.
#[derive(Debug)]
pub(super) struct Patience {
    spent: u32,
    since: Instant,
}

/// How much of it may come at once: a client that gives up may take back all that it has asked.
const AT_ONCE_MAX: u32 = 1_000;
/// How much of it is forgotten in a second.
const FORGOTTEN_PER_SECOND: u64 = 200;

impl Patience {
    pub(super) fn new() -> Self {
        Self { spent: 0, since: Instant::now() }
    }

    pub(super) fn spend(&mut self) -> Result<(), Fault> {
        self.spent += 1;
        if self.spent <= AT_ONCE_MAX {
            return Ok(());
        }
        // The clock is read by those who do it often.
        let now = Instant::now();
        let passed = u64::try_from(now.duration_since(self.since).as_millis()).unwrap_or(u64::MAX);
        let forgotten = passed.saturating_mul(FORGOTTEN_PER_SECOND) / 1_000;
        if forgotten == 0 {
            self.spent = AT_ONCE_MAX;
            return Err(Fault::Connection(Reason::EnhanceYourCalm, "too much that brings nothing"));
        }
        self.spent = self.spent.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
        self.since = now;
        Ok(())
    }
}

/// The streams that we have reset lately: what their client sent before it heard of that is no fault of its.
#[derive(Debug, Default)]
pub(super) struct LatelyReset(VecDeque<u32>);

/// More than a connection has streams at a time, at its default.
const REMEMBERED_MAX: usize = 256;

impl LatelyReset {
    pub(super) fn note(&mut self, stream: u32) {
        if self.0.len() == REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(stream);
    }

    /// The client has heard of it.
    pub(super) fn forget(&mut self, stream: u32) {
        self.0.retain(|reset| *reset != stream);
    }

    pub(super) fn has(&self, stream: u32) -> bool {
        self.0.contains(&stream)
    }
}

/// Whether the client is still there, asked by pings where it says nothing by itself.
#[derive(Debug)]
pub(super) struct Heartbeat {
    after: Duration,
    heard: Instant,
    pinged: Option<Instant>,
}

/// What a client's silence asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beat {
    Nothing,
    Ping,
    /// It has not answered for as long again.
    Dead,
}

impl Heartbeat {
    pub(super) fn new(after: Duration) -> Self {
        Self { after, heard: Instant::now(), pinged: None }
    }

    pub(super) fn hear(&mut self) {
        (self.heard, self.pinged) = (Instant::now(), None);
    }

    pub(super) fn beat(&mut self, now: Instant) -> Beat {
        if now < self.next() {
            return Beat::Nothing;
        }
        if self.pinged.is_some() {
            return Beat::Dead;
        }
        self.pinged = Some(now);
        Beat::Ping
    }

    /// When to look again.
    pub(super) fn next(&self) -> Instant {
        self.pinged.unwrap_or(self.heard) + self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn patience_ends_and_comes_back() {
        let mut patience = Patience::new();
        let spend = |patience: &mut Patience, count: u32| (0..count).all(|_| patience.spend().is_ok());
        assert!(spend(&mut patience, AT_ONCE_MAX));
        assert!(!spend(&mut patience, 1));
        tokio::time::advance(Duration::from_secs(1)).await;
        let again = u32::try_from(FORGOTTEN_PER_SECOND).expect("few");
        assert!(spend(&mut patience, again) && !spend(&mut patience, 2));
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(spend(&mut patience, AT_ONCE_MAX), "no more is saved than at the beginning");
        assert!(!spend(&mut patience, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_pinged_and_then_dead() {
        let after = Duration::from_secs(30);
        let mut heartbeat = Heartbeat::new(after);
        let begun = Instant::now();
        assert_eq!((heartbeat.next(), heartbeat.beat(begun)), (begun + after, Beat::Nothing));
        tokio::time::advance(after).await;
        assert_eq!(heartbeat.beat(Instant::now()), Beat::Ping);
        assert_eq!(heartbeat.beat(Instant::now()), Beat::Nothing);
        tokio::time::advance(after / 2).await;
        heartbeat.hear();
        tokio::time::advance(after).await;
        assert_eq!(heartbeat.beat(Instant::now()), Beat::Ping);
        tokio::time::advance(after).await;
        assert_eq!(heartbeat.beat(Instant::now()), Beat::Dead);
    }

    #[test]
    fn so_many_streams_are_remembered() {
        let mut reset = LatelyReset::default();
        (0..=u32::try_from(REMEMBERED_MAX).expect("few")).for_each(|stream| reset.note(stream));
        assert!(!reset.has(0) && reset.has(1) && reset.has(256));
        assert_eq!(reset.0.len(), REMEMBERED_MAX);
        reset.forget(256);
        assert!(!reset.has(256) && reset.has(255));
    }
}
