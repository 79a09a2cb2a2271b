//! Reaches proxies in pods through `kubectl port-forward`, with kubectl's credentials.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, copy, sink};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use super::{InspectError, ProxyTarget};
use base::AdminPageAddress;
use base::{BackgroundTasks, Backoff};

/// The pods to inspect, and the port of their admin pages.
#[derive(Debug, Clone)]
pub struct ProxyPodSelector {
    pub selector: String,
    /// The namespace of the pods; `None` selects kubectl's current namespace.
    pub namespace: Option<String>,
    /// The node of the pods; `None` selects the pods of all nodes.
    pub node: Option<String>,
    /// The context of kubectl's kubeconfig; `None` selects the current one.
    pub context: Option<String>,
    pub port: u16,
    pub token: Option<String>,
}

/// A local port that is forwarded to a pod until this is dropped. If kubectl exits, for example because the pod
/// restarts, another kubectl takes over the same port.
#[derive(Debug)]
pub struct PodPortForward {
    running: RunningKubectl,
    _tasks: BackgroundTasks,
}

/// The kubectl process that forwards; `None` once the forward is closed.
type RunningKubectl = Arc<Mutex<Option<Child>>>;

/// The output pipes of kubectl. It prints a line per connection, so it blocks if they are not read.
struct KubectlOutput(BufReader<ChildStdout>, ChildStderr);

const KUBECTL: &str = "kubectl";
/// The maximum number of pods. Each needs a local process and a stream at the apiserver.
const PODS_MAX: usize = 64;
/// The timeout for opening one port-forward.
const FORWARD_MAX: Duration = Duration::from_secs(20);
/// The number of port-forwards that are opened concurrently.
const AT_ONCE: usize = 8;

/// The name and the phase of each pod, one pod a line.
const POD_PHASES: &str = "jsonpath={range .items[*]}pod/{.metadata.name} {.status.phase}{\"\\n\"}{end}";
/// Selects the pods that have not ended.
const ACTIVE: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Finds the pods that have not ended, and forwards a local port to each. A pod that cannot be reached is an error in
/// the result.
///
/// # Errors
/// If kubectl cannot be run, or finds no pod or more than `PODS_MAX`.
pub async fn forward(
    order: &ProxyPodSelector,
) -> Result<Vec<Result<(ProxyTarget, PodPortForward), InspectError>>, InspectError> {
    let output = order.listing().output().await.map_err(|error| InspectError::of(KUBECTL, error))?;
    if !output.status.success() {
        return Err(InspectError::of("kubectl get pods", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let pods: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if pods.is_empty() || pods.len() > PODS_MAX {
        let (count, selector) = (pods.len(), &order.selector);
        let hint = if pods.is_empty() { "" } else { "; select the pods of one node with --node" };
        return Err(InspectError(format!("{count} pods match {selector}, expected 1 to {PODS_MAX}{hint}")));
    }
    let forwards = pods.into_iter().map(async |pod| {
        let (pod, phase) = pod.split_once(' ').unwrap_or((&pod, ""));
        if phase != "Running" {
            return Err(InspectError::of(pod, format!("not running ({phase})")));
        }
        let pod = pod.to_owned();
        let forward = timeout(FORWARD_MAX, order.to(&pod)).await;
        let (forward, port) = forward.map_err(|_| InspectError::of(&pod, "timeout of the port-forward"))??;
        let place = AdminPageAddress::Tcp(format!("127.0.0.1:{port}"));
        Ok((ProxyTarget { name: pod, place, token: order.token.clone() }, forward))
    });
    Ok(stream::iter(forwards).buffered(AT_ONCE).collect().await)
}

impl ProxyPodSelector {
    fn kubectl(&self) -> Command {
        let mut command = Command::new(KUBECTL);
        if let Some(context) = &self.context {
            command.args(["--context", context]);
        }
        if let Some(namespace) = &self.namespace {
            command.args(["-n", namespace]);
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Returns the command that lists the pods.
    fn listing(&self) -> Command {
        let node = self.node.as_ref().map(|node| format!(",spec.nodeName={node}")).unwrap_or_default();
        let mut get = self.kubectl();
        get.args(["get", "pods", "-o", POD_PHASES, "-l", &self.selector, "--field-selector"]);
        get.arg(format!("{ACTIVE}{node}"));
        get
    }

    /// Opens a forward to a pod, and returns it with its local port.
    async fn to(&self, pod: &str) -> Result<(PodPortForward, u16), InspectError> {
        let (child, output, port) = self.start(pod, None).await?;
        let (running, tasks) = (Arc::new(Mutex::new(Some(child))), BackgroundTasks::new());
        tasks.spawn("forward", self.clone().go_on(pod.to_owned(), port, output, running.clone()));
        Ok((PodPortForward { running, _tasks: tasks }, port))
    }

    /// Starts kubectl on the given local port, or on a free one, and returns the port.
    async fn start(&self, pod: &str, port: Option<u16>) -> Result<(Child, KubectlOutput, u16), InspectError> {
        let wrong = |why: &dyn std::fmt::Display| InspectError::of(&format!("kubectl port-forward {pod}"), why);
        let local = port.map(|port| port.to_string()).unwrap_or_default();
        let mut command = self.kubectl();
        command.args(["port-forward", "--address", "127.0.0.1", pod, &format!("{local}:{}", self.port)]);
        // Output of kubectl on the terminal would disturb the screen of `top`.
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| wrong(&error))?;
        let (stdout, stderr) =
            child.stdout.take().zip(child.stderr.take()).ok_or_else(|| wrong(&"it has no output"))?;
        let (mut stdout, mut stderr) = (BufReader::new(stdout), stderr);
        let mut line = String::new();
        stdout.read_line(&mut line).await.map_err(|error| wrong(&error))?;
        if line.is_empty() {
            let mut why = String::new();
            let _ = stderr.read_to_string(&mut why).await;
            return Err(wrong(&format!("it exited: {}", why.trim())));
        }
        let port = self::port(line.trim_end()).ok_or_else(|| wrong(&format!("unexpected output {line:?}")))?;
        Ok((child, KubectlOutput(stdout, stderr), port))
    }

    /// Restarts kubectl whenever it exits, until the forward is closed. Backs off if it exits soon.
    async fn go_on(self, pod: String, port: u16, mut output: KubectlOutput, running: RunningKubectl) {
        let mut retries = Backoff::default();
        loop {
            output.drain().await;
            sleep(retries.failed(Instant::now())).await;
            let started = timeout(FORWARD_MAX, self.start(&pod, Some(port))).await;
            let mut running = running.lock();
            if running.is_none() {
                return;
            }
            // A start may fail while the pod restarts, so errors lead to another attempt.
            if let Ok(Ok((child, line, _))) = started {
                (*running, output) = (Some(child), line);
                retries.succeeded(Instant::now());
            }
        }
    }
}

impl KubectlOutput {
    /// Discards the output until kubectl exits.
    async fn drain(&mut self) {
        let (mut stdout_sink, mut stderr_sink) = (sink(), sink());
        // A read error also means that the pipe has ended.
        let _ = tokio::join!(copy(&mut self.0, &mut stdout_sink), copy(&mut self.1, &mut stderr_sink));
    }
}

impl Drop for PodPortForward {
    fn drop(&mut self) {
        // Dropping the child kills kubectl (`kill_on_drop`).
        drop(self.running.lock().take());
    }
}

/// Parses the local port in `Forwarding from 127.0.0.1:40123 -> 9090`.
fn port(line: &str) -> Option<u16> {
    let (_, rest) = line.strip_prefix("Forwarding from ")?.split_once(':')?;
    rest.split_once(" -> ")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_lists_the_pods_of_one_node_in_one_context() {
        let mut order = ProxyPodSelector {
            selector: "app=x".to_owned(),
            namespace: Some("y".to_owned()),
            node: None,
            context: None,
            port: 9090,
            token: None,
        };
        let arguments = |order: &ProxyPodSelector| {
            let listing = order.listing();
            let words: Vec<_> = listing.as_std().get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            words.join(" ").replace(POD_PHASES, "PHASES")
        };
        let all = "get pods -o PHASES -l app=x --field-selector status.phase!=Succeeded,status.phase!=Failed";
        assert_eq!(arguments(&order), format!("-n y {all}"));
        (order.node, order.context) = (Some("n7".to_owned()), Some("prod".to_owned()));
        assert_eq!(arguments(&order), format!("--context prod -n y {all},spec.nodeName=n7"));
    }

    #[test]
    fn port_is_parsed_from_kubectl_output() {
        assert_eq!(port("Forwarding from 127.0.0.1:40123 -> 9090"), Some(40_123));
        assert_eq!([port("error: no"), port("Forwarding from nowhere")], [None, None]);
    }
}
