//! One run: the application, the demo upstream and a clientele in one runtime on virtual time, judged by the records.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::now_ns;
use demo::{self, RequestCounts, RunningDemoApiserver, StoreSubscription};
use kube_fanout::app::{BoundApp, InheritedSockets, TaskPanicError};
use kube_fanout::config::ServeSettings;
use kube_fanout::net::{ListenAddress, Listener};
use kube_fanout::upstream::{CredentialSource, InMemoryUpstream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use verify::{
    ClientFleet, ClientFleetOptions, CompactionRecord, FaultRecord, HistoryRecord, HistoryWindowRecord,
    RecordedEventType, RunHistory, RunVerdict, VerdictRequirements,
};

use crate::faults::{Broken, FaultKind};
use crate::network::Network;
use crate::plan::{ENCODINGS, Plan};

/// Address of the application. It is never bound.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8001);
/// Bytes that a connection of the application buffers in each direction.
const BUFFER_BYTES: usize = 64 << 10;
/// Maximum delay of a change without faults. A slow client's link may need this long for the data before it.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Drain time.
const DRAIN: Duration = Duration::from_secs(10);
/// How long a fault may have consequences after its end: retries wait at most half a minute, and a gap is backfilled
/// version by version.
const SETTLES: Duration = Duration::from_secs(90);

/// Longer than any run.
const FOR_EVER_NS: u64 = 86_400 * 1_000_000_000;

/// Results of a run.
pub struct Ran {
    pub verdict: RunVerdict,
    /// The records, one per line.
    pub lines: Vec<u8>,
    pub notes: Vec<String>,
    /// Faults by their names in [`KINDS`](crate::faults::KINDS).
    pub faults: Vec<&'static str>,
    /// The clock of the records at the start of the run.
    pub began_ns: u64,
    /// Requests to upstream, including those of its own clients.
    pub counts: RequestCounts,
}

/// Runs the plan of a seed and judges it.
pub fn run(seed: u64) -> Ran {
    run_plan(Plan::draw(seed))
}

/// Runs a plan and judges it.
pub fn run_plan(plan: Plan) -> Ran {
    let seed = plan.seed;
    fastrand::seed(seed);
    base::random::seed(seed);
    // The clock of all records starts before the first run's own.
    now_ns();
    let faults: Vec<_> = plan.faults.iter().map(|fault| fault.kind.name()).collect();
    let (began_ns, counts, lines, notes) = runtime(seed).block_on(async {
        let began_ns = now_ns();
        let (counts, lines, notes) = Simulation::begin(plan).await.run_to_the_end().await;
        (began_ns, counts, lines, notes)
    });
    let text = std::str::from_utf8(&lines).expect("JSON");
    let records = text.lines().map(|line| serde_json::from_str::<HistoryRecord>(line).expect("a record"));
    let history = RunHistory::of(records).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let verdict = RunVerdict::of(&history, &VerdictRequirements::default());
    Ran { verdict, lines, notes, faults, began_ns, counts }
}

/// A runtime on virtual time, whose choices among branches and tasks follow from the seed.
fn runtime(seed: u64) -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_le_bytes()));
    let is_repeatable = cfg!(tokio_unstable);
    assert!(is_repeatable, "seed {seed} cannot be repeated: run `make simulation`");
    builder.build().expect("a runtime")
}

struct Simulation {
    plan: Plan,
    up: RunningDemoApiserver,
    changes: StoreSubscription,
    /// The version at which the truth starts.
    from: u64,
    to_upstream: Network,
    to_application: Network,
    clientele: Arc<ClientFleet>,
    stop: Option<oneshot::Sender<()>>,
    app: tokio::task::JoinHandle<Result<(), TaskPanicError>>,
}

/// A scheduled action.
#[derive(Clone, Copy)]
enum Act {
    Break(FaultKind),
    Mend {
        kind: FaultKind,
        from_ns: u64,
    },
    /// A fault has no more consequences.
    Settle {
        kind: FaultKind,
        from_ns: u64,
    },
}

impl Simulation {
    async fn begin(plan: Plan) -> Self {
        let up = demo::upstream().nodes(0).bookmark_period(plan.bookmark_period).in_memory();
        let to_upstream = Network::new(plan.latency, plan.piece_bytes);
        let to_application = Network::new(plan.latency, plan.piece_bytes);
        let (listener, connector) = Listener::in_memory(ADDRESS, BUFFER_BYTES);
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 40_000));
        let order = ClientFleetOptions {
            seed: plan.seed,
            resource: plan.resource(),
            namespaces: plan.namespaces,
            objects: plan.objects,
            encodings: ENCODINGS.to_vec(),
            transports: plan.transports.clone(),
            pace: plan.pace,
            patience: PATIENCE,
            window_changes: None,
            subject: Arc::new(to_application.over(move || connector.connect(from))),
            direct: Arc::new(up.connector()),
        };
        let clientele = Arc::new(ClientFleet::new(order));
        for name in clientele.namespaces() {
            up.put("namespaces", serde_json::json!({"metadata": {"name": name}}));
        }
        let mut inherited = InheritedSockets::default();
        inherited.add_memory(ADDRESS, listener);
        let upstream = InMemoryUpstream::new(to_upstream.over(up.connector()), plan.multiplexes);
        let mut config = ServeSettings::for_upstream(CredentialSource::Memory(upstream));
        config.listen = vec![ListenAddress::Tcp(ADDRESS)];
        config.admin = None;
        config.drain = DRAIN;
        config.reflect.idle_max = plan.idle_max;
        let bound = BoundApp::bind_with(config, inherited).await.expect("nothing is bound");
        let (stop, stopped) = oneshot::channel();
        let app = tokio::spawn(bound.run(async { drop(stopped.await) }, std::future::pending()));
        let (changes, from) = (up.changes(plan.plural()), up.revision());
        Self { plan, up, changes, from, to_upstream, to_application, clientele, stop: Some(stop), app }
    }

    async fn run_to_the_end(mut self) -> (RequestCounts, Vec<u8>, Vec<String>) {
        self.learn_state();
        (0..self.plan.clients).for_each(|client| self.clientele.begin(client));
        let writers = (0..self.plan.writers).map(|number| {
            let (clientele, writers, rate) = (self.clientele.clone(), self.plan.writers, self.plan.rate);
            tokio::spawn(async move { clientele.write(number, writers, rate).await })
        });
        let writers: Vec<_> = writers.collect();
        self.break_things().await;
        if self.plan.drains {
            self.drain().await;
        }
        self.clientele.calm();
        self.learn_until(Instant::now() + PATIENCE).await;
        for writer in writers {
            writer.await.expect("no panic");
        }
        self.learn_until(Instant::now() + PATIENCE + Duration::from_secs(1)).await;
        let clientele = Arc::into_inner(self.clientele).expect("writers are gone");
        let (lines, notes) = clientele.leave().await;
        let counts = self.up.counts();
        drop(self.stop.take());
        self.app.await.expect("the application does not panic").expect("nor one of its needed tasks");
        self.up.stop().await;
        (counts, lines, notes)
    }

    /// Starts and ends faults on the seed's schedule, and records the truth.
    async fn break_things(&mut self) {
        let began = Instant::now();
        let faults = self.plan.faults.clone();
        let mut acts: Vec<_> = faults.iter().map(|fault| (began + fault.at, Act::Break(fault.kind))).collect();
        let lasts = |kind| faults.iter().find(|fault| fault.kind == kind).map_or(Duration::ZERO, |fault| fault.lasts);
        while let Some(next) = (0..acts.len()).min_by_key(|at| acts[*at].0) {
            let (at, act) = acts.remove(next);
            self.learn_until(at).await;
            let on = Broken {
                up: &self.up,
                plural: self.plan.plural(),
                to_upstream: &self.to_upstream,
                to_application: &self.to_application,
            };
            match act {
                Act::Break(kind) => {
                    let from_ns = now_ns();
                    if let FaultKind::Compact { kept } = kind {
                        let version = self.up.revision().saturating_sub(kept as u64);
                        let compacted = CompactionRecord { version, at_ns: from_ns };
                        self.clientele.put(&HistoryRecord::Compacted(compacted));
                    }
                    kind.begin(&on).await;
                    acts.push((at + lasts(kind), Act::Mend { kind, from_ns }));
                }
                Act::Mend { kind, from_ns } => {
                    kind.end(&on).await;
                    acts.push((at + SETTLES, Act::Settle { kind, from_ns }));
                }
                Act::Settle { kind, from_ns } => self.settled(kind, from_ns),
            }
        }
        self.learn_until(began + self.plan.duration).await;
    }

    /// Records a fault, and the history that may have been forgotten during it.
    fn settled(&self, kind: FaultKind, from_ns: u64) {
        if kind.breaks() {
            let (name, to_ns) = (format!("{kind:?}"), now_ns());
            let fault = FaultRecord { name, from_ns, to_ns, hits: 1, waives: Vec::new() };
            self.clientele.put(&HistoryRecord::Fault(fault));
        }
        if kind.hides_history() {
            let (resource, version) = (self.clientele.resource(), self.up.revision());
            self.clientele.put(&HistoryRecord::Window(HistoryWindowRecord {
                resource,
                version,
                at_ns: from_ns,
                server: None,
            }));
        }
    }

    /// Stops the application while clients read and writers write.
    async fn drain(&mut self) {
        let from_ns = now_ns();
        drop(self.stop.take());
        self.learn_until(Instant::now() + 2 * DRAIN).await;
        // No client is served any more.
        let (name, to_ns) = ("drain".to_owned(), now_ns() + FOR_EVER_NS);
        let fault = FaultRecord { name, from_ns, to_ns, hits: 1, waives: Vec::new() };
        self.clientele.put(&HistoryRecord::Fault(fault));
    }

    /// Records the state at which the truth starts. Older history may be unavailable.
    fn learn_state(&self) {
        let plural = self.plan.plural();
        for (key, version) in self.up.keys(plural) {
            let (namespace, name) = key.split_once('/').expect("they are in namespaces");
            let object = self.up.object(plural, namespace, name);
            self.clientele.learn(version, &key, RecordedEventType::Added, object.as_deref());
        }
        self.clientele
            .put(&HistoryRecord::Window(HistoryWindowRecord { version: self.from, ..HistoryWindowRecord::default() }));
        self.clientele.known(self.from, self.from);
    }

    /// Records the truth as it happens.
    async fn learn_until(&mut self, end: Instant) {
        loop {
            tokio::select! {
                biased;
                () = self.changes.ready() => self.learn(),
                () = sleep_until(end) => return self.learn(),
            }
        }
    }

    fn learn(&mut self) {
        for change in self.changes.take() {
            let kind = match (&change.object, change.is_new) {
                (None, _) => RecordedEventType::Deleted,
                (Some(_), true) => RecordedEventType::Added,
                (Some(_), false) => RecordedEventType::Modified,
            };
            self.clientele.learn(change.revision, &change.key, kind, change.object.as_deref());
        }
        self.clientele.known(self.from, self.up.revision());
    }
}
