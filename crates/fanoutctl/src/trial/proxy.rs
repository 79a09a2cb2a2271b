use std::path::PathBuf;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::wait::until;
use super::{TrialError, process};
use base::AdminPageAddress;

/// The options of a trial's proxy.
#[derive(Debug, Clone)]
pub struct TrialProxyOptions {
    pub program: PathBuf,
    /// The kubeconfig with which the proxy connects to upstream.
    pub kubeconfig: PathBuf,
    /// The client and admin addresses, each `HOST:PORT`.
    pub listen: String,
    pub admin: String,
    pub log: PathBuf,
}

/// The proxy, running as a separate process.
pub struct ProxyProcess {
    order: TrialProxyOptions,
    child: Option<Child>,
}

const START_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(20);
const PAGE_BYTES_MAX: usize = 1 << 20;

impl ProxyProcess {
    /// Starts the proxy, and waits until it responds.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start(order: TrialProxyOptions) -> Result<Self, TrialError> {
        let mut proxy = Self { order, child: None };
        proxy.start_again().await?;
        Ok(proxy)
    }

    /// Restarts the proxy after [`kill`](Self::kill).
    ///
    /// # Errors
    /// If it does not start.
    pub async fn start_again(&mut self) -> Result<(), TrialError> {
        let TrialProxyOptions { program, kubeconfig, listen, admin, log } = &self.order;
        let fail = |why: &dyn std::fmt::Display| TrialError::of("the proxy", why);
        let mut command = Command::new(program);
        command.arg("run-proxy").arg("--kubeconfig").arg(kubeconfig);
        command.args(["--listen", listen, "--admin", admin, "--auth", "delegated"]);
        let child = self.child.insert(process::spawn(&mut command, log).map_err(|error| fail(&error))?);
        let page = AdminPageAddress::Tcp(admin.clone());
        let is_up = until(START_MAX, async || {
            if child.try_wait().ok().flatten().is_some() {
                return Some(false);
            }
            let (status, _) = page.read("/livez", None, PAGE_BYTES_MAX).await.ok()?;
            status.is_success().then_some(true)
        });
        if is_up.await == Some(true) {
            return Ok(());
        }
        Err(fail(&format!("it did not start; see {}", log.display())))
    }

    /// Kills the proxy with SIGKILL, like a crash.
    ///
    /// # Errors
    /// If it cannot be killed.
    pub async fn kill(&mut self) -> Result<(), TrialError> {
        match self.child.take() {
            Some(mut child) => child.kill().await.map_err(|error| TrialError::of("the proxy", error)),
            None => Ok(()),
        }
    }

    /// Stops the proxy with SIGTERM, and waits until it exits.
    pub async fn stop(self) {
        // The clients have already disconnected, so draining takes no time.
        if let Some(child) = self.child {
            process::end(child, END_MAX).await;
        }
    }
}
