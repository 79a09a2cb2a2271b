use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

use super::note::note;
use super::upstream::TrialUpstream;
use crate::arguments::TryArguments;
use crate::trial::{
    InformerFleet, PODS_PATH, ProxyProcess, TargetCredentials, TrialAction, TrialError, TrialProxyOptions, TrialWriters,
};

/// The started parts of a trial.
pub(super) struct TrialSetup {
    pub(super) servers: TrialServers,
    pub(super) writers: TrialWriters,
    pub(super) crowd: InformerFleet,
    /// The URL of the live page, with the token.
    pub(super) admin_page: String,
    pub(super) dir: TrialDir,
}

/// The servers that a trial can kill and restart.
pub(super) struct TrialServers {
    plane: TrialUpstream,
    proxy: ProxyProcess,
}

/// The directory of a trial, with mode 0700. Dropping this removes the directory unless `is_kept` is set.
pub(super) struct TrialDir {
    path: PathBuf,
    is_kept: bool,
}

/// The range of ports below the ephemeral range, so that a killed proxy can bind its own port again.
const PORTS: std::ops::Range<u16> = 10_000..20_000;
const ATTEMPTS_MAX: usize = 100;
const AGENT: &str = "kube-fanout-try/informer";

impl TrialSetup {
    /// Starts the control plane, the proxy, the informers and the writers.
    pub(super) async fn set(arguments: &TryArguments, program: &Path) -> Result<Self, TrialError> {
        let TryArguments { demo, testbed, informers, pods, rate, script: _, dir } = arguments;
        let binary = if *demo { None } else { Some(TrialUpstream::testbed(testbed.as_deref(), program).await?) };
        let dir = TrialDir::make(dir.as_deref())?;
        let plane = match binary {
            Some(binary) => TrialUpstream::real(&binary, &dir.path).await?,
            None => TrialUpstream::demo(&dir.path).await?,
        };
        let (listen, admin) = (free_address()?, free_address()?);
        let order = TrialProxyOptions {
            program: program.to_owned(),
            kubeconfig: plane.kubeconfig(&dir.path),
            listen: listen.clone(),
            admin: admin.clone(),
            log: dir.path.join("proxy.log"),
        };
        let direct = plane.writers(&dir.path);
        let server = direct.server().map_err(|error| TrialError::of("upstream", error))?;
        let direct = direct.target(&server).await.map_err(|error| TrialError::of("upstream", error))?;
        note(&format!("Starting a proxy and {informers} informers of {pods} pods with {rate} changes per second"))?;
        let writers = TrialWriters::create(&direct, *pods as usize).await?;
        let proxy = ProxyProcess::start(order).await?;
        let fail = |error: std::io::Error| TrialError::of("the token", error);
        let token = std::fs::read_to_string(plane.token_file(&dir.path)).map_err(fail)?;
        // The file ends with a newline, which a header value must not contain.
        let token_file = dir.path.join("informers.token");
        std::fs::write(&token_file, token.trim()).map_err(fail)?;
        let credentials = TargetCredentials { token_file: Some(token_file), ..TargetCredentials::default() };
        let through = credentials.target(&format!("http://{listen}")).await;
        let through = through.map_err(|error| TrialError::of("the proxy", error))?.by(AGENT);
        let crowd = InformerFleet::start(through, PODS_PATH, *informers as usize, *pods as usize);
        writers.begin(&direct, f64::from(*rate));
        let admin_page = format!("http://{admin}/#token={}", token.trim());
        Ok(Self { servers: TrialServers { plane, proxy }, writers, crowd, admin_page, dir })
    }
}

impl TrialServers {
    /// Kills the server that the action names, and restarts it after `away`.
    pub(super) async fn again(mut self, action: TrialAction, away: Duration) -> (Self, Result<(), TrialError>) {
        let done = self.kill_and_start(action, away).await;
        (self, done)
    }

    async fn kill_and_start(&mut self, action: TrialAction, away: Duration) -> Result<(), TrialError> {
        match action {
            TrialAction::Apiserver => {
                self.plane.kill().await?;
                sleep(away).await;
                self.plane.start_again().await
            }
            TrialAction::Proxy => {
                self.proxy.kill().await?;
                sleep(away).await;
                self.proxy.start_again().await
            }
            TrialAction::Quit => Ok(()),
        }
    }

    pub(super) async fn stop(self) {
        self.proxy.stop().await;
        self.plane.stop().await;
    }
}

impl TrialDir {
    fn make(kept: Option<&Path>) -> Result<Self, TrialError> {
        let own = || std::env::temp_dir().join(format!("kube-fanout-try-{:08x}", fastrand::u32(..)));
        let path = kept.map_or_else(own, Path::to_owned);
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(kept.is_some()).mode(0o700).create(&path);
        made.map_err(|error| TrialError::of(&path.display().to_string(), error))?;
        Ok(Self { path, is_kept: kept.is_some() })
    }
}

impl Drop for TrialDir {
    fn drop(&mut self) {
        if !self.is_kept {
            // An error is ignored, because the system cleans its temporary directory.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn free_address() -> Result<String, TrialError> {
    let drawn = std::iter::repeat_with(|| format!("127.0.0.1:{}", fastrand::u16(PORTS))).take(ATTEMPTS_MAX);
    let free = drawn.into_iter().find(|address| TcpListener::bind(address).is_ok());
    free.ok_or_else(|| TrialError::of("the proxy", "no free port"))
}
