//! The reasons for which a connection ends: idleness, age, a drain, or an explicit close.

use std::future::pending;
use std::time::Duration;

use tokio::time::sleep;

use super::connection::ConnectionState;
use super::metrics::ConnectionFailure;
use super::{ConnectionLimits, DownstreamConnection};
use base::{AbortSignal, DrainWatch, random};

/// The jitter of the connection age, as a fraction in both directions.
const AGE_JITTER: f64 = 0.1;

/// How long a connection that was accepted during a drain may take for its first request once all connections close.
pub(super) const LATE_REQUEST_MAX: Duration = Duration::from_millis(500);
/// The interval at which a connection is checked for its first request.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The reason for which a connection must end at once.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForcedConnectionEnd {
    #[error("no request received on the connection within {0:?}")]
    Silent(Duration),
    #[error("the proxy closed the connection")]
    Aborted,
}

/// Completes when a connection must end: gracefully, or at once with an error.
pub(super) async fn ending(
    this: &DownstreamConnection,
    signal: &AbortSignal,
    drain: DrainWatch,
    is_late: bool,
    limits: &ConnectionLimits,
) -> Result<(), ForcedConnectionEnd> {
    tokio::select! {
        biased;
        // The codecs have limits of their own, but only once the protocol is known, and that of HTTP/2 has none while
        // the client answers pings.
        () = this.idle_for(limits.first_request_max, limits.idle_max) => {
            if this.has_received_request() {
                return Ok(());
            }
            ConnectionFailure::Silent.count();
            Err(ForcedConnectionEnd::Silent(limits.first_request_max))
        }
        () = signal.aborted() => Err(ForcedConnectionEnd::Aborted),
        () = drain_reached(this, drain, is_late) => Ok(()),
        () = this.reached(ConnectionState::Closing) => {
            if this.is(ConnectionState::Aborted) { Err(ForcedConnectionEnd::Aborted) } else { Ok(()) }
        }
        () = age_reached(limits.connection_age_max) => Ok(()),
    }
}

/// Completes when a connection must end because of a drain.
///
/// A connection from before the drain gets its notice at a random moment: as GOAWAY, or in HTTP/1 with its next
/// response. In HTTP/1, no other way avoids losing a request.
async fn drain_reached(this: &DownstreamConnection, mut drain: DrainWatch, is_late: bool) {
    if !is_late {
        drain.notice_due().await;
        this.advance(ConnectionState::Draining);
        if this.is_multiplexed() {
            return;
        }
    }
    drain.closing().await;
    while !this.has_received_request() && this.accepted_at().elapsed() < LATE_REQUEST_MAX {
        // Requests send no notification when they start, so this polls.
        sleep(POLL_EVERY).await;
    }
}

/// Completes when a closing connection must end at once. Either it was aborted, or no request has run on it for long
/// and its client does not read the rest.
pub(super) async fn abort(this: &DownstreamConnection, signal: &AbortSignal, limits: &ConnectionLimits) {
    let idle = async {
        // The time counts from the start of closing. An earlier idle period may be the reason for closing.
        sleep(limits.idle_max).await;
        this.idle_for(limits.idle_max, limits.idle_max).await;
    };
    tokio::select! {
        biased;
        () = idle => {}
        () = this.reached(ConnectionState::Aborted) => {}
        () = signal.aborted() => {}
    }
}

/// Completes at a random time around `age_max`, so that connections that were opened together do not reconnect
/// together.
async fn age_reached(age_max: Duration) {
    if age_max.is_zero() {
        pending::<()>().await;
    }
    sleep(age_max.mul_f64(1.0 - AGE_JITTER + 2.0 * AGE_JITTER * random::f64())).await;
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    /// Many connections open at the same time when another replica has gone.
    #[tokio::test(start_paused = true)]
    async fn maximum_connection_age_is_jittered() {
        const CONNECTIONS: usize = 1_000;
        let (accepted_at, hour) = (Instant::now(), ConnectionLimits::default().connection_age_max);
        let ages = join_all((0..CONNECTIONS).map(|_| async {
            age_reached(hour).await;
            accepted_at.elapsed()
        }));
        let ages = ages.await;
        assert!(ages.iter().all(|age| (hour.mul_f64(0.9)..=hour.mul_f64(1.1)).contains(age)), "{ages:?}");
        let mut seconds = HashMap::<u64, usize>::new();
        ages.iter().for_each(|age| *seconds.entry(age.as_secs()).or_default() += 1);
        let most = seconds.values().max().expect("some");
        assert!(most * 100 <= CONNECTIONS * 2, "{most} of {CONNECTIONS} within a second");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_age_zero_disables_the_limit() {
        let long = Duration::from_secs(86_400 * 365);
        assert!(tokio::time::timeout(long, age_reached(Duration::ZERO)).await.is_err());
    }
}
