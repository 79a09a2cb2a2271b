use std::sync::Arc;

use http::HeaderValue;

use crate::kube::Payer;

/// Who has sent a request, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Who {
    pub(super) user: Option<Payer>,
    pub(super) agent: Option<Arc<str>>,
}

/// Texts that callers choose are cut to so many bytes.
const TEXT_BYTES_MAX: usize = 160;

impl Who {
    pub(in super::super) fn new(user: Option<Payer>, agent: Option<&HeaderValue>) -> Self {
        let text = agent.and_then(|agent| agent.to_str().ok());
        Self { user, agent: text.map(shortened) }
    }

    /// The user and the program.
    pub(super) fn names(&self) -> (Option<&str>, Option<&str>) {
        (self.user.as_ref().map(Payer::name), self.agent.as_deref())
    }

    pub(super) fn user_name(&self) -> Option<String> {
        self.user.as_ref().map(|user| shortened(user.name()).to_string())
    }
}

/// The beginning of a text that somebody else has chosen.
pub(super) fn shortened(text: &str) -> Arc<str> {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    text[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_choose_is_cut_where_a_character_ends() {
        assert_eq!(&*shortened("kubectl"), "kubectl");
        let long = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(shortened(&long).len(), TEXT_BYTES_MAX);
        assert_eq!(shortened(&format!("x{long}")).len(), TEXT_BYTES_MAX - 1);
    }
}
