//! The `kube-fanout` command: arguments in, exit code out.

#![warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)]

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use clap::CommandFactory as _;
use kube_fanout::app;
use kube_fanout::app::check::PreflightVerdict;
use kube_fanout::cli::{EX_CANNOT_RUN, EX_CONFIG, EX_NOT_FOUND, FAILED, INCONCLUSIVE, ProgramName};
use kube_fanout::config::{self, CheckArguments, CliArguments, CliCommand, ConfigCommand, HealthArguments};

/// After a stall a thousand watches that catch up hold 150 MB for some seconds. This allocator returns the memory to
/// the system then; glibc's keeps it, between long-lived events. MB at the peak of a stall of 8 s, and afterwards:
/// glibc 201 and 167, jemalloc 308 and 46, mimalloc 205 and 52.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PROGRAM: ProgramName = ProgramName("kube-fanout");
/// The name of the binary with the commands of evaluators and operators.
const TOOLS: &str = "fanoutctl";

fn main() -> ExitCode {
    let command = match CliCommand::of_process() {
        Ok(command) => command,
        Err(error) => return PROGRAM.reject(&error),
    };
    match command {
        CliCommand::Serve(arguments) => PROGRAM.serve(*arguments),
        CliCommand::Check(arguments) => check(*arguments),
        CliCommand::Health(arguments) => health(arguments),
        CliCommand::Config { command } => config(command),
        CliCommand::RunPlugin { open_files, seconds, command } => {
            match app::run_plugin(open_files, seconds, &command) {
                Ok(status) => ExitCode::from(status.code().and_then(|code| code.try_into().ok()).unwrap_or(FAILED)),
                Err(error) if error.kind() == ErrorKind::NotFound => PROGRAM.fail(EX_NOT_FOUND, &error),
                Err(error) => PROGRAM.fail(EX_CANNOT_RUN, &error),
            }
        }
        CliCommand::Completions { shell } => PROGRAM.complete(CliArguments::command(), shell),
        CliCommand::Man { dir } => PROGRAM.manual(CliArguments::command(), dir.as_deref()),
        CliCommand::Tool(arguments) => run_tool(&arguments),
    }
}

/// Replaces this process with `fanoutctl`, if that program is in the directory of this binary.
fn run_tool(arguments: &[OsString]) -> ExitCode {
    let name = arguments.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    let tools = std::env::current_exe().map(|program| program.with_file_name(TOOLS));
    let error = match &tools {
        Ok(path) => std::process::Command::new(path).args(arguments).exec(),
        Err(_) => ErrorKind::NotFound.into(),
    };
    let path = tools.map_or_else(|_| "not found next to this binary".to_owned(), |path| path.display().to_string());
    let why = format!("{name} is a command of {TOOLS}, which cannot be run: {path}: {error}");
    PROGRAM.fail(if error.kind() == ErrorKind::NotFound { EX_NOT_FOUND } else { EX_CANNOT_RUN }, &why)
}

fn check(arguments: CheckArguments) -> ExitCode {
    PROGRAM.start_command_log("error");
    PROGRAM.block_on(async {
        match app::check::check(arguments).await {
            Ok(checked) => {
                PROGRAM.print(&checked.text);
                match checked.verdict {
                    PreflightVerdict::Passes => ExitCode::SUCCESS,
                    PreflightVerdict::Fails => ExitCode::from(FAILED),
                    PreflightVerdict::Inconclusive => ExitCode::from(INCONCLUSIVE),
                }
            }
            Err(why) => PROGRAM.fail(INCONCLUSIVE, &why),
        }
    })
}

fn health(arguments: HealthArguments) -> ExitCode {
    let probe = arguments.resolve().map_err(|problems| problems.iter().collect::<Vec<_>>().join("; "));
    let answer = probe.and_then(|probe| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(app::health::send(probe))
    });
    match answer {
        Ok((line, is_healthy)) => {
            PROGRAM.print(&format!("{line}\n"));
            if is_healthy { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
        }
        Err(error) => PROGRAM.fail(INCONCLUSIVE, &error),
    }
}

fn config(command: ConfigCommand) -> ExitCode {
    let text = match command {
        ConfigCommand::Check(arguments) => match arguments.resolve() {
            Ok(_) => "the configuration is valid\n".to_owned(),
            Err(problems) => return PROGRAM.fail(EX_CONFIG, &problems),
        },
        ConfigCommand::Default => config::defaults().to_owned(),
        ConfigCommand::Schema => format!("{:#}\n", config::schema()),
    };
    PROGRAM.print(&text)
}
