use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::iter;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit};

use crate::upstream::{CredentialPluginRunner, run_plugins_by};

/// The longest run of an exec plugin. One that hangs would keep the credentials, and the files of the kubeconfig, from
/// being loaded again.
const PLUGIN_SECONDS_MAX: u64 = 60;

/// Raises the soft limit of open files to the hard limit, as Go's servers do, because each connection is an open file.
///
/// The soft limit is low for programs that cannot handle more, and exec plugins may be such programs. So plugins are
/// started through this program, which lowers the limit again and ends a plugin that hangs ([`run_plugin`]). Lowering
/// it between fork and exec would need unsafe code, and after the exec it would be too late.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match own_executable() {
        Some(program) => {
            let arguments = [current.unwrap_or(u64::MAX), PLUGIN_SECONDS_MAX].map(|limit| limit.to_string());
            let arguments = iter::once("run-plugin".to_owned()).chain(arguments).chain(iter::once("--".to_owned()));
            run_plugins_by(CredentialPluginRunner { program, arguments: arguments.collect() });
        }
        None => tracing::warn!("cannot find the proxy's own executable; exec plugins have its limits, and may hang"),
    }
    if current == maximum {
        return;
    }
    let text = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let (from, to) = (text(current), text(maximum));
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::info!(from, to, "raised the file descriptor limit to the hard limit"),
        Err(error) => {
            tracing::warn!(from, to, %error, "cannot raise the file descriptor limit; keeping the soft limit");
        }
    }
}

/// Runs an exec plugin with the given limit of open files, and returns its exit status. After `seconds`, the plugin is
/// killed with all processes that it has started, unless a person may have to answer it.
pub fn run_plugin(open_files: u64, seconds: u64, command: &[OsString]) -> io::Result<ExitStatus> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    setrlimit(Resource::Nofile, Rlimit { current: Some(open_files), ..getrlimit(Resource::Nofile) })?;
    let mut plugin = Command::new(program);
    plugin.args(arguments);
    // The terminal stops a process of another group that reads from it.
    if io::stdin().is_terminal() {
        return plugin.status();
    }
    let mut plugin = plugin.process_group(0).spawn()?;
    let group = Pid::from_child(&plugin);
    std::thread::spawn(move || {
        #[expect(clippy::disallowed_methods, reason = "this process has no runtime")]
        std::thread::sleep(Duration::from_secs(seconds));
        kill_process_group(group, Signal::KILL)
    });
    plugin.wait()
}

/// Returns a path to this program that stays valid while it runs, even if its file is replaced.
#[cfg(target_os = "linux")]
fn own_executable() -> Option<String> {
    const THIS: &str = "/proc/self/exe";
    std::fs::exists(THIS).is_ok_and(|exists| exists).then(|| THIS.to_owned())
}

#[cfg(not(target_os = "linux"))]
fn own_executable() -> Option<String> {
    std::env::current_exe().ok()?.into_os_string().into_string().ok()
}

/// Disables core files, and on Linux also debuggers of the same user, because the memory contains tokens and Secrets
/// (R-THREAT-15).
pub fn disable_core_dumps() {
    let nothing = Rlimit { current: Some(0), maximum: Some(0) };
    let limited = setrlimit(Resource::Core, nothing);
    if let Err(error) = limited.and_then(|()| disable_ptrace()) {
        tracing::warn!(%error, "cannot disable core dumps and debugging; memory dumps may contain tokens and Secrets");
    }
}

#[cfg(target_os = "linux")]
fn disable_ptrace() -> rustix::io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Does nothing: on other systems, the system's own rules decide who may attach a debugger.
#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
fn disable_ptrace() -> rustix::io::Result<()> {
    Ok(())
}
