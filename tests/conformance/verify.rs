//! `fanoutctl verify` on a real control plane. Judged by the contents of etcd, the apiserver keeps its promises, and so
//! does the proxy in front of it, also while the apiserver is killed. `make verify` runs longer.

use crate::bed::{self, Plan, Plane, Seed, Target, log_line};

/// Configmaps are stored as JSON, so that etcd's gateway shows them.
const AS_JSON: [&str; 1] = ["--storage-media-type=application/json"];

/// The maximum number of runs. On a slow machine, or if the control plane restarts late, a run may be inconclusive and
/// is repeated. A broken promise is never repeated.
const RUNS_MAX: usize = 3;

/// The exit code of an inconclusive run.
const VOID: Option<i32> = Some(2);

/// The result of a run.
struct Verified {
    code: Option<i32>,
    report: String,
}

/// Runs `verify` against a server, with etcd as the reference, and with bytes from the apiserver.
async fn verify(plane: &Plane, target: &Target, more: &[&str]) -> Verified {
    let mut command = bed::kube_fanout("verify");
    command.args([&target.url, "--kubeconfig"]).arg(plane.kubeconfig());
    command.arg("--truth").arg(format!("etcd={}", plane.etcd_url())).arg("--out").arg(plane.file("verify"));
    if let Some(ca) = &target.ca {
        command.arg("--ca").arg(ca);
    }
    let drawn = Seed::new("VERIFY_SEED", |seed| format!("make verify SEED={seed}"));
    command.args(["--seed", &drawn.first().to_string()]).args(more);
    let running = tokio::task::spawn_blocking(move || command.output().expect("the binary runs"));
    let output = running.await.expect("no panic");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Verified { code: output.status.code(), report: format!("{}{}", text(&output.stdout), text(&output.stderr)) }
}

/// Runs it until each of [`ALWAYS`] was checked, or a promise was broken, at most [`RUNS_MAX`] times.
async fn verify_enough(plane: &Plane, target: &Target, more: &[&str]) -> Verified {
    let mut found = verify(plane, target, more).await;
    for _ in 1..RUNS_MAX {
        if !found.is_void(&ALWAYS) {
            break;
        }
        log_line(&format!("the run is void: {}", found.report));
        found = verify(plane, target, more).await;
    }
    found
}

impl Verified {
    /// The output line for a promise.
    fn of(&self, promise: &str) -> Option<&str> {
        self.report.lines().find(|line| line.trim_start().starts_with(promise))
    }

    /// Whether the run, or one of these promises, is inconclusive. A broken promise is conclusive.
    fn is_void(&self, promises: &[&str]) -> bool {
        let is_unjudged = |promise: &&str| self.of(promise).is_some_and(|line| line.contains("not checked"));
        self.code == VOID || self.code == Some(0) && promises.iter().any(is_unjudged)
    }

    /// Panics unless no promise was broken and each of these was checked.
    fn assert_kept(&self, promises: &[&str]) {
        assert_eq!(self.code, Some(0), "{}", self.report);
        for promise in promises {
            assert!(self.of(promise).is_some_and(|line| line.contains("ok in")), "{promise}: {}", self.report);
        }
        self.report.lines().filter(|line| line.contains(" events, ")).for_each(log_line);
    }
}

/// The promises that a run of some seconds can check. Others need a 410, which is rare before compaction, or the
/// proxy's upstream requests, which no client sees.
const ALWAYS: [&str; 16] = [
    "Ordered",
    "Unique",
    "Reliable",
    "Filtered",
    "Typed",
    "Resumable",
    "Future",
    "Bookmarkable",
    "InitialEvents",
    "ListSnapshot",
    "Continuity",
    "NotOlderThan",
    "Exact",
    "Consistent",
    "Monotone",
    "TypedBytes",
];

#[tokio::test]
async fn verify_passes_against_the_apiserver() {
    let Some(bed) = bed::own_with("verify-itself", &AS_JSON).await else { return };
    let found = verify_enough(&bed, &bed.target(), &["--duration", "10s"]).await;
    found.assert_kept(&ALWAYS);
}

#[tokio::test]
async fn verify_passes_against_the_proxy_for_all_resource_types() {
    let Some(bed) = bed::own_with("verify-proxy", &AS_JSON).await else { return };
    let proxy = Plan::tls().start(&bed).await;
    for resource in ["configmaps", "samples.verify.kube-fanout.io"] {
        let found = verify_enough(&bed, &proxy.target(), &["--duration", "10s", "--resource", resource]).await;
        found.assert_kept(&ALWAYS);
    }
    proxy.assert_sound();
}

#[tokio::test]
async fn verify_passes_while_the_apiserver_is_repeatedly_killed() {
    let Some(bed) = bed::own_with("verify-killed", &AS_JSON).await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let kill = killing(&bed);
    let duration = format!("{}s", bed::number("VERIFY_SECONDS", 15));
    let faults = ["--duration", &duration, "--fault", &kill, "--fault-every", "3s", "20s"];
    let found = verify_enough(&bed, &proxy.target(), &faults).await;
    found.assert_kept(&ALWAYS);
    assert!(!found.report.contains("the fault"), "the apiserver was killed and started again: {}", found.report);
    proxy.assert_sound();
}

/// A command that kills the apiserver of a plane, restarts it and ends once it is ready. On a busy machine that takes
/// longer than a fault may take effect after its command. The restarted apiserver ends with the plane's other servers.
fn killing(plane: &Plane) -> String {
    let (dir, binary, kubeconfig) = (plane.dir.display(), plane.binary.display(), plane.kubeconfig());
    let kubeconfig = kubeconfig.display();
    format!(
        "kill -KILL $(cat {dir}/apiserver.pid) && sleep 1 && {{ {binary} apiserver --dir {dir} & }} && \
         until {binary} kubectl --kubeconfig {kubeconfig} get --raw /readyz --request-timeout 5s; do sleep 0.2; done"
    )
}

#[tokio::test]
async fn verify_is_inconclusive_if_etcd_stores_protobuf() {
    let Some(bed) = bed::shared().await else { return };
    let path = "/api/v1/namespaces/default/configmaps";
    bed.direct().create(path, serde_json::json!({"metadata": {"name": bed::unique("verify")}})).await;
    let found = verify(&bed, &bed.target(), &["--duration", "1s"]).await;
    assert_eq!(found.code, VOID, "{}", found.report);
    assert!(found.report.contains("protobuf") && found.report.contains("custom resource"), "{}", found.report);
}
