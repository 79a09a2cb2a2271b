use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::user_and_agent::{UserAndAgent, truncated};

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
}
