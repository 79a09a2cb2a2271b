use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::TrialError;
use super::ledger::WriteLedger;
use base::BackgroundTasks;
use probe::{TargetServer, UnaryClient, UnaryResponse, WatchProtocol};

/// Writers that change objects at the apiserver directly, and record each version. Each object has one writer.
pub struct TrialWriters {
    ledger: Arc<WriteLedger>,
    tasks: BackgroundTasks,
    stop: CancellationToken,
}

/// The path of the collection that the writers change.
pub const PODS_PATH: &str = "/api/v1/namespaces/default/pods";
const NAME: &str = "try-";
const WRITERS: usize = 4;
const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
/// The pause between two attempts to find out whether a write took effect.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// The timeouts for creating the objects, and for receiving the outcome of the last writes.
const CREATE_MAX: Duration = Duration::from_secs(120);
const SETTLE_MAX: Duration = Duration::from_secs(60);

/// Returns the number in an object's name; `None` for names of other objects.
pub(super) fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix(NAME)?.parse().ok()
}

fn name_of(object: usize) -> String {
    format!("{NAME}{object:04}")
}

#[derive(Deserialize)]
struct WrittenObject<'a> {
    #[serde(borrow)]
    metadata: VersionedMetadata<'a>,
}

#[derive(Deserialize)]
struct VersionedMetadata<'a> {
    #[serde(rename = "resourceVersion")]
    resource_version: &'a str,
}

/// Returns the resourceVersion of the object in a response.
fn version_of(reply: &UnaryResponse) -> Option<u64> {
    serde_json::from_slice::<WrittenObject<'_>>(&reply.body).ok()?.metadata.resource_version.parse().ok()
}

impl TrialWriters {
    /// Creates the pods that the writers change, as many as `objects`.
    ///
    /// # Errors
    /// A pod cannot be created.
    pub async fn create(target: &TargetServer, objects: usize) -> Result<Self, TrialError> {
        let writers = Self {
            ledger: Arc::new(WriteLedger::new(objects, WRITERS)),
            tasks: BackgroundTasks::new(),
            stop: CancellationToken::new(),
        };
        let client = UnaryClient::new(target, WatchProtocol::H1, &writers.tasks);
        let creating = async {
            for object in 0..objects {
                let version = create(&client, object).await?;
                writers.ledger.created(object, version);
            }
            Ok(())
        };
        timeout(CREATE_MAX, creating).await.map_err(|_| TrialError::of("creating pods", "timeout"))??;
        Ok(writers)
    }

    pub fn ledger(&self) -> &Arc<WriteLedger> {
        &self.ledger
    }

    /// Starts the writers. `rate` is the number of changes per second, for all writers together.
    pub fn begin(&self, target: &TargetServer, rate: f64) {
        let objects = self.ledger.latest().len();
        for writer in 0..WRITERS.min(objects) {
            let client = UnaryClient::new(target, WatchProtocol::H1, &self.tasks);
            let (ledger, stop) = (self.ledger.clone(), self.stop.clone());
            let every = Duration::from_secs_f64(WRITERS.min(objects) as f64 / rate);
            self.tasks.spawn("writer", async move {
                let mut ticks = interval(every);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                let own = (writer..objects).step_by(WRITERS).cycle();
                for (nth, object) in own.enumerate() {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        _ = ticks.tick() => {}
                    }
                    if ledger.sends(writer) {
                        let version = change(&client, object, nth).await;
                        ledger.found(writer, object, version);
                    }
                }
            });
        }
    }

    /// Stops the writers. Returns whether the outcome of every write is known.
    pub async fn finish(&self) -> bool {
        self.stop.cancel();
        self.tasks.finish(SETTLE_MAX).await;
        !self.ledger.is_open()
    }
}

/// Changes an object, and returns its version afterwards. If the outcome is unclear, this reads the object until it
/// gets a response, without a timeout.
async fn change(client: &UnaryClient, object: usize, nth: usize) -> u64 {
    let path = format!("{PODS_PATH}/{}", name_of(object));
    let patch = format!(r#"{{"metadata":{{"annotations":{{"kube-fanout.io/try":"{nth}"}}}}}}"#);
    let sent = client.send(Method::PATCH, &path, MERGE_PATCH, Bytes::from(patch)).await;
    if let Ok(reply) = sent
        && reply.status.is_success()
        && let Some(version) = version_of(&reply)
    {
        return version;
    }
    // The write may or may not have taken effect. The object's current version shows which.
    loop {
        sleep(ASK_AGAIN).await;
        if let Ok(reply) = client.get(&path, JSON).await
            && reply.status.is_success()
            && let Some(version) = version_of(&reply)
        {
            return version;
        }
    }
}

async fn create(client: &UnaryClient, object: usize) -> Result<u64, TrialError> {
    let name = name_of(object);
    let fail = |why: &dyn std::fmt::Display| TrialError::of(&format!("creating pod {name}"), why);
    let spec = r#"{"containers":[{"name":"c","image":"registry.example/nothing:1"}]}"#;
    let pod = format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}},"spec":{spec}}}"#);
    let reply = client.send(Method::POST, PODS_PATH, JSON, Bytes::from(pod)).await.map_err(|error| fail(&error))?;
    let reply = if reply.status == StatusCode::CONFLICT {
        // The object exists from an earlier trial in the same directory.
        client.get(&format!("{PODS_PATH}/{name}"), JSON).await.map_err(|error| fail(&error))?
    } else {
        reply
    };
    let reply = reply.success("pods").map_err(|why| fail(&why))?;
    version_of(&reply).ok_or_else(|| fail(&"the response has no resourceVersion"))
}
