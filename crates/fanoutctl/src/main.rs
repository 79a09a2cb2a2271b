//! `fanoutctl`: the tools with which operators evaluate, test and inspect the proxy.

#![cfg_attr(not(test), warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types))]
#![allow(unnameable_types, reason = "a binary exports nothing")]

mod arguments;
mod commands;
mod estimate;
mod inspect;
mod size;
mod trial;

use std::io::Write as _;
use std::process::ExitCode;

use clap::CommandFactory as _;
use kube_fanout::cli::{EX_USAGE, FAILED, INCONCLUSIVE, ProgramName};

use arguments::{BenchArguments, FanoutSubcommand, ToolArguments, ToolCommand, TryArguments, VerifyArguments};

/// The same allocator as in the proxy, because `demo` and `try` run the proxy in this process.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PROGRAM: ProgramName = ProgramName("fanoutctl");

fn main() -> ExitCode {
    let command = match ToolCommand::of_process() {
        Ok(command) => command,
        Err(error) => return PROGRAM.reject(&error),
    };
    match command {
        ToolCommand::Demo { pods, rate, watches, seconds } => demo(demo::DemoOptions { pods, rate, watches, seconds }),
        ToolCommand::Try(arguments) => try_it(arguments),
        ToolCommand::Bench(arguments) => bench(*arguments),
        ToolCommand::Verify(arguments) => verify(*arguments),
        ToolCommand::Estimate(arguments) => match commands::estimate::run(&arguments) {
            Ok(text) => print(&text),
            Err(why) => PROGRAM.fail(INCONCLUSIVE, &why),
        },
        ToolCommand::Size(arguments) => print(&commands::size::run(&arguments)),
        ToolCommand::Fanout { verb } => fanout(verb),
        ToolCommand::RunProxy(arguments) => PROGRAM.serve(*arguments),
        ToolCommand::Completions { shell } => PROGRAM.complete(ToolArguments::command(), shell),
        ToolCommand::Man { dir } => PROGRAM.manual(ToolArguments::command(), dir.as_deref()),
    }
}

fn demo(options: demo::DemoOptions) -> ExitCode {
    if let Err(problems) = options.check() {
        return PROGRAM.fail(EX_USAGE, &problems.join("\n"));
    }
    PROGRAM.start_command_log("warn");
    PROGRAM.block_on_until_shutdown(1, async |shutdown| match commands::demo::run(options, shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => PROGRAM.fail(1, &error),
    })
}

fn try_it(arguments: TryArguments) -> ExitCode {
    let trial = match commands::try_command::TryCommand::of(arguments) {
        Ok(trial) => trial,
        Err(problem) => return PROGRAM.fail(EX_USAGE, &problem),
    };
    PROGRAM.start_command_log("warn");
    PROGRAM.block_on_until_shutdown(INCONCLUSIVE, async |shutdown| match trial.run(shutdown).await {
        Ok(verdict) if verdict.nothing_lost => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FAILED),
        Err(error) => PROGRAM.fail(INCONCLUSIVE, &error),
    })
}

fn bench(arguments: BenchArguments) -> ExitCode {
    if arguments.list_scenarios {
        return PROGRAM.print(&commands::bench::scenarios());
    }
    let bench = match commands::bench::BenchCommand::of(arguments, command_line()) {
        Ok(bench) => bench,
        Err(problems) => return PROGRAM.fail(EX_USAGE, &problems),
    };
    PROGRAM.start_command_log("warn");
    PROGRAM.block_on_until_shutdown(1, async |shutdown| match bench.run(shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => PROGRAM.fail(1, &error),
    })
}

fn verify(arguments: VerifyArguments) -> ExitCode {
    let verification = match commands::verify::VerifyCommand::of(arguments, command_line()) {
        Ok(verification) => verification,
        Err(problems) => return PROGRAM.fail(EX_USAGE, &problems.join("\n")),
    };
    PROGRAM.start_command_log("warn");
    PROGRAM.block_on_until_shutdown(INCONCLUSIVE, async |shutdown| match verification.run(shutdown).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => PROGRAM.fail(INCONCLUSIVE, &error),
    })
}

fn fanout(verb: FanoutSubcommand) -> ExitCode {
    PROGRAM.block_on(async {
        match commands::fanout::run(verb).await {
            Ok(printed) => {
                let shown = print(&printed.text);
                let verdict = if printed.is_well { shown } else { ExitCode::from(FAILED) };
                printed.failures.iter().fold(verdict, |_, why| PROGRAM.fail(INCONCLUSIVE, why))
            }
            Err(why) => PROGRAM.fail(INCONCLUSIVE, &why),
        }
    })
}

/// Prints a result. A reader that closes the pipe is no error, but a full disk is: the result is incomplete.
fn print(text: &str) -> ExitCode {
    let mut out = std::io::stdout().lock();
    match inspect::is_read(out.write_all(text.as_bytes()).and_then(|()| out.flush())) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => PROGRAM.fail(INCONCLUSIVE, &error),
    }
}

/// Returns the command line as typed, to record it with the results.
#[allow(clippy::disallowed_methods, reason = "recorded, not interpreted")]
fn command_line() -> Vec<String> {
    std::env::args().collect()
}
