/// Whether the bug with this number of docs/dev/PROMISES.md, "Mutants", is on: `KUBE_FANOUT_MUTANT` says so when
/// the process starts. It is asked beside the code that keeps the bug out, so that `make mutants` can put each back and
/// see that a test notices. Only builds with debug assertions have the switch, as those of tests are.
#[cfg(debug_assertions)]
pub fn mutant(number: u8) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<u8>> = std::sync::LazyLock::new(|| {
        #[allow(clippy::disallowed_methods, reason = "no operator says this")]
        let chosen = std::env::var("KUBE_FANOUT_MUTANT").ok()?;
        chosen.parse().ok()
    });
    *CHOSEN == Some(number)
}

/// The same in a build that is shipped: none is.
#[cfg(not(debug_assertions))]
pub const fn mutant(_number: u8) -> bool {
    false
}
