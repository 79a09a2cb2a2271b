//! Reaches proxies in pods through kubectl, with whatever credentials that has.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{AskedProxy, InspectError};
use crate::base::Tasks;
use crate::net::PagePlace;

/// Pods, and where in them the admin pages are.
#[derive(Debug, Clone)]
pub struct PodsOrder {
    pub selector: String,
    /// kubectl's own without it.
    pub namespace: Option<String>,
    pub port: u16,
    pub token: Option<String>,
}

/// A port of this machine that leads to a pod, for as long as this is held.
#[derive(Debug)]
pub struct Forward {
    /// It runs until it is dropped.
    _kubectl: Child,
    _tasks: Tasks,
}

const KUBECTL: &str = "kubectl";
/// Each pod takes a process here and a stream of the apiserver.
const PODS_MAX: usize = 64;
/// How long one of them may take.
const FORWARD_MAX: Duration = Duration::from_secs(20);

/// Finds the pods that run, and forwards a port to each.
///
/// # Errors
/// kubectl cannot be run, finds none, or reaches one of them not.
pub async fn forward(order: &PodsOrder) -> Result<Vec<(AskedProxy, Forward)>, InspectError> {
    let mut get = order.kubectl();
    get.args(["get", "pods", "-o", "name", "--field-selector=status.phase=Running", "-l", &order.selector]);
    let output = get.output().await.map_err(|error| InspectError::of(KUBECTL, error))?;
    if !output.status.success() {
        return Err(InspectError::of("kubectl get pods", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let pods: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if pods.is_empty() || pods.len() > PODS_MAX {
        let why =
            format!("{} pods run that {} selects; 1 to {PODS_MAX} can be asked at once", pods.len(), order.selector);
        return Err(InspectError(why));
    }
    let mut forwards = Vec::new();
    for pod in pods {
        let (forward, port) = timeout(FORWARD_MAX, order.to(&pod))
            .await
            .map_err(|_| InspectError::of(&pod, "no port-forward in time"))??;
        let place = PagePlace::Tcp(format!("127.0.0.1:{port}"));
        forwards.push((AskedProxy { name: pod, place, token: order.token.clone() }, forward));
    }
    Ok(forwards)
}

impl PodsOrder {
    fn kubectl(&self) -> Command {
        let mut command = Command::new(KUBECTL);
        if let Some(namespace) = &self.namespace {
            command.args(["-n", namespace]);
        }
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// The forward to a pod, and the port that it has here.
    async fn to(&self, pod: &str) -> Result<(Forward, u16), InspectError> {
        let wrong = |why: &dyn std::fmt::Display| InspectError::of(&format!("kubectl port-forward {pod}"), why);
        let mut command = self.kubectl();
        command.args(["port-forward", "--address", "127.0.0.1", pod, &format!(":{}", self.port)]);
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| wrong(&error))?;
        let stdout = child.stdout.take().ok_or_else(|| wrong(&"it says nothing"))?;
        let mut lines = BufReader::new(stdout).lines();
        let said = lines.next_line().await.map_err(|error| wrong(&error))?;
        let said = said.ok_or_else(|| wrong(&"it ended; it said why above"))?;
        let port = port(&said).ok_or_else(|| wrong(&format!("it says {said:?}")))?;
        let tasks = Tasks::new();
        // It says a line of each connection, and ends at the first if nobody reads that.
        tasks.spawn("forward", async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok((Forward { _kubectl: child, _tasks: tasks }, port))
    }
}

/// The port in `Forwarding from 127.0.0.1:40123 -> 9090`.
fn port(said: &str) -> Option<u16> {
    let (_, rest) = said.strip_prefix("Forwarding from ")?.split_once(':')?;
    rest.split_once(" -> ")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_from_what_kubectl_says() {
        assert_eq!(port("Forwarding from 127.0.0.1:40123 -> 9090"), Some(40_123));
        assert_eq!([port("error: no"), port("Forwarding from nowhere")], [None, None]);
    }
}
