use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets the process have as many open files as it may at most, as Go's servers do: the soft limit is low for the sake
/// of programs that cannot cope with more, and a connection is an open file.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let shown = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let (from, to) = (shown(current), shown(maximum));
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::info!(from, to, "open files: the limit was raised to what is allowed"),
        Err(error) => tracing::warn!(from, to, %error, "open files: the limit cannot be raised"),
    }
}
