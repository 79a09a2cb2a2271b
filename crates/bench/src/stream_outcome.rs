use http::StatusCode;

use probe::ProbeRequestError;

/// The reason that a watch stream ended.
#[derive(Debug)]
pub(super) enum StreamOutcome {
    /// The stream can resume at the last version.
    Clean,
    /// The last received resourceVersion has expired.
    Expired,
    Refused(StatusCode),
    Broken(String),
}

impl From<ProbeRequestError> for StreamOutcome {
    fn from(error: ProbeRequestError) -> Self {
        Self::Broken(error.to_string())
    }
}
