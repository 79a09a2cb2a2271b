//! The `verify` command: converts its arguments into a run, checks the record of the run, and writes the report.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::path::PathBuf;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use tokio_util::sync::CancellationToken;

use super::interrupted_twice;
use crate::arguments::{JudgeCommand, VerifyArguments};
use kube_fanout::app::raise_open_files;
use probe::{ProgressLine, TargetCredentials};
use verify::{
    AdditionalServer, ApiserverGuarantee, ClientTransport, EtcdOptions, HistoryReadError, RecordedEncoding, RunCounts,
    RunHistory, RunVerdict, VerdictRequirements, VerifyError, VerifyOptions, VerifyOutcome, excerpt, page, run,
};

/// A validated `verify` command: a new run to check, or the record of an earlier run.
#[derive(Debug)]
pub struct VerifyCommand {
    work: VerifyMode,
}

#[derive(Debug)]
enum VerifyMode {
    Run(Box<VerifyOptions>),
    Judge(JudgeOptions),
}

/// The reason that there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum VerificationFailure {
    #[error(transparent)]
    Run(#[from] VerifyError),
    #[error("cannot read or write {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("cannot parse the record {path}: {source}")]
    Record { path: PathBuf, source: HistoryReadError },
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    #[error("interrupted twice; created objects may remain in namespaces with the label kube-fanout.io/verify")]
    Interrupted,
    #[error("the check of the record failed: {0}")]
    Judging(#[from] tokio::task::JoinError),
}

/// The file name of the HTML report in the directory of a run.
const PAGE: &str = "report.html";

impl VerifyCommand {
    /// Validates the arguments.
    ///
    /// # Errors
    /// All problems of the arguments at once.
    pub fn of(arguments: VerifyArguments, command: Vec<String>) -> Result<Self, Vec<String>> {
        let work = match arguments.judge {
            Some(JudgeCommand::Judge { file, min_events, page }) => {
                let (requirements, notes) = (requirements(min_events, false), Vec::new());
                VerifyMode::Judge(JudgeOptions { record: file, requirements, page, notes })
            }
            None => VerifyMode::Run(Box::new(order(arguments, command)?)),
        };
        Ok(Self { work })
    }

    /// Runs until the duration is over or `shutdown` completes, checks the record, and prints the findings. Returns the
    /// exit code.
    ///
    /// # Errors
    /// See [`VerificationFailure`].
    #[inline(never)]
    pub fn run(self, shutdown: BoxFuture<'static, ()>) -> LocalBoxFuture<'static, Result<u8, VerificationFailure>> {
        Box::pin(self.run_until(shutdown))
    }

    async fn run_until(self, shutdown: BoxFuture<'static, ()>) -> Result<u8, VerificationFailure> {
        let judging = match self.work {
            VerifyMode::Judge(judging) => judging,
            VerifyMode::Run(order) => {
                raise_open_files();
                let (progress, stop) = (ProgressLine::open(), CancellationToken::new());
                let running = run(&order, &progress, &stop);
                let recorded = tokio::select! {
                    recorded = running => recorded?,
                    () = interrupted_twice(shutdown, &stop) => return Err(VerificationFailure::Interrupted),
                };
                let requirements = requirements(order.events_min, !order.faults.is_empty());
                let page = Some(order.out.join(PAGE));
                JudgeOptions { record: recorded.record, requirements, page, notes: recorded.notes }
            }
        };
        let (outcome, text) = tokio::task::spawn_blocking(move || judging.judge()).await??;
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(VerificationFailure::Output)?;
        Ok(outcome.code())
    }
}

/// The record to check with `verify judge`, and what a conclusive run requires.
#[derive(Debug)]
struct JudgeOptions {
    record: PathBuf,
    requirements: VerdictRequirements,
    /// The file for the HTML report; `None` writes none.
    page: Option<PathBuf>,
    notes: Vec<String>,
}

impl JudgeOptions {
    fn judge(self) -> Result<(VerifyOutcome, String), VerificationFailure> {
        let Self { record, requirements, page: page_at, notes } = self;
        let file = |source| VerificationFailure::File { path: record.clone(), source };
        let open = || File::open(&record).map(BufReader::new).map_err(file);
        let history =
            RunHistory::read(open()?).map_err(|source| VerificationFailure::Record { path: record.clone(), source })?;
        let verdict = RunVerdict::of(&history, &requirements);
        drop(history);
        let lines = verdict.first().map(|first| first.lines.clone()).unwrap_or_default();
        let mut text = verdict.text(&excerpt(open()?, &lines).map_err(file)?);
        // Writing to a String does not fail.
        let mut put = |line: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "{line}");
        };
        notes.iter().for_each(|note| put(format_args!("\nnote: {note}")));
        if let Some(path) = page_at {
            let written = page(&verdict, &record, &notes).and_then(|page| std::fs::write(&path, page));
            written.map_err(|source| VerificationFailure::File { path: path.clone(), source })?;
            put(format_args!("\nreport: {}", path.display()));
        }
        put(format_args!("record: {}", record.display()));
        if verdict.outcome() != VerifyOutcome::Violated && !verdict.run.command.is_empty() {
            put(format_args!("repeat with: {}", verdict.run.command));
        }
        Ok((verdict.outcome(), text))
    }
}

/// Returns the minimum counts for a verdict; below them the run is inconclusive.
fn requirements(events_min: u64, faults: bool) -> VerdictRequirements {
    let least = RunCounts { events: events_min, writes: 1, faults: u64::from(faults), ..RunCounts::default() };
    VerdictRequirements { least, judged: [ApiserverGuarantee::Ordered, ApiserverGuarantee::Reliable].into() }
}

/// The sources of the true history: an etcd, an apiserver, or both.
#[derive(Default)]
struct GroundTruthSources {
    etcd: Option<EtcdOptions>,
    direct: Option<String>,
}

impl GroundTruthSources {
    fn of(texts: &[String], problems: &mut Vec<String>) -> Self {
        let mut truths = Self::default();
        for text in texts {
            let is_twice = match text.strip_prefix("etcd=").map(EtcdOptions::parse) {
                Some(Ok(etcd)) => truths.etcd.replace(etcd).is_some(),
                Some(Err(why)) => {
                    problems.push(format!("truth: {why}"));
                    false
                }
                None => truths.direct.replace(text.clone()).is_some(),
            };
            if is_twice {
                problems.push(format!("truth: {text}: at most one etcd and one apiserver are allowed"));
            }
        }
        truths
    }
}

/// The minimum events per second and client for a verdict; below it the run is inconclusive.
const EVENTS_PER_CLIENT_AND_SECOND: f64 = 3.0;

fn order(arguments: VerifyArguments, command: Vec<String>) -> Result<VerifyOptions, Vec<String>> {
    let mut problems = Vec::new();
    let credentials = TargetCredentials::from(arguments.credentials);
    let GroundTruthSources { mut etcd, direct } = GroundTruthSources::of(&arguments.truth, &mut problems);
    match (&mut etcd, arguments.etcd_prefix) {
        (Some(etcd), prefix) => etcd.prefix = prefix,
        (None, Some(_)) => problems.push("etcd-prefix requires --truth etcd=URL".to_owned()),
        (None, None) => {}
    }
    let direct = match direct {
        Some(url) => Some(url),
        None if credentials.kubeconfig.is_some() => match credentials.server() {
            Ok(url) => Some(url),
            Err(error) => {
                problems.push(error.to_string());
                None
            }
        },
        None => None,
    };
    let mut also = Vec::new();
    for text in &arguments.also {
        match AdditionalServer::parse(text) {
            Ok(server) => also.push(server),
            Err(why) => problems.push(format!("also: {why}")),
        }
    }
    let (seed, command) = repeatable(arguments.seed, command);
    let load = arguments.load;
    let floor = EVENTS_PER_CLIENT_AND_SECOND * f64::from(arguments.clients) * arguments.duration.as_secs_f64();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clients and seconds are few")]
    let floor = floor as u64;
    let order = VerifyOptions {
        url: arguments.url.unwrap_or_default(),
        also,
        informers: arguments.informers,
        share: load.share,
        credentials,
        etcd,
        direct,
        resource: arguments.resource,
        clients: arguments.clients,
        writers: load.writers,
        rate: load.rate,
        objects: load.objects,
        namespaces: load.namespaces,
        duration: arguments.duration,
        seed,
        faults: arguments.fault,
        fault_every: (
            arguments.fault_every.first().copied().unwrap_or_default(),
            arguments.fault_every.last().copied().unwrap_or_default(),
        ),
        window: arguments.window,
        patience: arguments.patience,
        events_min: arguments.min_events.unwrap_or(floor),
        transports: load.transports.iter().map(|name| transport(name)).collect(),
        encodings: load.encodings.iter().map(|name| encoding(name)).collect(),
        record_bytes_max: load.record_mebibytes << 20,
        out: arguments.out,
        keep: load.keep,
        command,
    };
    problems.extend(order.check().err().unwrap_or_default());
    if problems.is_empty() { Ok(order) } else { Err(problems) }
}

fn transport(name: &str) -> ClientTransport {
    match name {
        "h1" => ClientTransport::H1,
        "ws" => ClientTransport::Ws,
        _ => ClientTransport::H2,
    }
}

fn encoding(name: &str) -> RecordedEncoding {
    match name {
        "metadata" => RecordedEncoding::Metadata,
        "protobuf" => RecordedEncoding::Protobuf,
        "metadata-protobuf" => RecordedEncoding::MetadataProtobuf,
        _ => RecordedEncoding::Json,
    }
}

/// Returns the seed, and the command line that repeats the run with it.
fn repeatable(seed_given: Option<u64>, mut command: Vec<String>) -> (u64, String) {
    // 32 bits keep the seed short enough to copy by hand.
    let seed = seed_given.unwrap_or_else(|| u64::from(fastrand::u32(..)));
    if seed_given.is_none() {
        command.extend(["--seed".to_owned(), seed.to_string()]);
    }
    let quoted = |word: &String| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    (seed, command.iter().map(quoted).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeat_command_includes_the_seed_and_quotes_arguments() {
        let strings = |strings: &[&str]| strings.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let (seed, command) = repeatable(None, strings(&["fanoutctl", "verify", "--fault", "kill $(cat it's.pid)"]));
        assert_eq!(command, format!(r"fanoutctl verify --fault 'kill $(cat it'\''s.pid)' --seed {seed}"));
        assert_eq!(repeatable(Some(7), strings(&["verify", "--seed", "7"])), (7, "verify --seed 7".to_owned()));
    }

    #[test]
    fn truth_accepts_at_most_one_etcd_and_one_apiserver() {
        let parsed = |texts: &[&str]| {
            let (mut problems, texts) = (Vec::new(), texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
            let truths = GroundTruthSources::of(&texts, &mut problems);
            (truths.etcd.is_some(), truths.direct.is_some(), problems.len())
        };
        assert_eq!(parsed(&["etcd=http://e:2379", "https://a:6443"]), (true, true, 0));
        assert_eq!(parsed(&["https://a", "https://b"]).2, 1);
        assert_eq!(parsed(&["etcd="]).2, 1);
    }
}
