/// Whether the bug with this number in docs/dev/PROMISES.md, "Mutants", is enabled, by `KUBE_FANOUT_MUTANT` at the
/// start of the process. It is checked next to the code that prevents the bug, so that `make mutants` can enable each
/// bug and verify that a test fails. Only builds with debug assertions, such as those of tests, have the switch.
#[cfg(debug_assertions)]
pub fn mutant(number: u8) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<u8>> = std::sync::LazyLock::new(|| {
        #[allow(clippy::disallowed_methods, reason = "no operator says this")]
        let chosen = std::env::var("KUBE_FANOUT_MUTANT").ok()?;
        chosen.parse().ok()
    });
    *CHOSEN == Some(number)
}

/// In release builds, no bug can be enabled.
#[cfg(not(debug_assertions))]
pub const fn mutant(_number: u8) -> bool {
    false
}
