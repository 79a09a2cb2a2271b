use std::cell::RefCell;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use http::HeaderValue;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use kubeapi::FlowDistinguisher;

/// A bounded log of recent events, oldest first. A repeated event increments a counter instead of evicting other
/// events.
#[derive(Debug, Default)]
pub(super) struct RecentRequestLog(Mutex<VecDeque<RecentRequestEntry>>);

#[derive(Debug)]
struct RecentRequestEntry {
    at: Instant,
    client: UserAndAgent,
    method: &'static str,
    request: Arc<str>,
    reason: Arc<str>,
    count: u64,
}

/// A recent event, such as a refusal: one row of `/debug/recent`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecentRequestRow {
    /// The number of seconds since the last occurrence.
    seconds_ago: u64,
    /// The number of occurrences of the same event.
    count: u64,
    pub(super) user: Option<String>,
    pub(super) user_agent: Option<String>,
    method: &'static str,
    /// The path of the request without its query, or the resource of a watch.
    pub(super) request: String,
    reason: String,
}

/// The maximum number of entries per kind.
const ENTRIES_MAX: usize = 256;
/// The number of latest events that are compared with a new one to detect a repetition.
const COMPARED_MAX: usize = 8;

impl RecentRequestLog {
    pub(super) fn record(&self, client: &UserAndAgent, method: &str, request: &str, reason: Arc<str>) {
        let (at, request, method) = (Instant::now(), truncated(request), known_method(method));
        let mut entries = self.0.lock();
        let is_equal = |entry: &&mut RecentRequestEntry| {
            entry.method == method && entry.request == request && entry.reason == reason && entry.client == *client
        };
        if let Some(repeated) = entries.iter_mut().rev().take(COMPARED_MAX).find(is_equal) {
            (repeated.at, repeated.count) = (at, repeated.count + 1);
            return;
        }
        if entries.len() >= ENTRIES_MAX {
            entries.pop_front();
        }
        entries.push_back(RecentRequestEntry { at, client: client.clone(), method, request, reason, count: 1 });
    }

    /// Returns the matching rows, latest first, up to `limit`.
    pub(super) fn rows(&self, matches: impl Fn(&RecentRequestRow) -> bool, limit: usize) -> Vec<RecentRequestRow> {
        let now = Instant::now();
        let row = |entry: &RecentRequestEntry| RecentRequestRow {
            seconds_ago: now.saturating_duration_since(entry.at).as_secs(),
            count: entry.count,
            user: entry.client.user_name(),
            user_agent: entry.client.agent.as_deref().map(str::to_owned),
            method: entry.method,
            request: entry.request.to_string(),
            reason: entry.reason.to_string(),
        };
        let entries = self.0.lock();
        entries.iter().rev().map(row).filter(|row| matches(row)).take(limit).collect()
    }
}

/// Maps a method to a fixed set, because callers can send arbitrary methods.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 8] = ["GET", "HEAD", "WATCH", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}

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
    fn recent_requests_are_bounded_and_repeats_counted() {
        let recent = RecentRequestLog::default();
        let client = UserAndAgent::new(None, Some(&http::HeaderValue::from_static("kubectl")));
        for n in 0..2 * ENTRIES_MAX {
            recent.record(&client, "GET", &format!("/api/v1/{n}"), "writes".into());
        }
        recent.record(&client, "BREW", "/", "odd".into());
        recent.record(&client, "GET", &format!("/api/v1/{}", 2 * ENTRIES_MAX - 1), "writes".into());
        let rows = recent.rows(|_| true, usize::MAX);
        assert_eq!(rows.len(), ENTRIES_MAX);
        assert_eq!((rows[0].method, rows[0].count, rows[1].count), ("other", 1, 2));
        assert_eq!(recent.rows(|row| row.count > 1, 5).len(), 1);
        assert_eq!(recent.rows(|_| true, 3).len(), 3);
    }

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
