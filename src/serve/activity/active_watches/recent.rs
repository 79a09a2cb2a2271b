use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::user_and_agent::{UserAndAgent, shortened};

/// A bounded log of recent events, oldest first. A repeated event increments a counter instead of evicting other
/// events.
#[derive(Debug, Default)]
pub(super) struct RecentRequestLog(Mutex<VecDeque<RecentRequestEntry>>);

#[derive(Debug)]
struct RecentRequestEntry {
    at: Instant,
    who: UserAndAgent,
    method: &'static str,
    request: Arc<str>,
    reason: Arc<str>,
    times: u64,
}

/// A recent event, such as a refusal: one row of `/debug/recent`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecentRequestRow {
    /// The number of seconds since the last occurrence.
    seconds_ago: u64,
    /// The number of occurrences of the same event.
    times: u64,
    pub(super) user: Option<String>,
    pub(super) user_agent: Option<String>,
    method: &'static str,
    /// The path of the request without its query, or the resource of a watch.
    pub(super) request: String,
    reason: String,
}

/// The number of events kept per kind.
const KEPT_MAX: usize = 256;
/// The number of latest events that are compared with a new one to detect a repetition.
const ALIKE_AMONG: usize = 8;

impl RecentRequestLog {
    pub(super) fn note(&self, who: &UserAndAgent, method: &str, request: &str, reason: Arc<str>) {
        let (at, request, method) = (Instant::now(), shortened(request), known(method));
        let mut kept = self.0.lock();
        let is_alike = |entry: &&mut RecentRequestEntry| {
            entry.method == method && entry.request == request && entry.reason == reason && entry.who == *who
        };
        if let Some(alike) = kept.iter_mut().rev().take(ALIKE_AMONG).find(is_alike) {
            (alike.at, alike.times) = (at, alike.times + 1);
            return;
        }
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back(RecentRequestEntry { at, who: who.clone(), method, request, reason, times: 1 });
    }

    /// Returns the matching rows, latest first, up to `limit`.
    pub(super) fn rows(&self, matches: impl Fn(&RecentRequestRow) -> bool, limit: usize) -> Vec<RecentRequestRow> {
        let now = Instant::now();
        let row = |of: &RecentRequestEntry| RecentRequestRow {
            seconds_ago: now.saturating_duration_since(of.at).as_secs(),
            times: of.times,
            user: of.who.user_name(),
            user_agent: of.who.agent.as_deref().map(str::to_owned),
            method: of.method,
            request: of.request.to_string(),
            reason: of.reason.to_string(),
        };
        let kept = self.0.lock();
        kept.iter().rev().map(row).filter(|row| matches(row)).take(limit).collect()
    }
}

/// Maps a method to a fixed set, because callers can send arbitrary methods.
fn known(method: &str) -> &'static str {
    const KNOWN: [&str; 8] = ["GET", "HEAD", "WATCH", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_requests_are_bounded_and_repeats_counted() {
        let recent = RecentRequestLog::default();
        let who = UserAndAgent::new(None, Some(&http::HeaderValue::from_static("kubectl")));
        for n in 0..2 * KEPT_MAX {
            recent.note(&who, "GET", &format!("/api/v1/{n}"), "writes".into());
        }
        recent.note(&who, "BREW", "/", "odd".into());
        recent.note(&who, "GET", &format!("/api/v1/{}", 2 * KEPT_MAX - 1), "writes".into());
        let rows = recent.rows(|_| true, usize::MAX);
        assert_eq!(rows.len(), KEPT_MAX);
        assert_eq!((rows[0].method, rows[0].times, rows[1].times), ("other", 1, 2));
        assert_eq!(recent.rows(|row| row.times > 1, 5).len(), 1);
        assert_eq!(recent.rows(|_| true, 3).len(), 3);
    }
}
