use rustix::process::{Resource, Rlimit, setrlimit};

/// Disables core files, and on Linux also debuggers of the same user, because the memory contains tokens and Secrets
/// (R-THREAT-15).
pub fn keep_memory_private() {
    let nothing = Rlimit { current: Some(0), maximum: Some(0) };
    let limited = setrlimit(Resource::Core, nothing);
    if let Err(error) = limited.and_then(|()| refuse_debuggers()) {
        tracing::warn!(%error, "cannot disable core dumps and debugging; memory dumps may contain tokens and Secrets");
    }
}

#[cfg(target_os = "linux")]
fn refuse_debuggers() -> rustix::io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Does nothing: on other systems, the system's own rules decide who may attach a debugger.
#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it fails")]
fn refuse_debuggers() -> rustix::io::Result<()> {
    Ok(())
}
