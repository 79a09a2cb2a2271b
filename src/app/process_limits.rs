use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::upstream::{CredentialPluginRunner, run_plugins_by};

/// Raises the soft limit of open files to the hard limit, as Go's servers do, because each connection is an open file.
///
/// The soft limit is low for programs that cannot handle more, and exec plugins may be such programs. So plugins are
/// started through this program, which lowers the limit again before it executes the plugin ([`run_plugin`]). Lowering
/// it between fork and exec would need unsafe code, and after the exec it would be too late.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let text = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let (from, to) = (text(current), text(maximum));
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => {
            tracing::info!(from, to, "raised the file descriptor limit to the hard limit");
            let Some(program) = own_executable() else {
                return tracing::warn!(
                    limit = to,
                    "cannot find the proxy's own executable; exec plugins inherit the raised file descriptor limit"
                );
            };
            run_plugins_by(CredentialPluginRunner {
                program,
                arguments: ["run-plugin", &from, "--"].map(str::to_owned).into(),
            });
        }
        Err(error) => {
            tracing::warn!(from, to, %error, "cannot raise the file descriptor limit; keeping the soft limit");
        }
    }
}

/// Replaces this process with an exec plugin that has the given limit of open files. Returns only if that fails.
pub fn run_plugin(open_files: u64, command: &[OsString]) -> io::Error {
    let Some((program, arguments)) = command.split_first() else { return io::ErrorKind::InvalidInput.into() };
    let limit = Rlimit { current: Some(open_files), ..getrlimit(Resource::Nofile) };
    match setrlimit(Resource::Nofile, limit) {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error.into(),
    }
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
