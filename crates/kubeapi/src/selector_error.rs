/// Longest label or field selector that is parsed. The apiserver has no such limit of its own (only its header limit);
/// ours keeps one request from buying unbounded work in every later event.
pub const SELECTOR_BYTES_MAX: usize = 16 * 1024;

/// Why a selector is refused, in the apiserver's words: the message of a 400 `BadRequest`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// What the apiserver answers to the same text.
    #[error("{0}")]
    Invalid(String),
    /// A key that the resource does not have, as far as we know.
    #[error("field label not supported: {0}")]
    UnknownField(String),
    /// Over [`SELECTOR_BYTES_MAX`]. The apiserver might accept it, so reads with such a selector pass through.
    #[error("the {parameter} is too long: {bytes} bytes, at most {max} are allowed", max = SELECTOR_BYTES_MAX)]
    TooLong { parameter: &'static str, bytes: usize },
}

impl SelectorError {
    pub(super) fn check_length(parameter: &'static str, text: &str) -> Result<(), Self> {
        if text.len() > SELECTOR_BYTES_MAX {
            return Err(Self::TooLong { parameter, bytes: text.len() });
        }
        Ok(())
    }
}
