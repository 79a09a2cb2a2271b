//! Test harness: starts control planes, proxies in front of them, and clients of both.
//!
//! Every wait is for an observable condition and takes at most [`PATIENCE`], unless the test says otherwise. If the
//! proxy promises a result within a time, the test waits for that time plus [`ALLOWANCE`].

pub mod ages;
mod certificate;
pub mod claims;
mod drive;
pub mod exemplar;
mod fill;
mod frames;
mod http;
mod identity;
mod initial_state;
mod metrics;
pub mod normal;
mod pair;
mod plane;
mod planter;
mod process;
pub mod protobuf;
mod proxy;
mod raw;
pub mod rbac;
mod seed;
mod sibling;
mod times;
mod watch;

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, Once};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

pub use certificate::{Authority, write_bundle};
pub use drive::{Driving, Outcome, kubectl};
pub use fill::fill;
pub use frames::{Frame, Unframed, gunzip};
pub use http::{Answer, Http, NO_PROOF, NoAnswer, Protocol, RequestSpec, TOO_LARGE, Target, proven, version_of};
pub use identity::{Account, Identity};
pub use metrics::Metrics;
pub use pair::{LASTS_MAX, Pair, assert_same, is_cut_short, is_late, longer};
pub use plane::{BULK_PODS, Plane};
pub use planter::Planter;
pub use process::{Process, cpu_seconds_of_ended, kube_fanout};
pub use proxy::{Plan, Proxy};
pub use raw::read_until_quiet;
pub use seed::Seed;
pub use sibling::{Sibling, is_ready, write_kubeconfig};
pub use times::Times;
pub use watch::{Ended, Event, Watch, outline};

/// The longest wait, unless a test sets another one. It only ends hangs; no test result depends on its length.
pub const PATIENCE: Duration = Duration::from_secs(240);
pub use crate::ALLOWANCE;
/// The first polling interval for conditions that send no notification. It doubles up to [`LOOK_AGAIN_MAX`], because
/// each look uses the processors for which other tests wait.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(100);

/// The number of further equal answers after which a value counts as settled ([`settled`]).
const SETTLED_LOOKS: u32 = 20;

/// The number of idle control planes that are kept for the next test. More would only use memory.
const IDLE_MAX: usize = 2;

/// The control plane that most tests share.
static SHARED: OnceCell<Plane> = OnceCell::const_new();
/// Control planes that tests have used one after another ([`alone`]), and that no test uses now.
static IDLE: Mutex<Vec<Plane>> = Mutex::new(Vec::new());

/// A control plane that a test may use until it drops this value.
pub struct Bed<P: Deref<Target = Plane> = &'static Plane> {
    plane: P,
}

/// A control plane that one test uses, and the next test after it.
pub struct Lent(Option<Plane>);

impl<P: Deref<Target = Plane>> Deref for Bed<P> {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        &self.plane
    }
}

impl Deref for Lent {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        self.0.as_ref().expect("it is returned on drop")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut idle = IDLE.lock().expect("not poisoned");
        // A failed test may have left its control plane in any state.
        if idle.len() < IDLE_MAX && !std::thread::panicking() {
            idle.extend(self.0.take());
        }
    }
}

/// The shared control plane, in parallel with other tests. `None` without a test bed.
pub async fn shared() -> Option<Bed> {
    let binary = binary()?;
    Some(Bed { plane: SHARED.get_or_init(|| Plane::start(binary, "shared", &[])).await })
}

/// A control plane for this test alone, which may have objects of earlier tests, because it is started only if none is
/// idle. For tests that count requests to the apiserver, or need a collection without other writers. `None` without a
/// test bed.
pub async fn alone() -> Option<Bed<Lent>> {
    let binary = binary()?;
    let idle = IDLE.lock().expect("not poisoned").pop();
    let plane = match idle {
        Some(plane) => plane,
        None => Plane::start(binary, &unique("alone"), &[]).await,
    };
    Some(Bed { plane: Lent(Some(plane)) })
}

/// A new control plane for a test that breaks something or takes long. Other tests run in parallel.
pub async fn own(name: &str) -> Option<Bed<Box<Plane>>> {
    own_with(name, &[]).await
}

/// A new control plane whose apiserver has these additional flags.
pub async fn own_with(name: &str, flags: &[&str]) -> Option<Bed<Box<Plane>>> {
    Some(Bed { plane: Box::new(Plane::start(binary()?, name, flags).await) })
}

/// A new control plane of the previous Kubernetes minor, and the binary of the current one. `None` unless `make
/// upgrade` has built the previous one.
pub async fn previous(name: &str) -> Option<(Bed<Box<Plane>>, PathBuf)> {
    let Some(previous) = std::env::var_os("KUBE_TESTBED_PREVIOUS").map(PathBuf::from) else {
        log_line("only with the control plane of the previous minor (run `make upgrade`)");
        return None;
    };
    let present = binary()?;
    let plane = Plane::start(previous, name, &[]).await;
    Some((Bed { plane: Box::new(plane) }, present))
}

/// A new control plane without background writes: after its start it renews no lease, compacts nothing and expires no
/// event. Its resourceVersion changes only when a client writes.
pub async fn quiet(name: &str) -> Option<Bed<Box<Plane>>> {
    quiet_with(name, "").await
}

/// Like [`quiet`], with additional feature gates for the apiserver.
pub async fn quiet_with(name: &str, gates: &str) -> Option<Bed<Box<Plane>>> {
    let gates = format!("--feature-gates=APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false,{gates}");
    let flags = [gates.trim_end_matches(','), "--etcd-compaction-interval=0", "--event-ttl=10h"];
    let plane = Plane::start(binary()?, name, &flags).await;
    plane.until_quiet().await;
    Some(Bed { plane: Box::new(plane) })
}

/// A new control plane with an audit log of every request that reaches it ([`Plane::audit`]).
pub async fn audited(name: &str) -> Option<Bed<Box<Plane>>> {
    audited_with(name, &[]).await
}

/// Like [`audited`], with additional flags for the apiserver.
pub async fn audited_with(name: &str, more: &[&str]) -> Option<Bed<Box<Plane>>> {
    let binary = binary()?;
    let policy = scratch().join(format!("{name}.policy"));
    // Only the body of a review contains what it asks.
    let reviews = serde_json::json!([{"group": "authorization.k8s.io", "resources": ["subjectaccessreviews"]}]);
    let rules = serde_json::json!([{"level": "Request", "resources": reviews}, {"level": "Metadata"}]);
    let rules = serde_json::json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules});
    std::fs::write(&policy, rules.to_string()).expect("a file");
    let flags = [
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", scratch().join(name).join(plane::AUDIT).display()),
    ];
    let flags = [&flags.each_ref().map(String::as_str), more].concat();
    let plane = Plane::start(binary, name, &flags).await;
    Some(Bed { plane: Box::new(plane) })
}

/// The test bed's binary. If there is none, reports the test as skipped, or fails it in CI.
pub fn binary() -> Option<PathBuf> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(print_failures_immediately);
    let named = std::env::var_os("KUBE_TESTBED").map(PathBuf::from);
    let path = named.unwrap_or_else(|| repository().join("target/testbed/kube-testbed"));
    if path.is_file() {
        return Some(path);
    }
    skip("no test bed (run `make testbed`)");
    None
}

/// Installs a panic hook that writes each failure to stderr as it happens. The log of a long run is often kept only
/// around the test that failed, without the summary at its end.
fn print_failures_immediately() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        log_line(&format!("fails: {panic}"));
        before(panic);
    }));
}

/// Reports on stderr that the test is skipped. Panics in CI.
pub fn skip(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
    log_line(&format!("SKIPPED: {why}"));
}

/// Writes a line to stderr, which is visible even if the test passes.
pub fn log_line(line: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(std::io::stderr().lock(), "{test}: {line}");
}

pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The directory for this run's files. A lock keeps other runs from using it until this process ends. Removes the
/// directories of earlier runs.
fn scratch() -> PathBuf {
    static OWN: LazyLock<(PathBuf, File)> = LazyLock::new(|| {
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let take = |name: &str| {
            let lock = File::create(base.join(format!("{name}.lock"))).expect("a file under target");
            lock.try_lock().ok()?;
            let path = base.join(name);
            let _ = std::fs::remove_dir_all(&path);
            Some((path, lock))
        };
        std::fs::create_dir_all(&base).expect("a directory under target");
        for entry in std::fs::read_dir(&base).expect("a directory").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() && name.starts_with("conformance-") {
                take(&name);
            }
        }
        let own = (0..).find_map(|at| take(&format!("conformance-{at}"))).expect("some number is free");
        std::fs::create_dir_all(&own.0).expect("a directory under target");
        own
    });
    OWN.0.clone()
}

/// A path for this run's files that no other test uses. For tests without a control plane of this harness.
pub fn scratch_file(what: &str) -> PathBuf {
    scratch().join(unique(what))
}

/// Waits for the future. Panics after [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Polls `look` until it returns something. Panics after [`PATIENCE`].
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, look).await
}

/// Polls `look` for a result that is promised within `within`. Panics if it comes later than that plus [`ALLOWANCE`].
pub async fn promised<T>(within: Duration, what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(within + ALLOWANCE, what, look).await
}

/// Polls until [`SETTLED_LOOKS`] further answers equal the last one, and returns it. It counts answers instead of time,
/// because a server that is stalled does not answer either.
pub async fn settled<T: PartialEq + Clone>(what: &str, mut look: impl AsyncFnMut() -> T) -> T {
    let settles = async {
        let (mut last, mut same) = (look().await, 0);
        while same < SETTLED_LOOKS {
            sleep(LOOK_AGAIN).await;
            let now = look().await;
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        last
    };
    within(&format!("settled: {what}"), settles).await
}

async fn eventually_within<T>(patience: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looks = async {
        let mut pause = LOOK_AGAIN;
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            sleep(pause).await;
            pause = (2 * pause).min(LOOK_AGAIN_MAX);
        }
    };
    timeout(patience, looks).await.unwrap_or_else(|_| panic!("not within {patience:?}: {what}"))
}

/// A free address to listen on. Its port is below the range of ephemeral ports, so that a killed listener can be
/// restarted on it. Until this process ends, a lock reserves the port against other test runs on this machine.
pub fn free_address() -> String {
    static LOCKS: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("kube-fanout-test-ports-{user}"));
    std::fs::create_dir_all(&folder).expect("a folder for locks");
    let lock = |port: &u16| {
        let file = File::create(folder.join(port.to_string())).ok()?;
        file.try_lock().ok()?;
        std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).ok()?;
        Some(file)
    };
    let mut ports = std::iter::repeat_with(|| fastrand::u16(10_000..20_000));
    let (port, file) = ports.find_map(|port| Some((port, lock(&port)?))).expect("some port is free");
    LOCKS.lock().expect("no panic").push(file);
    format!("127.0.0.1:{port}")
}

/// A number from the environment, such as the length of a long run; `default` if it is not set.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// A name that no other test of this run uses.
pub fn unique(what: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
