use std::io::Write as _;

use crate::trial::TrialError;

/// Prints a line about the progress of the setup.
pub(super) fn note(what: &str) -> Result<(), TrialError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}").and_then(|()| out.flush()).map_err(|error| TrialError::of("standard output", error))
}
