use std::path::{Path, PathBuf};

use super::note::note;
use crate::trial::{ControlPlane, TargetCredentials, TestbedSource, TrialError, find_testbed};
use demo::{RunningDemoApiserver, upstream};

/// The upstream of a trial's proxy: a real control plane or the embedded demo apiserver.
pub(super) enum TrialUpstream {
    Real(Box<ControlPlane>),
    Demo(RunningDemoApiserver),
}

/// The user that the demo upstream accepts, and the names of the files with its credentials.
const DEMO_USER: &str = "somebody";
const DEMO_TOKEN: &str = "token";
const DEMO_KUBECONFIG: &str = "kubeconfig";

impl TrialUpstream {
    /// Returns the path of the test bed's binary: the given one, or the one found. In a checkout without one, it builds
    /// the binary.
    pub(super) async fn testbed(given: Option<&Path>, program: &Path) -> Result<PathBuf, TrialError> {
        let fail = |why: &str| TrialError::of("the control plane", why);
        if let Some(given) = given {
            let is_there = given.is_file();
            return if is_there { Ok(given.to_owned()) } else { Err(fail(&format!("no file {}", given.display()))) };
        }
        let folder = std::env::current_dir().map_err(|error| fail(&error.to_string()))?;
        match find_testbed(&folder, Some(program)) {
            TestbedSource::Binary(binary) => Ok(binary),
            TestbedSource::Script { script, binary } => {
                note("Building the control plane from the Go modules of etcd and Kubernetes (once, minutes).")?;
                ControlPlane::build(&script).await?;
                Ok(binary)
            }
            TestbedSource::Nowhere => Err(fail(
                "no binary found. Run `try` in a checkout of kube-fanout, which builds it (once, minutes), pass \
                 --testbed PATH, or use --demo",
            )),
        }
    }

    pub(super) async fn real(binary: &Path, dir: &Path) -> Result<Self, TrialError> {
        note(&format!("Starting etcd and kube-apiserver from {}", binary.display()))?;
        Ok(Self::Real(Box::new(ControlPlane::start(binary, dir).await?)))
    }

    pub(super) async fn demo(dir: &Path) -> Result<Self, TrialError> {
        note("Starting the embedded apiserver of the demo")?;
        let fail = |error: std::io::Error| TrialError::of("the demo upstream", error);
        let up = upstream().remember_requests(false).try_run().await.map_err(fail)?;
        let token = format!("{:032x}", fastrand::u128(..));
        up.reviews().give(&token, DEMO_USER);
        up.reviews().allow(DEMO_USER, "*");
        std::fs::write(dir.join(DEMO_TOKEN), token).map_err(fail)?;
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "demo",
            "clusters": [{"name": "demo", "cluster": {"server": up.url()}}],
            "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "nobody"}}],
            "users": [{"name": "nobody", "user": {}}],
        });
        std::fs::write(dir.join(DEMO_KUBECONFIG), kubeconfig.to_string()).map_err(fail)?;
        Ok(Self::Demo(up))
    }

    /// Returns the path of the proxy's kubeconfig.
    pub(super) fn kubeconfig(&self, dir: &Path) -> PathBuf {
        match self {
            Self::Real(plane) => plane.kubeconfig("proxy"),
            Self::Demo(_) => dir.join(DEMO_KUBECONFIG),
        }
    }

    /// Returns the credentials of the writers, which connect to the apiserver directly.
    pub(super) fn writers(&self, dir: &Path) -> TargetCredentials {
        let kubeconfig = match self {
            Self::Real(plane) => plane.kubeconfig("admin"),
            Self::Demo(_) => dir.join(DEMO_KUBECONFIG),
        };
        TargetCredentials { kubeconfig: Some(kubeconfig), ..TargetCredentials::default() }
    }

    /// Returns the path of the token for the informers and the live page.
    pub(super) fn token_file(&self, dir: &Path) -> PathBuf {
        match self {
            Self::Real(plane) => plane.token_file("admin"),
            Self::Demo(_) => dir.join(DEMO_TOKEN),
        }
    }

    pub(super) async fn kill(&mut self) -> Result<(), TrialError> {
        match self {
            Self::Real(plane) => plane.kill_apiserver().await,
            Self::Demo(up) => {
                up.faults().down().await;
                Ok(())
            }
        }
    }

    pub(super) async fn start_again(&mut self) -> Result<(), TrialError> {
        match self {
            Self::Real(plane) => plane.start_apiserver().await,
            Self::Demo(up) => {
                // A restarted apiserver has an empty watch cache, and so no history.
                up.faults().forget_window();
                up.faults().up().await;
                Ok(())
            }
        }
    }

    pub(super) async fn stop(self) {
        match self {
            Self::Real(plane) => plane.stop().await,
            Self::Demo(up) => up.stop().await,
        }
    }
}
