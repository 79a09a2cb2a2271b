//! What the binaries share: exit codes, the log, the runtime, shutdown signals, and `serve` as a command.

use std::fmt::Display;
use std::future::poll_fn;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::task::Poll;

use clap_mangen::{Man, generate_to};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{Level, Metadata};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::admin::show_dropped_log_lines;
use crate::app::{self, BoundApp, ConfigReloadSources, InheritedSockets, SetLogLevelFn, StartError};
use crate::config::{LogSettings, ServeArguments, ServeSettings};

/// `sysexits.h`: wrong usage, an internal error, wrong configuration.
pub const EX_USAGE: u8 = 64;
const EX_SOFTWARE: u8 = 70;
pub const EX_CONFIG: u8 = 78;
/// The exit codes of shells for a command that cannot be run, and for one that does not exist.
pub const EX_CANNOT_RUN: u8 = 126;
pub const EX_NOT_FOUND: u8 = 127;
/// The maximum number of log lines that wait for a slow reader of the log. Later lines are dropped.
const LOG_LINES_MAX: usize = 4096;
/// Exit codes of commands that check something: a check failed, or the result is inconclusive.
pub const FAILED: u8 = 1;
pub const INCONCLUSIVE: u8 = 2;

/// Crates whose log lines are shown below INFO. `access` is the target of request and watch lines.
const OWN_TARGETS: [&str; 9] =
    ["kube_fanout", "access", "base", "kubeapi", "probe", "demo", "bench", "verify", "fanoutctl"];

/// A binary, by its name, which begins every error message.
#[derive(Debug, Clone, Copy)]
pub struct ProgramName(pub &'static str);

impl ProgramName {
    /// Prints an error and returns the exit code.
    pub fn fail(self, code: u8, error: &(impl Display + ?Sized)) -> ExitCode {
        // The output may be closed.
        let _ = writeln!(std::io::stderr(), "{}: {error}", self.0);
        ExitCode::from(code)
    }

    /// Prints why the arguments were rejected, or the help or version that they ask for.
    pub fn reject(self, error: &clap::Error) -> ExitCode {
        // The output may be closed.
        let _ = error.print();
        ExitCode::from(if error.use_stderr() { EX_USAGE } else { 0 })
    }

    /// Prints the result of a command.
    pub fn print(self, text: &str) -> ExitCode {
        // The output may be closed.
        let _ = std::io::stdout().write_all(text.as_bytes());
        ExitCode::SUCCESS
    }

    /// Prints the completion script of a program for a shell.
    pub fn complete(self, mut command: clap::Command, shell: clap_complete::Shell) -> ExitCode {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, self.0, &mut script);
        self.print(&String::from_utf8_lossy(&script))
    }

    /// Prints the manual page of a program, or writes the pages of all its commands into a directory.
    pub fn manual(self, command: clap::Command, dir: Option<&Path>) -> ExitCode {
        let Some(dir) = dir else {
            let mut page = Vec::new();
            return match Man::new(command.disable_help_subcommand(true)).render(&mut page) {
                Ok(()) => self.print(&String::from_utf8_lossy(&page)),
                Err(error) => self.fail(1, &error),
            };
        };
        match std::fs::create_dir_all(dir).and_then(|()| generate_to(command, dir)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => self.fail(1, &format!("cannot write into {}: {error}", dir.display())),
        }
    }

    /// Runs a command to its end on a new runtime.
    pub fn block_on(self, future: impl Future<Output = ExitCode>) -> ExitCode {
        match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => {
                let code = runtime.block_on(future);
                // A task that still blocks is not waited for.
                runtime.shutdown_background();
                code
            }
            Err(error) => self.fail(1, &error),
        }
    }

    /// Runs a command that ends at the first SIGTERM or SIGINT at the latest. If signal handlers cannot be installed,
    /// returns `cannot`.
    pub fn block_on_until_shutdown(
        self,
        cannot: u8,
        command: impl AsyncFnOnce(BoxFuture<'static, ()>) -> ExitCode,
    ) -> ExitCode {
        self.block_on(async {
            match ShutdownSignals::listen() {
                Ok(signals) => command(Box::pin(async move { signals.next().await })).await,
                Err(error) => self.fail(cannot, &error),
            }
        })
    }

    /// Starts the log of a command that has no configuration, at `level` unless `RUST_LOG` says otherwise.
    pub fn start_command_log(self, level: &str) {
        let log = LogSettings::of_command(level).unwrap_or_else(|why| {
            self.fail(EX_CONFIG, &why);
            LogSettings { level: level.to_owned(), ..LogSettings::default() }
        });
        drop(self.start_log(&log, BoxMakeWriter::new(std::io::stderr)));
    }

    /// Starts the log of the proxy. A thread writes it, so that a log that is not read blocks nothing else. When the guard
    /// is dropped, it waits up to a second for the thread.
    fn start_proxy_log(self, log: &LogSettings) -> (SetLogLevelFn, WorkerGuard) {
        let (lines, guard) = NonBlockingBuilder::default()
            .thread_name("log")
            .buffered_lines_limit(LOG_LINES_MAX)
            .lossy(true)
            .finish(std::io::stderr());
        show_dropped_log_lines(lines.error_counter());
        (self.start_log(log, BoxMakeWriter::new(lines)), guard)
    }

    /// Starts the log. Returns a function that changes its level, unless the level comes from the environment.
    fn start_log(self, log: &LogSettings, writer: BoxMakeWriter) -> SetLogLevelFn {
        let is_for_good = log.is_from_env;
        let (filter, handle) = reload::Layer::new(EnvFilter::new(&log.level));
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(writer)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false);
        let log_of = tracing_subscriber::registry().with(filter).with(filter_fn(shows_no_wire));
        let started = if log.json { log_of.with(lines.json()).try_init() } else { log_of.with(lines).try_init() };
        if let Err(error) = started {
            self.fail(1, &error);
        }
        Box::new(move |level| {
            if is_for_good {
                return Ok(());
            }
            let filter = EnvFilter::try_new(level).map_err(|error| error.to_string())?;
            handle.reload(filter).map_err(|error| error.to_string())
        })
    }

    /// Runs the proxy until SIGTERM or SIGINT; a second signal ends the drain.
    pub fn serve(self, arguments: ServeArguments) -> ExitCode {
        let config = match arguments.clone().resolve() {
            Ok(config) => config,
            Err(problems) => return self.fail(EX_CONFIG, &problems),
        };
        // There is one thread yet.
        let inherited = InheritedSockets::from_environment();
        let (log_level, _written_at_exit) = self.start_proxy_log(&config.log);
        app::log_panics();
        if !config.core_dumps {
            app::disable_core_dumps();
        }
        // Before anything is bound, because the limit bounds the connections that a listener accepts.
        app::raise_open_files();
        match inherited {
            Ok(inherited) => self.block_on(async {
                let ended = self.run(config, inherited, (arguments, log_level)).await;
                ended.map_or_else(|code| code, |()| ExitCode::SUCCESS)
            }),
            Err(error) => self.fail(EX_CONFIG, &format!("LISTEN_FDS: {error}")),
        }
    }

    async fn run(
        self,
        config: ServeSettings,
        inherited: InheritedSockets,
        (arguments, log_level): (ServeArguments, SetLogLevelFn),
    ) -> Result<(), ExitCode> {
        let mut bound = BoundApp::bind_with(config, inherited).await.map_err(|error| {
            let is_address = matches!(error, StartError::Bind { .. });
            self.fail(if is_address { 1 } else { EX_CONFIG }, &error)
        })?;
        let signals = ShutdownSignals::listen().map_err(|error| self.fail(1, &error))?;
        let sighup = signal(SignalKind::hangup()).map_err(|error| self.fail(1, &error))?;
        let sources = ConfigReloadSources { arguments, sighup, log_level };
        bound.reload(sources).map_err(|error| self.fail(EX_CONFIG, &error))?;
        self.print(&address_lines(&bound));
        bound.run(signals.next(), signals.next()).await.map_err(|lost| {
            // Written by the log thread: a write to an unread stderr would block, and the process must end.
            tracing::error!(error = %lost, "proxy exited after a panic (a bug: please report it)");
            ExitCode::from(EX_SOFTWARE)
        })
    }
}

/// Returns one line per address, for scripts that wait for it.
fn address_lines(bound: &BoundApp) -> String {
    let ops = [
        ("metrics and health", bound.admin_address()),
        ("health", bound.healthz_address()),
        ("metrics", bound.metrics_address()),
    ];
    let clients = bound.addresses().into_iter().map(|address| format!("serving on {address}\n"));
    let ops = ops.into_iter().filter_map(|(what, address)| Some(format!("{what} on {}\n", address?)));
    clients.chain(ops).collect()
}

/// SIGTERM and SIGINT. All waits share one receiver of each, so that every signal is counted once.
struct ShutdownSignals(Mutex<[Signal; 2]>);

impl ShutdownSignals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self(Mutex::new([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?])))
    }

    /// Completes at the next signal.
    async fn next(&self) {
        poll_fn(|cx| {
            let is_received = self.0.lock().iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
            if is_received { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Hides lines of libraries below INFO, whatever `RUST_LOG` says, because HTTP and TLS libraries print headers with
/// tokens and frames with Secrets there (R-THREAT-15).
fn shows_no_wire(line: &Metadata<'_>) -> bool {
    let is_own = OWN_TARGETS.contains(&line.target().split("::").next().unwrap_or_default());
    is_own || *line.level() <= Level::INFO
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpid, kill_process};

    use super::*;

    /// As a drain, which waits for the second signal only after the first one has ended the service.
    #[tokio::test]
    async fn second_signal_counts_before_anything_waits_for_it() {
        let signals = ShutdownSignals::listen().expect("handlers can be installed");
        let (first, second) = (signals.next(), signals.next());
        let mut terminate = signal(SignalKind::terminate()).expect("handlers can be installed");
        let mut send = async || {
            kill_process(getpid(), rustix::process::Signal::TERM).expect("this process");
            terminate.recv().await;
        };
        send().await;
        first.await;
        send().await;
        second.await;
    }
}
