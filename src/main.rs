//! The `kube-fanout` command: arguments in, exit code out.

#![warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)]

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
#[cfg(any(feature = "bench", feature = "verify"))]
use futures_util::future::BoxFuture;
use kube_fanout::app::check::CheckVerdict;
use kube_fanout::app::{self, Bound, Inherited, LogLevel, Reloading};
#[cfg(feature = "bench")]
use kube_fanout::config::BenchArguments;
#[cfg(feature = "inspect")]
use kube_fanout::config::FanoutVerb;
#[cfg(feature = "trial")]
use kube_fanout::config::TryArguments;
#[cfg(feature = "verify")]
use kube_fanout::config::VerifyArguments;
use kube_fanout::config::{self, Arguments, CheckArguments, Command, ConfigCommand, HealthArguments};
use kube_fanout::config::{Log, Serve, ServeArguments};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// After a stall a thousand watches that catch up hold 150 MB for some seconds. This allocator returns the memory to
/// the system then; glibc's keeps it, between long-lived events.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `sysexits.h`: wrong usage, an error of our own, wrong configuration.
const EX_USAGE: u8 = 64;
const EX_SOFTWARE: u8 = 70;
const EX_CONFIG: u8 = 78;
/// As shells end where a command cannot be run, or there is none.
const EX_CANNOT_RUN: u8 = 126;
const EX_NOT_FOUND: u8 = 127;
/// The exit codes of a `health` that was told that something is wrong, and of a `health` or a `verify` that can say
/// nothing.
const ILL: u8 = 1;
const VOID: u8 = 2;

fn main() -> ExitCode {
    let command = match Command::of_process() {
        Ok(command) => command,
        Err(error) => {
            let code = if error.use_stderr() { EX_USAGE } else { 0 };
            // Nothing can be done about an output that is closed.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match command {
        Command::Serve(arguments) => serve(*arguments),
        #[cfg(feature = "demo")]
        Command::Demo { pods, rate, watches, seconds } => demo(app::demo::Options { pods, rate, watches, seconds }),
        #[cfg(feature = "trial")]
        Command::Try(arguments) => try_it(arguments),
        #[cfg(feature = "bench")]
        Command::Bench(arguments) => bench(*arguments),
        #[cfg(feature = "verify")]
        Command::Verify(arguments) => verify(*arguments),
        Command::Check(arguments) => check(*arguments),
        Command::Estimate(arguments) => match app::estimate::run(&arguments) {
            Ok(text) => say(&text),
            Err(why) => fail(VOID, &why),
        },
        Command::Health(arguments) => health(arguments),
        #[cfg(feature = "inspect")]
        Command::Fanout { verb } => fanout(verb),
        Command::Config { command } => config(command),
        Command::RunPlugin { open_files, command } => {
            let error = app::run_plugin(open_files, &command);
            fail(if error.kind() == ErrorKind::NotFound { EX_NOT_FOUND } else { EX_CANNOT_RUN }, &error)
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "kube-fanout", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Command::Man { dir } => man(dir.as_deref()),
    }
}

fn serve(arguments: ServeArguments) -> ExitCode {
    let config = match arguments.clone().resolve() {
        Ok(config) => config,
        Err(problems) => return fail(EX_CONFIG, &problems),
    };
    let log_level = start_log(&config.log);
    app::tell_panics();
    if !config.core_dumps {
        app::keep_memory_private();
    }
    // Before anything is bound: what a listener takes is told by it.
    app::raise_open_files();
    // There is one thread yet.
    match Inherited::from_environment() {
        Ok(inherited) => block_on(run(config, inherited, (arguments, log_level))),
        Err(error) => fail(EX_CONFIG, &format!("LISTEN_FDS: {error}")),
    }
}

/// Prints what was asked for.
fn say(text: &str) -> ExitCode {
    // Nothing can be done about an output that is closed.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn check(arguments: CheckArguments) -> ExitCode {
    start_command_log("error");
    block_on(async {
        match app::check::check(arguments).await {
            Ok(checked) => {
                // Nothing can be done about an output that is closed.
                let _ = std::io::stdout().write_all(checked.text.as_bytes());
                match checked.verdict {
                    CheckVerdict::Passes => ExitCode::SUCCESS,
                    CheckVerdict::Fails => ExitCode::from(ILL),
                    CheckVerdict::Inconclusive => ExitCode::from(VOID),
                }
            }
            Err(why) => fail(VOID, &why),
        }
    })
}

#[expect(clippy::print_stdout, reason = "the line is what was asked for")]
fn health(arguments: HealthArguments) -> ExitCode {
    let question = match arguments.resolve() {
        Ok(question) => question,
        Err(problems) => return fail(VOID, &problems.iter().collect::<Vec<_>>().join("; ")),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(VOID, &error),
    };
    match runtime.block_on(app::health::ask(question)) {
        Ok(answer) => {
            println!("{answer}");
            if answer.is_well() { ExitCode::SUCCESS } else { ExitCode::from(ILL) }
        }
        Err(error) => fail(VOID, &error),
    }
}

#[cfg(feature = "inspect")]
fn fanout(verb: FanoutVerb) -> ExitCode {
    block_on(async {
        match app::fanout::ask(verb).await {
            Ok(told) => {
                // Nothing can be done about an output that is closed.
                let _ = std::io::stdout().write_all(told.text.as_bytes());
                if told.is_well { ExitCode::SUCCESS } else { ExitCode::from(ILL) }
            }
            Err(why) => fail(VOID, &why),
        }
    })
}

fn man(dir: Option<&Path>) -> ExitCode {
    if let Some(dir) = dir {
        return match config::write_manual(dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(1, &format!("cannot write into {}: {error}", dir.display())),
        };
    }
    match config::manual_pages() {
        // That of the command itself is the first.
        Ok(pages) => pages.first().map_or(ExitCode::SUCCESS, |page| say(&String::from_utf8_lossy(&page.text))),
        Err(error) => fail(1, &error),
    }
}

fn config(command: ConfigCommand) -> ExitCode {
    let text = match command {
        ConfigCommand::Check(arguments) => match arguments.resolve() {
            Ok(_) => "the configuration is valid\n".to_owned(),
            Err(problems) => return fail(EX_CONFIG, &problems),
        },
        ConfigCommand::Default => config::defaults(),
        ConfigCommand::Schema => format!("{:#}\n", config::schema()),
    };
    say(&text)
}

async fn run(config: Serve, inherited: Inherited, (arguments, log_level): (ServeArguments, LogLevel)) -> ExitCode {
    let mut bound = match Bound::bind_with(config, inherited).await {
        Ok(bound) => bound,
        Err(error @ app::StartError::Bind { .. }) => return fail(1, &error),
        Err(error) => return fail(EX_CONFIG, &error),
    };
    let (first, second) = match (shutdown(), second_shutdown()) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(error), _) | (_, Err(error)) => return fail(1, &error),
    };
    let hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => return fail(1, &error),
    };
    if let Err(error) = bound.reload(Reloading { arguments, hangups, log_level }) {
        return fail(EX_CONFIG, &error);
    }
    say_addresses(&bound);
    match bound.run(first, second).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(lost) => fail(EX_SOFTWARE, &lost),
    }
}

#[cfg(feature = "demo")]
fn demo(options: app::demo::Options) -> ExitCode {
    if let Err(problems) = options.check() {
        return fail(EX_USAGE, &problems.join("\n"));
    }
    start_command_log("warn");
    block_on_until_shutdown(1, async |shutdown| match app::demo::run(options, shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &error),
    })
}

#[cfg(feature = "trial")]
fn try_it(arguments: TryArguments) -> ExitCode {
    let trial = match app::trial::Trial::of(arguments) {
        Ok(trial) => trial,
        Err(problem) => return fail(EX_USAGE, &problem),
    };
    start_command_log("warn");
    block_on_until_shutdown(VOID, async |shutdown| match trial.run(shutdown).await {
        Ok(verdict) if verdict.nothing_lost => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(ILL),
        Err(error) => fail(VOID, &error),
    })
}

#[cfg(feature = "bench")]
#[expect(clippy::print_stdout, reason = "the list is what was asked for")]
fn bench(arguments: BenchArguments) -> ExitCode {
    if arguments.list_scenarios {
        print!("{}", app::bench::scenarios());
        return ExitCode::SUCCESS;
    }
    #[allow(clippy::disallowed_methods, reason = "not read, but recorded with the results as it was typed")]
    let command = std::env::args().collect();
    let bench = match app::bench::Bench::of(arguments, command) {
        Ok(bench) => bench,
        Err(problems) => return fail(EX_USAGE, &problems),
    };
    start_command_log("warn");
    block_on_until_shutdown(1, async |shutdown| match bench.run(shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, &error),
    })
}

#[cfg(feature = "verify")]
fn verify(arguments: VerifyArguments) -> ExitCode {
    #[allow(clippy::disallowed_methods, reason = "not read, but recorded with the results as it was typed")]
    let command = std::env::args().collect();
    let verification = match app::verify::Verification::of(arguments, command) {
        Ok(verification) => verification,
        Err(problems) => return fail(EX_USAGE, &problems.join("\n")),
    };
    start_command_log("warn");
    block_on_until_shutdown(VOID, async |shutdown| match verification.run(shutdown).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(VOID, &error),
    })
}

fn block_on(future: impl Future<Output = ExitCode>) -> ExitCode {
    match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => {
            let code = runtime.block_on(future);
            // Whatever blocks by now is not worth waiting for.
            runtime.shutdown_background();
            code
        }
        Err(error) => fail(1, &error),
    }
}

/// Runs a command that ends by itself, or when it is told to: by the first SIGTERM or SIGINT. `cannot` is the exit code
/// where these cannot be heard.
#[cfg(any(feature = "bench", feature = "verify"))]
fn block_on_until_shutdown(cannot: u8, command: impl AsyncFnOnce(BoxFuture<'static, ()>) -> ExitCode) -> ExitCode {
    block_on(async {
        match shutdown() {
            Ok(shutdown) => command(Box::pin(shutdown)).await,
            Err(error) => fail(cannot, &error),
        }
    })
}

/// One line per address, on standard output, for scripts that wait for it.
#[expect(clippy::print_stdout, reason = "scripts wait for these lines")]
fn say_addresses(bound: &Bound) {
    for address in bound.addresses() {
        println!("serving on {address}");
    }
    if let Some(address) = bound.admin_address() {
        println!("metrics and health on {address}");
    }
    if let Some(address) = bound.healthz_address() {
        println!("health on {address}");
    }
    if let Some(address) = bound.metrics_address() {
        println!("metrics on {address}");
    }
}

/// Completes at the first SIGTERM or SIGINT.
fn shutdown() -> std::io::Result<impl Future<Output = ()>> {
    after_signals(1)
}

/// Completes at the next one: whoever says so twice does not want to wait.
fn second_shutdown() -> std::io::Result<impl Future<Output = ()>> {
    after_signals(2)
}

fn after_signals(count: usize) -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        for _ in 0..count {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
    })
}

/// Starts the log of a command that has no configuration.
fn start_command_log(level: &str) {
    match Log::of_command(level) {
        Ok(log) => drop(start_log(&log)),
        Err(why) => {
            fail(EX_CONFIG, &why);
            drop(start_log(&Log { level: level.to_owned(), ..Log::default() }));
        }
    }
}

/// Starts the log. Returns how to let another level hold; that of the environment holds for good.
fn start_log(log: &Log) -> LogLevel {
    let is_for_good = log.is_of_environment;
    let (filter, handle) = reload::Layer::new(EnvFilter::new(&log.level));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let log_of = tracing_subscriber::registry().with(filter).with(filter_fn(shows_no_wire));
    let started = if log.json { log_of.with(lines.json()).try_init() } else { log_of.with(lines).try_init() };
    if let Err(error) = started {
        fail(1, &error);
    }
    Box::new(move |level| {
        if is_for_good {
            return Ok(());
        }
        let filter = EnvFilter::try_new(level).map_err(|error| error.to_string())?;
        handle.reload(filter).map_err(|error| error.to_string())
    })
}

/// Below INFO, HTTP and TLS libraries print what is on the wire: headers with tokens, frames with Secrets. Only our own
/// lines are shown then, whatever `RUST_LOG` says (R-SECRET-1, R-THREAT-15).
fn shows_no_wire(line: &Metadata<'_>) -> bool {
    let is_ours = ["kube_fanout", "access"].contains(&line.target().split("::").next().unwrap_or_default());
    is_ours || *line.level() <= Level::INFO
}

#[expect(clippy::print_stderr, reason = "the last words of a process that may have no log")]
fn fail(code: u8, error: &(impl std::fmt::Display + ?Sized)) -> ExitCode {
    eprintln!("kube-fanout: {error}");
    ExitCode::from(code)
}
