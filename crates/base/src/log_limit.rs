use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Limits how often a recurring failure is logged: the first one at once, then one line a minute with the number of
/// failures since the previous line.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    window: Mutex<Option<LogRateWindow>>,
}

#[derive(Debug)]
struct LogRateWindow {
    logged_at: Instant,
    /// The number of failures since the last log line.
    suppressed: u64,
}

impl LogRateLimit {
    /// The minimum interval between two log lines about the same condition.
    pub const EVERY: Duration = Duration::from_secs(60);

    /// Counts a failure. Returns the number of failures to log now, including this one, or `None` if no line is due.
    pub fn failed(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock();
        match &mut *window {
            Some(window) if now.duration_since(window.logged_at) < Self::EVERY => {
                window.suppressed += 1;
                None
            }
            other => {
                let suppressed = other
                    .replace(LogRateWindow { logged_at: now, suppressed: 0 })
                    .map_or(0, |window| window.suppressed);
                Some(suppressed + 1)
            }
        }
    }

    /// Returns the number of failures that were not logged, once a line is due and if there are any. To be called on
    /// success, so that the end of a series is logged as well.
    pub fn take_suppressed(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock();
        if window.as_ref().is_none_or(|window| now.duration_since(window.logged_at) < Self::EVERY) {
            return None;
        }
        window.take().map(|window| window.suppressed).filter(|suppressed| *suppressed > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_is_logged_and_later_ones_are_counted() {
        let (limit, start) = (LogRateLimit::default(), Instant::now());
        assert_eq!(limit.take_suppressed(start), None);
        assert_eq!(limit.failed(start), Some(1));
        for second in 1..=58 {
            assert_eq!(limit.failed(start + Duration::from_secs(second)), None);
        }
        let second_line = start + LogRateLimit::EVERY;
        assert_eq!(limit.failed(second_line), Some(59));
        assert_eq!(limit.failed(second_line), None);
        assert_eq!(limit.take_suppressed(second_line), None, "no line is due yet");
        assert_eq!(limit.take_suppressed(second_line + LogRateLimit::EVERY), Some(1));
        assert_eq!(limit.take_suppressed(second_line + LogRateLimit::EVERY), None);
        assert_eq!(limit.failed(second_line + LogRateLimit::EVERY), Some(1));
    }
}
