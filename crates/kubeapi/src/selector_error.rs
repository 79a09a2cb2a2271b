/// The maximum length in bytes of a label or field selector that is parsed. The apiserver has only its header limit;
/// this limit bounds the work that one request causes for every later event.
pub const SELECTOR_BYTES_MAX: usize = 16 * 1024;

/// The reason that a selector is refused. Its text is the apiserver's message of a 400 `BadRequest`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The apiserver's message for the same text.
    #[error("{0}")]
    Invalid(String),
    /// The selector has a key that the known fields of the resource do not include.
    #[error("field label not supported: {0}")]
    UnknownField(String),
    /// The selector is longer than [`SELECTOR_BYTES_MAX`]. The apiserver might accept it, so reads with such a selector
    /// are forwarded.
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
