//! Shows running proxies again and again, in a terminal.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::status::{HEAD, ProxyStatus, row};
use super::table::{bytes, grouped, lines, seconds};
use super::{AskedProxy, InspectError};

/// How often, and how much.
#[derive(Debug, Clone)]
pub struct TopOrder {
    pub every: Duration,
    /// Shown so many times; without end otherwise.
    pub times: Option<u64>,
    /// The screen is cleared before each time.
    pub clears: bool,
}

/// What rates are computed of: counters that only grow.
struct Counters {
    at: Instant,
    values: HashMap<&'static str, u64>,
}

const CLEAR: &str = "\x1b[H\x1b[2J";
/// Feeds and watches that are shown of each proxy.
const ROWS_MAX: usize = 12;
const RATES: [(&str, &str); 6] = [
    ("kube_fanout_upstream_events_total", "events upstream"),
    ("kube_fanout_watch_events_total", "events delivered"),
    ("kube_fanout_watch_bytes_total", "delivered"),
    ("kube_fanout_served_total", "answered from memory"),
    ("kube_fanout_forwarded_total", "passed through"),
    ("kube_fanout_refused_total", "refused"),
];

/// Shows them until it is interrupted.
///
/// # Errors
/// One of them does not answer, or nobody reads what is printed.
pub async fn top(proxies: &[AskedProxy], order: &TopOrder) -> Result<(), InspectError> {
    let mut before: HashMap<String, Counters> = HashMap::new();
    let mut shown = 0;
    loop {
        let mut text = String::new();
        for proxy in proxies {
            let status = ProxyStatus::of(proxy).await?;
            let values = RATES.map(|(name, _)| (name, status.metrics.sum(name))).into_iter().collect();
            let now = Counters { at: Instant::now(), values };
            let rates = before.get(&proxy.name).map(|earlier| rates(earlier, &now)).unwrap_or_default();
            // Who reads what is not shown to everybody.
            let watches = proxy.json(&format!("/debug/watches?limit={ROWS_MAX}")).await?.ok();
            write(&mut text, &status, &rates, watches.as_ref());
            before.insert(proxy.name.clone(), now);
        }
        show(order.clears, &text).map_err(|error| InspectError::of("standard output", error))?;
        shown += 1;
        if order.times.is_some_and(|times| shown >= times) {
            return Ok(());
        }
        sleep(order.every).await;
    }
}

fn show(clears: bool, text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{}{text}", if clears { CLEAR } else { "" })?;
    out.flush()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is shown in whole numbers")]
fn rates(earlier: &Counters, now: &Counters) -> String {
    let elapsed = now.at.duration_since(earlier.at).as_secs_f64().max(0.001);
    let rate = |(name, what): &(&'static str, &str)| {
        let grown = now.values.get(name).unwrap_or(&0).saturating_sub(*earlier.values.get(name).unwrap_or(&0));
        let rate = (grown as f64 / elapsed).round().max(0.0) as u64;
        if name.contains("bytes") { format!("{}/s {what}", bytes(rate)) } else { format!("{}/s {what}", grouped(rate)) }
    };
    RATES.iter().map(rate).collect::<Vec<_>>().join(" · ")
}

fn write(text: &mut String, status: &ProxyStatus, rates: &str, watches: Option<&Value>) {
    let _ = writeln!(text, "{}", status.headline());
    let _ = writeln!(
        text,
        "{} watches of clients · {} streams upstream · {} of {} held · {} resident",
        grouped(status.watches),
        grouped(status.streams),
        bytes(status.held_bytes),
        bytes(status.budget_bytes),
        bytes(status.resident_bytes)
    );
    let _ = writeln!(text, "{rates}\n");
    let mut feeds: Vec<_> = status.feeds.iter().collect();
    feeds.sort_by_key(|feed| std::cmp::Reverse(feed["readers"].as_u64()));
    let rows: Vec<_> = feeds.iter().take(ROWS_MAX).map(|feed| row(feed)).collect();
    text.push_str(&lines(&HEAD, &rows));
    let Some(watches) = watches else {
        text.push_str("\nwho watches is not shown here: a unix socket, or --token-file, is needed\n\n");
        return;
    };
    let watch = |row: &Value| {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let number = |key: &str| row[key].as_u64().unwrap_or_default();
        let state = format!("{} {}", text("state"), seconds(number("stateSeconds")));
        let [user, agent] = ["user", "userAgent"].map(|key| text(key).chars().take(28).collect::<String>());
        vec![
            format!("  {}", text("resource")),
            user,
            agent,
            grouped(number("eventsBehind")),
            state,
            bytes(number("bytesSent")),
        ]
    };
    let rows: Vec<_> = watches["watches"].as_array().into_iter().flatten().map(watch).collect();
    text.push('\n');
    text.push_str(&lines(&["  WATCH", "USER", "AGENT", "BEHIND", "STATE", "SENT"], &rows));
    text.push('\n');
}
