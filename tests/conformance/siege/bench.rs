//! `fanoutctl bench` as a client of the proxy.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::bed::{self, PATIENCE, Plane, Process, Proxy, eventually, unique};

/// A running bench in its own process.
pub struct Bench {
    process: Process,
    figures: PathBuf,
    stderr: PathBuf,
    patience: Duration,
}

impl Bench {
    /// Starts a bench with the credentials of this kubeconfig, which measures for `seconds`. It writes directly to the
    /// apiserver.
    pub fn start(plane: &Plane, proxy: &Proxy, kubeconfig: &Path, seconds: u64, arguments: &[&str]) -> Self {
        let (name, target) = (unique("bench"), proxy.target());
        let file = |end: &str| plane.file(&format!("{name}.{end}"));
        let (figures, stderr) = (file("json"), file("err"));
        let mut command = bed::kube_fanout("bench");
        command.args(["--target", &target.url, "--ca"]).arg(target.ca.as_ref().expect("it speaks TLS"));
        command.arg("--kubeconfig").arg(kubeconfig).args(["--write", plane.url()]).args(arguments);
        command.args(["--seconds", &seconds.to_string(), "--json"]).arg(&figures);
        let create = |path: &Path| File::create(path).expect("a file");
        command.stdout(create(&file("out"))).stderr(create(&stderr));
        let process = Process::start("fanoutctl bench", &mut command);
        Self { process, figures, stderr, patience: PATIENCE + Duration::from_secs(seconds) }
    }

    /// Waits until its watches are open.
    pub async fn measures(&self) {
        eventually("its watches are open, and it measures", async || {
            fs::read_to_string(&self.stderr).expect("a file").contains("measuring").then_some(())
        })
        .await;
    }

    /// Waits until everything is delivered or answered. Returns the measurements.
    pub async fn finish(self) -> Value {
        let ended = self.process.wait(self.patience).await;
        assert!(ended.success(), "the bench missed nothing: {}", fs::read_to_string(&self.stderr).expect("a file"));
        let results: Value = serde_json::from_slice(&fs::read(&self.figures).expect("figures")).expect("JSON");
        results["outcomes"][0]["figures"].clone()
    }
}
