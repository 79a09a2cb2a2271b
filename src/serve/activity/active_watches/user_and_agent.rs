use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use http::HeaderValue;

use kubeapi::FlowDistinguisher;

/// The sender of a request: its user, if authenticated, and its user agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UserAndAgent {
    pub(super) user: Option<FlowDistinguisher>,
    pub(super) agent: Option<Arc<str>>,
}

/// The limit in bytes for text that callers choose.
const TEXT_BYTES_MAX: usize = 160;

impl UserAndAgent {
    pub(crate) fn new(user: Option<FlowDistinguisher>, agent: Option<&HeaderValue>) -> Self {
        let text = agent.and_then(|agent| agent.to_str().ok());
        Self { user, agent: text.map(|text| shared_agent(&text[..truncated_len(text)])) }
    }

    /// Returns the user name and the user agent.
    pub(super) fn names(&self) -> (Option<&str>, Option<&str>) {
        (self.user.as_ref().map(FlowDistinguisher::name), self.agent.as_deref())
    }

    pub(super) fn user_name(&self) -> Option<String> {
        self.user.as_ref().map(|user| truncated(user.name()).to_string())
    }
}

/// Returns the text, truncated to [`TEXT_BYTES_MAX`].
pub(super) fn truncated(text: &str) -> Arc<str> {
    text[..truncated_len(text)].into()
}

/// Returns the last character boundary within [`TEXT_BYTES_MAX`].
fn truncated_len(text: &str) -> usize {
    (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default()
}

/// The number of user agents that each thread caches.
const CACHE_SIZE: usize = 64;

thread_local! {
    /// A cache of user agents. Only a few exist, and each is sent with every request, so ten thousand watches share one
    /// string.
    static AGENT_CACHE: RefCell<[Option<Arc<str>>; CACHE_SIZE]> = const { RefCell::new([const { None }; CACHE_SIZE]) };
}

/// Returns a string that is shared with other users of the same text, if it is still in the thread's cache.
fn shared_agent(text: &str) -> Arc<str> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let index = usize::try_from(hasher.finish() % CACHE_SIZE as u64).unwrap_or_default();
    AGENT_CACHE.with_borrow_mut(|names| match &names[index] {
        Some(name) if **name == *text => name.clone(),
        _ => names[index].insert(text.into()).clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_user_agents_share_one_string() {
        let client =
            |agent: &'static str| UserAndAgent::new(None, Some(&HeaderValue::from_static(agent))).agent.expect("text");
        let (first, second) = (client("kubelet/v1"), client("kubelet/v1"));
        assert!(Arc::ptr_eq(&first, &second));
        // The strings stay correct if there are more than the cache holds.
        for number in 0..10 * CACHE_SIZE {
            assert_eq!(*shared_agent(&number.to_string()), *number.to_string());
        }
        assert_eq!(*client("kubelet/v1"), *first);
    }

    #[test]
    fn long_client_text_is_truncated_at_character_boundary() {
        assert_eq!(&*truncated("kubectl"), "kubectl");
        let long = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(truncated(&long).len(), TEXT_BYTES_MAX);
        assert_eq!(truncated(&format!("x{long}")).len(), TEXT_BYTES_MAX - 1);
    }
}
