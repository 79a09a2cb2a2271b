//! kubectl prints the same through the proxy as directly.

use std::path::PathBuf;
use std::process::Command;

use futures_util::future::join_all;
use serde_json::json;

use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{self, Account, Http, Plan, Plane, Proxy, Target, eventually, kubectl, log_line};

/// kubectl's output and exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CommandOutput {
    out: String,
    errors: String,
    code: Option<i32>,
}

async fn run(mut command: Command) -> CommandOutput {
    let output = tokio::task::spawn_blocking(move || command.output().expect("kubectl runs")).await.expect("no panic");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    CommandOutput { out: text(output.stdout), errors: text(output.stderr), code: output.status.code() }
}

/// Replaces ages such as `0s` and `3m12s` with `AGE`, and also the servers' addresses.
fn normalised(text: &str, target: &Target) -> String {
    let is_age = |word: &str| {
        let mut digits = false;
        let units = word.chars().all(|c| match c {
            '0'..='9' => {
                digits = true;
                true
            }
            's' | 'm' | 'h' | 'd' => digits,
            _ => false,
        });
        units && digits && word.ends_with(['s', 'm', 'h', 'd'])
    };
    let text = text.replace(&target.url, "SERVER").replace(target.host(), "SERVER");
    let lines = text.lines().map(|line| {
        let columns = line.split_whitespace().map(|word| if is_age(word) { "AGE" } else { word });
        // The width of a column depends on its longest age.
        if line.contains("  ") && line.split_whitespace().any(is_age) {
            columns.collect::<Vec<_>>().join(" ")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Removes kubectl's own log lines, which have times and addresses. Its messages to the user remain.
fn comparable(output: &CommandOutput, target: &Target) -> CommandOutput {
    let errors = normalised(&output.errors, target);
    CommandOutput { out: normalised(&output.out, target), errors, code: output.code }
}

async fn same(bed: &Plane, proxy: &Proxy, args: &[&str]) -> CommandOutput {
    let [direct, through] = [bed.target(), proxy.target()];
    let (a, b) = tokio::join!(run(kubectl(bed, &direct, args)), run(kubectl(bed, &through, args)));
    let (a, b) = (comparable(&a, &direct), comparable(&b, &through));
    assert_eq!(b, a, "kubectl {}", args.join(" "));
    b
}

fn manifest(bed: &Plane, text: &str) -> String {
    let path = bed.file("manifest");
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("a plain path").to_owned()
}

const PODS: &str = "
{kind: List, apiVersion: v1, items: [
  {kind: Pod, apiVersion: v1, metadata: {name: a, labels: {app: x}}, spec: {containers: [{name: c, image: i}]}},
  {kind: Pod, apiVersion: v1, metadata: {name: b, labels: {app: z}},
    spec: {nodeName: n1, containers: [{name: c, image: i}]}},
  {kind: Pod, apiVersion: v1, metadata: {name: c, labels: {app: x}},
    spec: {nodeName: n2, containers: [{name: c, image: i}]}},
  {kind: ConfigMap, apiVersion: v1, metadata: {name: m}, data: {k: 'a<b>&'}},
  {kind: Deployment, apiVersion: apps/v1, metadata: {name: d}, spec: {replicas: 0, selector: {matchLabels: {app: d}},
    template: {metadata: {labels: {app: d}}, spec: {containers: [{name: c, image: i}]}}}}]}
";

/// A deployment that never gets a replica, because no controller runs.
const NEVER_AVAILABLE: &str = "
{kind: Deployment, apiVersion: apps/v1, metadata: {name: never}, spec: {replicas: 1,
  selector: {matchLabels: {app: never}},
  template: {metadata: {labels: {app: never}}, spec: {containers: [{name: c, image: i}]}}}}
";

#[tokio::test]
async fn kubectl_reads_print_the_same_as_direct() {
    // This test runs alone, because a definition of another test could be in only one of the answers.
    let Some(bed) = bed::alone().await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let namespace = bed.namespace("kubectl").await;
    let file = manifest(&bed, PODS);
    let applied = run(kubectl(&bed, &proxy.target(), &["apply", "-n", &namespace, "-f", &file])).await;
    assert_eq!(applied.code, Some(0), "{applied:?}");
    let reads: &[&[&str]] = &[
        &["get", "pods"],
        &["get", "pods", "-o", "json"],
        &["get", "pods", "-o", "yaml"],
        &["get", "pods", "-o", "wide"],
        &["get", "pods", "-o", "name"],
        &["get", "pods", "-o", "jsonpath={.items[*].metadata.name}"],
        &["get", "pods", "-o", "custom-columns=N:.metadata.name,L:.metadata.labels.app"],
        &["get", "pods", "--sort-by", ".metadata.name"],
        &["get", "pods", "--show-labels"],
        &["get", "pods", "-l", "app=x"],
        &["get", "pods", "-l", "app notin (x)", "-o", "json"],
        &["get", "pods", "-l", "app in", "-o", "name"],
        &["get", "pods", "--field-selector", "spec.nodeName=n1", "-o", "json"],
        &["get", "pods", "--field-selector", "spec.nope=n1", "-o", "name"],
        &["get", "pods", "--chunk-size", "1", "-o", "json"],
        &["get", "pods", "--chunk-size", "2"],
        &["get", "pod", "a"],
        &["get", "pod", "a", "-o", "json"],
        &["get", "pod", "a", "-o", "yaml"],
        &["get", "pod", "missing"],
        &["get", "pod", "missing", "-o", "json"],
        &["get", "pods,configmaps", "-o", "name"],
        &["get", "configmap", "m", "-o", "json"],
        &["get", "namespaces"],
        &["get", "nonsense"],
        &["get", "--raw", "/version"],
        &["describe", "pod", "a"],
        &["describe", "deployment", "d"],
        &["api-resources"],
        &["api-versions"],
        &["explain", "pod.spec.containers.image"],
        &["logs", "a"],
        &["logs", "b"],
        &["auth", "can-i", "list", "pods"],
        &["auth", "can-i", "--list"],
        &["wait", "--for=jsonpath={.status.phase}=Pending", "pod/a", "--timeout=120s"],
        &["rollout", "history", "deployment/d"],
        &["events"],
    ];
    let alike = async |args: &[&str]| same(&bed, &proxy, &[&["-n", &namespace], args].concat()).await;
    let all = async {
        for some in reads.chunks(2) {
            join_all(some.iter().map(|args| alike(args))).await;
        }
    };
    // This command must time out, so it runs in parallel with all others.
    let waits = alike(&["wait", "--for=condition=Ready", "pod/a", "--timeout=15s"]);
    tokio::join!(all, waits);
    log_line(&format!("{} kubectl reads say the same", reads.len() + 1));
}

/// Exec, attach and port-forward need a kubelet. Without one, upstream's response to the upgrade must arrive unchanged.
#[tokio::test]
async fn refused_upgrade_returns_the_upstream_response() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::tls().config("execOnLoopback: true").start(&bed).await;
    let namespace = bed.namespace("upgrades").await;
    let file = manifest(&bed, PODS);
    run(kubectl(&bed, &bed.target(), &["apply", "-n", &namespace, "-f", &file])).await;
    let attempts: &[&[&str]] = &[
        &["exec", "a", "--", "true"],
        &["exec", "b", "--", "true"],
        &["exec", "missing", "--", "true"],
        &["attach", "a"],
        &["port-forward", "a", "0:80"],
        &["cp", "a:/x", "x"],
    ];
    join_all(attempts.iter().map(async |args| {
        let output = same(&bed, &proxy, &[&["-n", &namespace], *args].concat()).await;
        assert_ne!(output.code, Some(0), "{output:?}");
        log_line(&format!("kubectl {}: {}", args.join(" "), output.errors.lines().last().unwrap_or_default()));
    }))
    .await;
}

/// Writes, each done once through the proxy and once directly, to objects with the same names in two namespaces.
#[tokio::test]
async fn kubectl_writes_behave_the_same_as_direct() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let spaces = [bed.namespace("direct").await, bed.namespace("through").await];
    let file = manifest(&bed, PODS);
    let scaled = manifest(&bed, &PODS.replace("'a<b>&'", "other"));
    let never = manifest(&bed, NEVER_AVAILABLE);
    let writes: &[&[&str]] = &[
        &["apply", "-f", &file],
        &["apply", "-f", &file],
        &["diff", "-f", &scaled],
        &["apply", "-f", &scaled],
        &["apply", "--server-side", "--force-conflicts", "-f", &scaled],
        &["patch", "configmap", "m", "-p", r#"{"data":{"k":"patched"}}"#],
        &["patch", "configmap", "m", "--type=json", "-p", r#"[{"op":"add","path":"/data/n","value":"1"}]"#],
        &["label", "pod", "a", "color=red"],
        &["annotate", "pod", "a", "note=1"],
        &["label", "pod", "a", "color=blue"],
        &["create", "configmap", "n", "--from-literal=a=b"],
        &["create", "configmap", "n", "--from-literal=a=b"],
        &["scale", "deployment/d", "--replicas=2"],
        &["rollout", "restart", "deployment/missing"],
        &["delete", "pod", "b", "--grace-period=0", "--force"],
        &["delete", "pod", "-l", "app=z", "--wait=false"],
        &["delete", "configmap", "m", "n"],
        &["delete", "configmap", "m"],
        &["get", "pods,configmaps,deployments", "-o", "name"],
    ];
    // This command must time out. The other commands do not affect its object, so they run in parallel.
    let waits: &[&str] = &["rollout", "status", "deployment/never", "--timeout=20s"];
    let alike = async |args: &[&str]| {
        let targets = [bed.target(), proxy.target()];
        let output = join_all(targets.iter().zip(&spaces).map(async |(target, space)| {
            let done = run(kubectl(&bed, target, &[&["-n", space], args].concat())).await;
            let done = comparable(&done, target);
            let without = |text: &str| text.replace(space, "SPACE");
            let errors = without(&done.errors);
            // diff prints the names of its temporary files.
            let out = done.out.lines().filter(|line| !line.starts_with(['+', '-', 'd']) || !line.contains("/tmp/"));
            (without(&out.collect::<Vec<_>>().join("\n")), errors, done.code)
        }));
        let output = output.await;
        assert_eq!(output[1], output[0], "kubectl {}", args.join(" "));
    };
    let all = async {
        for args in writes {
            alike(args).await;
        }
    };
    alike(&["apply", "-f", &never]).await;
    tokio::join!(alike(waits), all);
    log_line(&format!("{} kubectl writes say the same", writes.len() + 2));
}

/// A `kubectl` watch, which is ended when it has written enough.
struct Watching {
    process: bed::Process,
    out: PathBuf,
    log: PathBuf,
}

impl Watching {
    fn start(bed: &Plane, target: &Target, args: &[&str]) -> Self {
        let (out, log) = (bed.file("kubectl-watch"), bed.file("kubectl-watch"));
        let file = |path: &PathBuf| std::fs::File::create(path).expect("a file");
        let mut command = kubectl(bed, target, args);
        command.arg("-v=6").stdout(file(&out)).stderr(file(&log));
        Self { process: bed::Process::start("kubectl get --watch", &mut command), out, log }
    }

    /// Waits until the watch has been answered, which kubectl logs at this verbosity.
    async fn is_open(&self) {
        eventually("kubectl's watch is answered", async || {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            log.lines().any(|line| line.contains("watch=true") && line.contains("200 OK")).then_some(())
        })
        .await;
    }

    async fn says(&self, lines: usize) -> String {
        eventually("kubectl tells what it watches", async || {
            let printed = std::fs::read_to_string(&self.out).unwrap_or_default();
            // kubectl writes a line cell by cell.
            (printed.matches('\n').count() >= lines).then_some(printed)
        })
        .await
    }
}

#[tokio::test]
async fn kubectl_watches_print_the_same_as_direct() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let namespace = bed.namespace("watched").await;
    let file = manifest(&bed, PODS);
    run(kubectl(&bed, &bed.target(), &["apply", "-n", &namespace, "-f", &file])).await;
    // The number of initial lines, and of lines after the changes below, of which the deletion is two events.
    let watches: &[(&[&str], usize, usize)] = &[
        // Tables, as users watch them.
        (&["get", "pods", "-w"], 4, 8),
        (&["get", "pods", "-w", "-o", "wide"], 4, 8),
        (&["get", "pods", "-w", "--output-watch-events"], 4, 8),
        (&["get", "pods", "-w", "-l", "app=x", "--show-labels"], 3, 5),
        (&["get", "pods", "--watch-only", "--field-selector", "metadata.name=a"], 0, 3),
        (&["get", "pods", "-w", "--no-headers"], 3, 7),
        (&["get", "pod", "a", "-w"], 2, 4),
        (&["get", "pods", "-w", "-o", "name"], 3, 7),
        (&["get", "pods", "-w", "-o", "jsonpath={.metadata.name} {.metadata.labels}{\"\\n\"}", "-l", "app=x"], 2, 4),
        (&["get", "pods", "-w", "--output-watch-events", "-o", "custom-columns=N:.metadata.name"], 4, 8),
        (&["get", "pod", "a", "-w", "-o", "name"], 1, 3),
        (&["get", "pods", "--watch-only", "-o", "name"], 0, 4),
    ];
    let running = join_all(watches.iter().map(async |(args, first, last)| {
        let args = [&["-n", &namespace], *args].concat();
        let pair = [bed.target(), proxy.target()].map(|target| (Watching::start(&bed, &target, &args), target));
        for (watching, _) in &pair {
            watching.says(*first).await;
            watching.is_open().await;
        }
        (args, *last, pair)
    }))
    .await;
    let client = bed.direct();
    let pod = |name: &str| format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let patch = |label| serde_json::json!({"metadata": {"labels": {"app": label}}});
    client.patch(&pod("a"), patch("x2")).await;
    client.patch(&pod("a"), patch("x")).await;
    client.delete(&pod("b")).await;
    for (args, last, [(direct, _), (through, target)]) in running {
        let expected = normalised(&direct.says(last).await, &target);
        assert_eq!(normalised(&through.says(last).await, &target), expected, "kubectl {}", args.join(" "));
        drop((direct.process, through.process));
    }
    log_line(&format!("{} kubectl watches say the same", watches.len()));
    let tables = [("verb", "watch"), ("representation", "table")];
    let tables = proxy.metrics().await.sum("kube_fanout_served_total", &tables);
    assert_eq!(tables, 7, "every Table");
    log_line(&format!("forwarded: {:?}", proxy.forwarded().await));
}

/// Returns the arguments of a caller with this token instead of the administrator's certificate.
fn with_token<'a>(token: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [&["--kubeconfig", "/dev/null", "--token", token], args].concat()
}

/// A tenant's kubectl prints what the administrator's prints of the tenant's namespaces.
#[tokio::test]
async fn tenant_kubectl_shows_only_permitted_namespaces() {
    let Some(bed) = bed::shared().await else { return };
    let direct: Http = bed.direct();
    let mut namespaces = Vec::new();
    let file = manifest(&bed, PODS);
    for _ in 0..4 {
        let namespace = bed.namespace("tenant").await;
        run(kubectl(&bed, &bed.target(), &["apply", "-n", &namespace, "-f", &file])).await;
        namespaces.push(namespace);
    }
    let account = Account::create(&direct, &namespaces[0], "tenant").await;
    let group = format!("system:serviceaccounts:{}", namespaces[0]);
    let filter = format!("reads: {{filter: {{groups: [\"{group}\"]}}}}");
    let proxy = Plan::delegated(&bed).config(&filter).start(&bed).await;
    let allow = async |namespace: &str| {
        let bound = binding("tenant", "ClusterRole", "view", &subject("Group", &group));
        direct.create(&collection(Some(namespace), "rolebindings"), bound).await;
        let attributes = json!({"namespace": namespace, "verb": "list", "resource": "pods"});
        may(&direct, json!({"user": account.user(), "groups": [group], "resourceAttributes": attributes})).await;
    };
    allow(&namespaces[0]).await;
    allow(&namespaces[1]).await;
    let token = account.token(&direct).await.token;
    let as_tenant = |args| with_token(&token, args);
    // The lines of the tenant's namespaces, which are in the first column.
    let lines = |output: &CommandOutput, tenants: &[String]| -> Vec<String> {
        let of = |line: &&str| tenants.iter().any(|namespace| line.split_whitespace().next() == Some(namespace));
        output.out.lines().filter(of).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let mut compared = 0;
    for args in [
        &["get", "ns"][..],
        &["get", "namespaces", "--no-headers"],
        &["get", "pods", "-A"],
        &["get", "pods", "-A", "-o", "wide"],
        &["get", "pods", "-A", "--chunk-size=1"],
        &["get", "pods", "-A", "-l", "app=x", "--show-labels"],
        &["get", "pods", "-A", "--field-selector", "spec.nodeName=n1"],
        &["get", "pods", "-A", "--sort-by", "{.metadata.uid}"],
        &["get", "deployments", "-A"],
        &["get", "cm", "-A", "-o", "custom-columns=NS:.metadata.namespace,N:.metadata.name,D:.data"],
    ] {
        let output = run(kubectl(&bed, &proxy.target(), &as_tenant(args))).await;
        let admin = run(kubectl(&bed, &bed.target(), args)).await;
        let [output, admin] = [(&output, proxy.target()), (&admin, bed.target())].map(|(of, at)| comparable(of, &at));
        assert_eq!((output.code, output.errors.as_str()), (Some(0), ""), "{args:?}");
        let shown = lines(&output, &namespaces);
        assert_eq!(shown, lines(&admin, &namespaces[..2]), "{args:?}");
        assert!(!shown.is_empty(), "{args:?}: {}", output.out);
        let others = output.out.lines().count() - shown.len();
        assert!(others <= 1, "{args:?} prints only a header besides: {}", output.out);
        compared += shown.len();
    }
    for (action, code) in [
        (["list", "pods"], 0),
        (["watch", "deployments.apps"], 0),
        (["list", "ns"], 0),
        (["get", "pods"], 1),
        (["delete", "pods"], 1),
        (["list", "secrets"], 1),
    ] {
        let args = [&["auth", "can-i", "-A"][..], &action].concat();
        let output = run(kubectl(&bed, &proxy.target(), &with_token(&token, &args))).await;
        assert_eq!(output.code, Some(code), "{action:?}: {output:?}");
    }
    let watch = Watching::start(&bed, &proxy.target(), &as_tenant(&["get", "pods", "-A", "-w", "--no-headers"]));
    watch.is_open().await;
    watch.says(6).await;
    for namespace in [&namespaces[3], &namespaces[1]] {
        let label = ["label", "pod", "a", "-n", namespace, "changed=1"];
        run(kubectl(&bed, &bed.target(), &label)).await;
    }
    watch.says(7).await;
    allow(&namespaces[2]).await;
    let printed = watch.says(10).await;
    let output = CommandOutput { out: printed, errors: String::new(), code: None };
    let counts: Vec<_> =
        namespaces.iter().map(|namespace| lines(&output, std::slice::from_ref(namespace)).len()).collect();
    assert_eq!(counts, [3, 4, 3, 0], "{}", output.out);
    // Others get the apiserver's own refusal.
    let stranger = Account::create(&direct, &namespaces[3], "stranger").await.token(&direct).await.token;
    for resource in ["ns", "pods"] {
        let args = with_token(&stranger, &["get", resource, "-A"]);
        let refused = run(kubectl(&bed, &proxy.target(), &args)).await;
        assert!(refused.errors.contains("(Forbidden)"), "{refused:?}");
    }
    log_line(&format!("{compared} lines of a tenant's kubectl"));
}
