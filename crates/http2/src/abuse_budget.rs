use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

use super::error::{Http2Error, Http2ErrorCode};

/// The budget for frames without use: pings, settings, priorities, empty frames, window updates that no data accounts
/// for, data of closed streams, and requests that the client cancels before the response.
///
/// Each costs the server about as much as the client, but no other limit counts them.
#[derive(Debug)]
pub(super) struct ClientAbuseBudget {
    spent: u32,
    since: Instant,
    /// The number of `WINDOW_UPDATE` frames that the client may still send for received data.
    window_updates: usize,
}

/// The maximum burst of frames that could be abuse. A client that shuts down may cancel all its requests at once.
const BURST_MAX: u32 = 1_000;
/// The number of charges forgotten per second.
const REFILL_PER_SECOND: u64 = 200;
/// The number of `WINDOW_UPDATE` frames allowed per byte of data: one for the stream and one for the connection, as
/// from a client that reads byte by byte. A new stream allows as many, because some clients enlarge each stream's
/// window.
const WINDOW_UPDATES_PER_BYTE: usize = 2;
/// The maximum number of accumulated `WINDOW_UPDATE` frames. A client that reads 4 KiB at a time never has as many
/// outstanding.
const WINDOW_UPDATES_MAX: usize = 1 << 20;

impl ClientAbuseBudget {
    pub(super) fn new() -> Self {
        Self { spent: 0, since: Instant::now(), window_updates: 0 }
    }

    /// Records that data was sent to the client, which returns it as window updates.
    pub(super) fn note_sent(&mut self, bytes: usize) {
        self.window_updates = (self.window_updates + WINDOW_UPDATES_PER_BYTE * bytes).min(WINDOW_UPDATES_MAX);
    }

    /// Charges a `WINDOW_UPDATE` frame, unless data was sent that accounts for it.
    pub(super) fn spend_on_window(&mut self) -> Result<(), Http2Error> {
        match self.window_updates.checked_sub(1) {
            Some(left) => {
                self.window_updates = left;
                Ok(())
            }
            None => self.spend(),
        }
    }

    pub(super) fn spend(&mut self) -> Result<(), Http2Error> {
        self.spent += 1;
        if self.spent <= BURST_MAX {
            return Ok(());
        }
        // The clock is read only after the burst is used up.
        let now = Instant::now();
        let passed = u64::try_from(now.duration_since(self.since).as_millis()).unwrap_or(u64::MAX);
        let forgotten = passed.saturating_mul(REFILL_PER_SECOND) / 1_000;
        if forgotten == 0 {
            self.spent = BURST_MAX;
            return Err(Http2Error::Connection(Http2ErrorCode::EnhanceYourCalm, "too many frames without effect"));
        }
        self.spent = self.spent.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
        self.since = now;
        Ok(())
    }
}

/// The streams that the server has reset most recently. Frames that the client sent on them before it received the
/// reset are legitimate.
#[derive(Debug, Default)]
pub(super) struct RecentStreamResets(VecDeque<ResetStream>);

#[derive(Debug)]
struct ResetStream {
    id: u32,
    /// The number of bytes of data that the client could still send when the stream was reset.
    window: usize,
}

/// The maximum number of remembered resets: more than the streams of a connection, by default.
const REMEMBERED_MAX: usize = 256;

impl RecentStreamResets {
    /// Records a reset stream and the window that the client had left on it.
    pub(super) fn note(&mut self, id: u32, window: usize) {
        if self.0.len() == REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(ResetStream { id, window });
    }

    /// Takes data from the window of a stream. Returns whether the client may have sent it before it received the
    /// reset; `None` if the stream was not reset recently.
    pub(super) fn take(&mut self, id: u32, bytes: usize, ends: bool) -> Option<bool> {
        let reset = self.0.iter_mut().find(|reset| reset.id == id)?;
        let left = reset.window.checked_sub(bytes).filter(|_| bytes > 0 || ends);
        reset.window = left.unwrap_or(reset.window);
        if ends {
            self.forget(id);
        }
        Some(left.is_some())
    }

    /// Forgets a stream, because the client has received the reset.
    pub(super) fn forget(&mut self, stream: u32) {
        self.0.retain(|reset| reset.id != stream);
    }

    pub(super) fn has(&self, stream: u32) -> bool {
        self.0.iter().any(|reset| reset.id == stream)
    }
}

/// Detects clients that no longer respond: pings a client that has sent nothing for a while.
#[derive(Debug)]
pub(super) struct ConnectionKeepAlive {
    after: Duration,
    last_received: Instant,
    pinged: Option<Instant>,
}

/// The next action for a client that has sent nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeepAliveAction {
    Nothing,
    Ping,
    /// The client did not reply to the ping in time.
    Dead,
}

impl ConnectionKeepAlive {
    pub(super) fn new(after: Duration) -> Self {
        Self { after, last_received: Instant::now(), pinged: None }
    }

    pub(super) fn note_received(&mut self) {
        (self.last_received, self.pinged) = (Instant::now(), None);
    }

    pub(super) fn check(&mut self, now: Instant) -> KeepAliveAction {
        if now < self.next() {
            return KeepAliveAction::Nothing;
        }
        if self.pinged.is_some() {
            return KeepAliveAction::Dead;
        }
        self.pinged = Some(now);
        KeepAliveAction::Ping
    }

    /// Returns the time of the next heartbeat check.
    pub(super) fn next(&self) -> Instant {
        self.pinged.unwrap_or(self.last_received) + self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn abuse_budget_is_exhausted_and_refills_over_time() {
        let mut abuse_budget = ClientAbuseBudget::new();
        let spend = |abuse_budget: &mut ClientAbuseBudget, count: u32| (0..count).all(|_| abuse_budget.spend().is_ok());
        assert!(spend(&mut abuse_budget, BURST_MAX));
        assert!(!spend(&mut abuse_budget, 1));
        tokio::time::advance(Duration::from_secs(1)).await;
        let again = u32::try_from(REFILL_PER_SECOND).expect("few");
        assert!(spend(&mut abuse_budget, again) && !spend(&mut abuse_budget, 2));
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(spend(&mut abuse_budget, BURST_MAX), "no more is saved than at the beginning");
        assert!(!spend(&mut abuse_budget, 3));
    }

    #[test]
    fn window_updates_are_free_in_proportion_to_data_sent() {
        let mut abuse_budget = ClientAbuseBudget::new();
        let free = |abuse_budget: &mut ClientAbuseBudget| {
            let before = abuse_budget.spent;
            std::iter::repeat_with(|| abuse_budget.spend_on_window().is_ok() && abuse_budget.spent == before)
                .take_while(|is_free| *is_free)
                .count()
        };
        assert_eq!(free(&mut abuse_budget), 0, "nothing was sent");
        abuse_budget.note_sent(10);
        assert_eq!(free(&mut abuse_budget), 20);
        (0..3).for_each(|_| abuse_budget.note_sent(WINDOW_UPDATES_MAX));
        assert_eq!(free(&mut abuse_budget), WINDOW_UPDATES_MAX);
    }

    #[test]
    fn data_on_reset_stream_is_accepted_up_to_its_window() {
        let mut reset = RecentStreamResets::default();
        reset.note(1, 100);
        reset.note(3, 100);
        let taken = [(60, false), (40, false), (1, false), (0, false), (0, true), (0, true)]
            .map(|(bytes, ends)| reset.take(1, bytes, ends));
        assert_eq!(taken, [Some(true), Some(true), Some(false), Some(false), Some(true), None]);
        assert_eq!([reset.take(3, 101, false), reset.take(3, 1, false)], [Some(false), Some(true)]);
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeat_pings_silent_client_then_reports_timeout() {
        let after = Duration::from_secs(30);
        let mut heartbeat = ConnectionKeepAlive::new(after);
        let begun = Instant::now();
        assert_eq!((heartbeat.next(), heartbeat.check(begun)), (begun + after, KeepAliveAction::Nothing));
        tokio::time::advance(after).await;
        assert_eq!(heartbeat.check(Instant::now()), KeepAliveAction::Ping);
        assert_eq!(heartbeat.check(Instant::now()), KeepAliveAction::Nothing);
        tokio::time::advance(after / 2).await;
        heartbeat.note_received();
        tokio::time::advance(after).await;
        assert_eq!(heartbeat.check(Instant::now()), KeepAliveAction::Ping);
        tokio::time::advance(after).await;
        assert_eq!(heartbeat.check(Instant::now()), KeepAliveAction::Dead);
    }

    #[test]
    fn recent_resets_are_bounded() {
        let mut reset = RecentStreamResets::default();
        (0..=u32::try_from(REMEMBERED_MAX).expect("few")).for_each(|stream| reset.note(stream, 0));
        assert!(!reset.has(0) && reset.has(1) && reset.has(256));
        assert_eq!(reset.0.len(), REMEMBERED_MAX);
        reset.forget(256);
        assert!(!reset.has(256) && reset.has(255));
    }
}
