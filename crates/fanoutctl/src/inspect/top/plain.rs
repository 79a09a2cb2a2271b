use std::fmt::Write as _;
use std::io::Write as _;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::poll::{OpenWatchesQuery, OpenWatchesResult, ProxyPollResult};
use super::proxy::PolledProxy;
use super::{EVERY_MIN, TopOptions};
use crate::inspect::rows::{number, text};
use crate::inspect::status::{HEAD, row};
use crate::inspect::table::{bytes, grouped, lines, printable, seconds};
use crate::inspect::{InspectError, ProxyTarget, is_read};

/// The maximum number of feeds, and of watches, per proxy.
const ROWS_MAX: usize = 12;
/// The maximum length of a user name or user agent.
const NAME_CHARS_MAX: usize = 28;

/// Prints the status of all proxies at each refresh.
///
/// # Errors
/// If no proxy responds to the first request, or standard output cannot be written.
pub(super) async fn print(proxies: &[ProxyTarget], order: &TopOptions) -> Result<(), InspectError> {
    let query = OpenWatchesQuery { sort: "behind", is_up: false, text: String::new(), limit: ROWS_MAX };
    let mut seen: Vec<_> = proxies.iter().map(|proxy| PolledProxy::new(proxy.name.clone(), order.every)).collect();
    let mut printed = 0;
    loop {
        let looks = join_all(proxies.iter().map(|proxy| ProxyPollResult::at(proxy, Some(&query)))).await;
        if let (0, true, Some(Err(error))) = (printed, looks.iter().all(Result::is_err), looks.first()) {
            return Err(error.clone());
        }
        let mut text = String::new();
        for (proxy, look) in seen.iter_mut().zip(looks) {
            proxy.saw(look, Instant::now());
            write(&mut text, proxy);
        }
        if !is_read(say(&text))? {
            return Ok(());
        }
        printed += 1;
        if order.times.is_some_and(|times| printed >= times) {
            return Ok(());
        }
        sleep(order.every.max(EVERY_MIN)).await;
    }
}

fn say(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn write(text: &mut String, proxy: &PolledProxy) {
    let look = match (&proxy.silence, &proxy.look) {
        (None, Some(look)) => look,
        (silence, _) => {
            let why = silence.as_ref().map_or("waiting for the first response", |silence| silence.why.as_str());
            let _ = writeln!(text, "{}: no response\n{}\n", proxy.name, printable(why));
            return;
        }
    };
    let status = &look.status;
    let _ = writeln!(text, "{}", status.headline());
    let _ = writeln!(
        text,
        "{} client watches · {} upstream streams · cache {} of {} · resident memory {}",
        grouped(status.watches),
        grouped(status.streams),
        bytes(status.held_bytes),
        bytes(status.budget_bytes),
        bytes(status.resident_bytes)
    );
    let rates = proxy.rates.map(|rates| rates.to_string()).unwrap_or_default();
    let _ = writeln!(text, "{rates}\n");
    let mut feeds: Vec<_> = status.feeds.iter().collect();
    feeds.sort_by_key(|feed| std::cmp::Reverse(feed["readers"].as_u64()));
    let rows: Vec<_> = feeds.iter().take(ROWS_MAX).map(|feed| row(feed)).collect();
    text.push_str(&lines(&HEAD, &rows));
    let OpenWatchesResult::Shown { rows, .. } = &look.watches else {
        text.push_str("\nwatches are hidden: use a unix socket or --token-file\n\n");
        return;
    };
    let rows: Vec<_> = rows.iter().map(watch).collect();
    text.push('\n');
    text.push_str(&lines(&["  WATCH", "USER", "AGENT", "BEHIND", "STATE", "SENT"], &rows));
    text.push('\n');
}

fn watch(row: &Value) -> Vec<String> {
    let state = format!("{} {}", text(row, "state"), seconds(number(row, "stateSeconds")));
    let [user, agent] =
        ["user", "userAgent"].map(|key| text(row, key).chars().take(NAME_CHARS_MAX).collect::<String>());
    let (behind, sent) = (grouped(number(row, "eventsBehind")), bytes(number(row, "bytesSent")));
    vec![format!("  {}", text(row, "resource")), user, agent, behind, state, sent]
}
