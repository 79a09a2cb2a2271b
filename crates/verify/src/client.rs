//! Clients that behave like real ones. Their behaviour follows from the seed and the client's number.
//!
//! ```text
//! ClientBehaviour ─► informer_loop (list, watch, resume)    ─┐
//!                    ClientReadLoop (lists, gets, odd watches) ┴─► RecordingClient ─► ClientConnection ─► server
//!                                                                      └─► decode ─► HistoryRecorder
//! ```
//!
//! Clients check nothing and trust the server's responses, as real clients do.

mod behaviour;
mod connection;
mod informer_loop;
mod query;
mod read_loop;
mod reading;

use std::sync::Arc;
use std::time::Duration;

pub(super) use behaviour::ClientBehaviour;
use behaviour::ClientRole;
pub(super) use connection::ClientConnection;
pub(super) use query::QueryString;
use reading::RecordingClient;

use super::run_context::{RngStream, VerifyRunContext, between};
use base::BackoffBounds;

/// The period within which clients start, so that they do not start at once.
const BEGIN_WITHIN: Duration = Duration::from_millis(500);
/// The start interval per client, which limits how many start within `BEGIN_WITHIN`.
const BEGIN_EACH: Duration = Duration::from_millis(3);
/// The first and the longest pause after a failure.
const BACKOFF: BackoffBounds = BackoffBounds { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// Runs one client until it must leave.
pub(super) async fn run(scene: Arc<VerifyRunContext>, client: u32) {
    let mut rng = scene.rng(RngStream::Client(client));
    let behaviour = ClientBehaviour::draw(client, &scene, &mut rng);
    follow(&scene, client, behaviour, rng).await;
}

/// Runs one client that follows the apiserver directly.
pub(super) async fn run_twin(scene: Arc<VerifyRunContext>, client: u32, encoding: super::record::RecordedEncoding) {
    let rng = scene.rng(RngStream::Client(client));
    follow(&scene, client, ClientBehaviour::twin(encoding), rng).await;
}

async fn follow(scene: &VerifyRunContext, client: u32, behaviour: ClientBehaviour, mut rng: fastrand::Rng) {
    let within = BEGIN_WITHIN.max(BEGIN_EACH * client);
    if !scene.pause(between(&mut rng, Duration::ZERO, within)).await {
        return;
    }
    let role = behaviour.role;
    let reads = RecordingClient::new(scene, client, behaviour);
    match role {
        ClientRole::Informer | ClientRole::Streamer | ClientRole::Legacy => informer_loop::run(reads, rng).await,
        ClientRole::Lister | ClientRole::Reader | ClientRole::Prober => read_loop::run(reads, rng).await,
    }
}

/// Returns the pause after this many consecutive failures. `retry_after` is the server's Retry-After in seconds.
fn backoff(rng: &mut fastrand::Rng, failures: u32, retry_after: u64) -> Duration {
    let requested = Duration::from_secs(retry_after).min(BACKOFF.longest);
    BACKOFF.doubled(failures).max(requested).mul_f64(0.5 + rng.f64())
}
