use std::time::Duration;

/// The requested duration of a watch (R-TIMEOUT-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchTimeout {
    /// The client set no timeout, or 0, so the server chooses one.
    Unset,
    /// The watch ends at once, because its timeout has elapsed.
    Elapsed,
    After(Duration),
}

const NANOSECONDS: i64 = 1_000_000_000;

impl WatchTimeout {
    /// Interprets `timeoutSeconds` like the apiserver, which counts nanoseconds in 64 bits. A large number overflows
    /// and may mean any duration.
    pub fn of(timeout_seconds: Option<i64>) -> Self {
        match u64::try_from(timeout_seconds.unwrap_or(0).wrapping_mul(NANOSECONDS)) {
            Ok(0) => Self::Unset,
            Ok(nanoseconds) => Self::After(Duration::from_nanos(nanoseconds)),
            Err(_) => Self::Elapsed,
        }
    }

    /// Returns the requested duration, at most `max`; `max` if none was requested.
    pub fn capped(self, max: Duration) -> Duration {
        match self {
            Self::After(length) => length.min(max),
            Self::Unset | Self::Elapsed => max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Go computes `time.Duration(seconds) * time.Second`.
    #[test]
    fn timeout_seconds_overflow_as_in_go() {
        for (seconds, expected) in [
            (None, WatchTimeout::Unset),
            (Some(0), WatchTimeout::Unset),
            (Some(300), WatchTimeout::After(Duration::from_secs(300))),
            (Some(-1), WatchTimeout::Elapsed),
            (Some(9_223_372_036), WatchTimeout::After(Duration::from_secs(9_223_372_036))),
            (Some(9_223_372_037), WatchTimeout::Elapsed),
            (Some(18_446_744_073), WatchTimeout::Elapsed),
            (Some(18_446_744_074), WatchTimeout::After(Duration::from_nanos(290_448_384))),
            (Some(99_999_999_999), WatchTimeout::After(Duration::from_nanos(7_766_279_630_452_241_920))),
            (Some(i64::MAX), WatchTimeout::Elapsed),
            (Some(i64::MIN), WatchTimeout::Unset),
            (Some(1 << 55), WatchTimeout::Unset),
        ] {
            assert_eq!(WatchTimeout::of(seconds), expected, "{seconds:?}");
        }
    }
}
