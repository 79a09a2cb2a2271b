//! The `bench` command: converts its arguments into [`BenchOptions`], runs the bench, and writes the results.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use futures_util::future::{BoxFuture, LocalBoxFuture};
use tokio_util::sync::CancellationToken;

use super::interrupted_twice;
use crate::arguments::BenchArguments;
use bench::{
    BenchError, BenchOptions, BenchPlanErrors, BenchScenario, MeasuredServer, ProgressLine, SCENARIOS,
    TargetCredentials, WatchProtocol, html, render, run,
};
use kube_fanout::app::raise_open_files;

/// A validated `bench` command: what to measure, and where to write the results.
#[derive(Debug)]
pub struct BenchCommand {
    order: BenchOptions,
    json: Option<PathBuf>,
    report: Option<PathBuf>,
}

/// The reason that a bench has no results.
#[derive(Debug, thiserror::Error)]
pub enum BenchFailure {
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    #[error("interrupted twice; created objects may remain in namespaces with the label kube-fanout.io/bench")]
    Interrupted,
    #[error("some watches missed or repeated events; see the figures `missed` and `repeated`")]
    Incomplete,
}

/// Lists the built-in scenarios, one per line.
pub fn scenarios() -> String {
    let about = |name| BenchScenario::embedded(name).and_then(Result::ok).map(|of| of.about().to_owned());
    let line = |(name, _): &(&'static str, _)| format!("{name:<24}{}", about(name).unwrap_or_default());
    SCENARIOS.iter().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

impl BenchCommand {
    /// Reads the scenario, overrides it with the flags, and validates the result.
    ///
    /// # Errors
    /// All problems at once.
    pub fn of(arguments: BenchArguments, command: Vec<String>) -> Result<Self, BenchPlanErrors> {
        let mut problems = Vec::new();
        let scenario = scenario(arguments.scenario.as_deref()).unwrap_or_else(|wrong| {
            problems.extend(wrong.0);
            BenchScenario::default()
        });
        let variants = scenario.plans(&arguments.load.keys()).unwrap_or_else(|wrong| {
            problems.extend(wrong.0);
            Vec::new()
        });
        let sides = sides(&arguments, &mut problems);
        for side in sides.iter().filter(|side| side.protocol.is_some()) {
            let checked = variants.iter().map(|variant| side.plan(&variant.plan).check());
            problems.extend(checked.filter_map(Result::err).flat_map(|wrong| wrong.0));
        }
        let credentials = TargetCredentials::from(arguments.credentials);
        let named = credentials.kubeconfig.as_ref().map(|_| credentials.server().map_err(|error| error.to_string()));
        let write = match (arguments.write, named) {
            (Some(url), _) | (None, Some(Ok(url))) => url,
            (None, Some(Err(why))) => {
                problems.push(why);
                String::new()
            }
            (None, None) => sides.first().map(|side| side.url.clone()).unwrap_or_default(),
        };
        if arguments.rounds == 0 {
            problems.push("rounds 0 is out of range: expected 1 or more".to_owned());
        }
        if !problems.is_empty() {
            return Err(BenchPlanErrors(problems));
        }
        let about = scenario.about().to_owned();
        let name = if scenario.name.is_empty() { "bench".to_owned() } else { scenario.name };
        let (rounds, keep) = (arguments.rounds, arguments.keep);
        let order = BenchOptions { scenario: name, about, variants, sides, write, credentials, rounds, keep, command };
        Ok(Self { order, json: arguments.json, report: arguments.report })
    }

    /// Measures until the plan is done or `shutdown` completes, and prints the results.
    ///
    /// # Errors
    /// See [`BenchFailure`].
    #[inline(never)]
    pub fn run(self, shutdown: BoxFuture<'static, ()>) -> LocalBoxFuture<'static, Result<(), BenchFailure>> {
        Box::pin(self.run_until(shutdown))
    }

    async fn run_until(self, shutdown: BoxFuture<'_, ()>) -> Result<(), BenchFailure> {
        raise_open_files();
        let (progress, stop) = (ProgressLine::open(), CancellationToken::new());
        let results = {
            let running = run(&self.order, &progress, &stop);
            tokio::select! {
                results = running => results?,
                () = interrupted_twice(shutdown, &stop) => return Err(BenchFailure::Interrupted),
            }
        };
        let mut out = io::stdout().lock();
        out.write_all(render(&results).as_bytes()).and_then(|()| out.flush()).map_err(BenchFailure::Output)?;
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&results).map_err(io::Error::other);
            write(path, text.map(|text| text + "\n"))?;
        }
        if let Some(path) = &self.report {
            write(path, Ok(html(&results)))?;
        }
        if results.is_complete() { Ok(()) } else { Err(BenchFailure::Incomplete) }
    }
}

fn write(path: &Path, text: io::Result<String>) -> Result<(), BenchFailure> {
    let written = text.and_then(|text| std::fs::write(path, text));
    written.map_err(|source| BenchFailure::Write { path: path.to_owned(), source })
}

fn scenario(named: Option<&str>) -> Result<BenchScenario, BenchPlanErrors> {
    let Some(named) = named else { return Ok(BenchScenario::default()) };
    if let Some(embedded) = BenchScenario::embedded(named) {
        return embedded;
    }
    let text = std::fs::read_to_string(named).map_err(|error| {
        BenchPlanErrors(vec![format!(
            "cannot read scenario {named:?}: no built-in scenario (see --list-scenarios), and no file: {error}"
        )])
    })?;
    let name =
        Path::new(named).file_stem().map_or_else(|| named.to_owned(), |stem| stem.to_string_lossy().into_owned());
    BenchScenario::parse(&name, &text)
}

fn sides(arguments: &BenchArguments, problems: &mut Vec<String>) -> Vec<MeasuredServer> {
    let urls: Vec<_> = arguments.compare.iter().chain(&arguments.target).cloned().collect();
    let pids: Vec<_> = arguments.pids.iter().chain(&arguments.pid).copied().collect();
    let names = match (arguments.names.len(), urls.len()) {
        (0, 1) => vec!["target".to_owned()],
        (0, count) => ('A'..).take(count).map(String::from).collect(),
        _ => arguments.names.clone(),
    };
    // The names are those of `--protocol`, which `clap` has already checked, so parsing them cannot fail.
    let protocol = |name: &String| serde_json::from_value(name.as_str().into()).ok();
    let protocols: Vec<Option<WatchProtocol>> = arguments.protocols.iter().map(protocol).collect();
    let counts = [
        ("names", names.len()),
        ("protocols", protocols.len()),
        ("pids", pids.len()),
        ("metrics", arguments.metrics.len()),
    ];
    for (what, count) in counts {
        if count != 0 && count != urls.len() {
            problems.push(format!("{what}: {count} given for {} servers", urls.len()));
        }
    }
    let side = |(n, url): (usize, String)| MeasuredServer {
        name: names.get(n).cloned().unwrap_or_default(),
        url,
        protocol: protocols.get(n).copied().flatten(),
        pid: pids.get(n).copied(),
        metrics: arguments.metrics.get(n).cloned(),
    };
    urls.into_iter().enumerate().map(side).collect()
}
