//! Clients that behave as real ones do: what each is follows from the seed and its number.
//!
//! ```text
//! Behaviour ─► Following (list, watch, resume) ─┐
//!              Asking (lists, gets, odd watches) ┴─► ClientReads ─► ClientConnection ─► server
//!                                                        └─► decode ─► Recorder
//! ```
//!
//! They judge nothing, and they believe what they are told, as clients do.

mod asking;
mod behaviour;
mod connection;
mod decode;
mod following;
mod frames_once;
mod links;
mod protobuf;
mod query;
mod reading;

use std::sync::Arc;
use std::time::Duration;

pub(super) use behaviour::Behaviour;
use behaviour::Role;
pub(super) use connection::ClientConnection;
pub(super) use decode::{accept, encoding_of, key_and_version, status};
pub(super) use frames_once::FramesOnce;
pub(super) use links::SharedLinks;
pub(super) use query::QueryText;
use reading::ClientReads;

use super::scene::{Draws, Scene, between};

/// Clients do not all begin at once.
const BEGIN_WITHIN: Duration = Duration::from_millis(500);
/// Nor do many more of them within that time.
const BEGIN_EACH: Duration = Duration::from_millis(3);
/// After something went wrong, at first and at most.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What one client does until it is to leave.
pub(super) async fn run(scene: Arc<Scene>, client: u32) {
    let mut rng = scene.rng(Draws::Client(client));
    let behaviour = Behaviour::draw(client, &scene, &mut rng);
    follow(&scene, client, behaviour, rng).await;
}

/// What one client does that follows the apiserver itself.
pub(super) async fn run_twin(scene: Arc<Scene>, client: u32, encoding: super::record::RecordedEncoding) {
    let rng = scene.rng(Draws::Client(client));
    follow(&scene, client, Behaviour::twin(encoding), rng).await;
}

async fn follow(scene: &Scene, client: u32, behaviour: Behaviour, mut rng: fastrand::Rng) {
    let within = BEGIN_WITHIN.max(BEGIN_EACH * client);
    if !scene.pause(between(&mut rng, Duration::ZERO, within)).await {
        return;
    }
    let role = behaviour.role;
    let reads = ClientReads::new(scene, client, behaviour);
    match role {
        Role::Informer | Role::Streamer | Role::Legacy => following::run(reads, rng).await,
        Role::Lister | Role::Reader | Role::Prober => asking::run(reads, rng).await,
    }
}

/// How long to wait after so many failures in a row, where the server asks for so many seconds.
fn backoff(rng: &mut fastrand::Rng, failures: u32, retry_after: u64) -> Duration {
    let (first, longest) = BACKOFF;
    let wait = first.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(longest);
    let asked = Duration::from_secs(retry_after).min(longest);
    wait.max(asked).mul_f64(0.5 + rng.f64())
}
