use std::fmt::Write as _;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::reasons::{meaning, refusal};
use super::rows::place;
use super::table::{bytes, grouped, printable, seconds};
use super::{InspectError, InspectReport, ProxyTarget};

/// The filter for watches and requests to explain; without a filter, all of them are explained.
#[derive(Debug, Clone, Default)]
pub struct ExplainOptions {
    pub user: Option<String>,
    pub agent: Option<String>,
    pub resource: Option<String>,
    /// The maximum number of watches, and of entries of each kind.
    pub limit: usize,
}

/// Explains the state of each proxy's watches, and why watches ended and requests were refused or forwarded.
pub async fn explain(proxies: &[ProxyTarget], order: &ExplainOptions) -> InspectReport {
    let query = order.query();
    let (mut text, mut found, mut failures) = (String::new(), Vec::new(), Vec::new());
    let all_pages = join_all(proxies.iter().map(|proxy| pages(proxy, &query))).await;
    for (proxy, pages) in proxies.iter().zip(all_pages) {
        let (watches, recent) = match pages {
            Ok(pages) => pages,
            Err(error) => {
                failures.push(error);
                continue;
            }
        };
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", proxy.name);
        write(&mut text, &watches, &recent);
        found.push(json!({"proxy": proxy.name, "watches": watches, "recent": recent}));
    }
    InspectReport { text, json: found.into(), is_well: true, failures }
}

/// Reads the pages of a proxy's watches and of its decisions.
async fn pages(proxy: &ProxyTarget, query: &str) -> Result<(Value, Value), InspectError> {
    let fetch = async |page: &str| {
        let path = format!("/debug/{page}?{query}");
        let fetch = proxy.json(&path).await?;
        fetch.map_err(|not| {
            InspectError::of(&format!("{} {path}", proxy.name), format!("{} {}", not.status.as_u16(), not.why))
        })
    };
    Ok((fetch("watches").await?, fetch("recent").await?))
}

impl ExplainOptions {
    fn query(&self) -> String {
        let mut query = format!("limit={}", self.limit);
        for (name, part) in [("user", &self.user), ("agent", &self.agent), ("resource", &self.resource)] {
            if let Some(part) = part {
                let _ = write!(query, "&{name}={}", escaped(part));
            }
        }
        query
    }
}

/// Percent-encodes a query value.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(char::from(byte)),
            other => {
                let _ = write!(escaped, "%{other:02X}");
            }
        }
    }
    escaped
}

fn write(text: &mut String, watches: &Value, recent: &Value) {
    let rows = watches["watches"].as_array().map(Vec::as_slice).unwrap_or_default();
    let number = |key: &str| watches[key].as_u64().unwrap_or_default();
    let omitted = number("omitted");
    let more = if omitted == 0 { String::new() } else { format!(" ({} more not shown)", grouped(omitted)) };
    let _ = writeln!(text, "  open watches: {}{more}", grouped(number("total")));
    for row in rows {
        let _ = writeln!(text, "    {}", printable(&open(row)));
    }
    let kinds = [("ended watches", "ended"), ("refused requests", "refused"), ("forwarded requests", "forwarded")];
    for (title, key) in kinds {
        let rows = recent[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let _ = writeln!(text, "  {title}, latest first:{}", if rows.is_empty() { " none" } else { "" });
        for row in rows {
            let _ = writeln!(text, "    {}", printable(&happened(row, key)));
        }
    }
}

fn who(row: &Value) -> String {
    let text = |key: &str| row[key].as_str().filter(|text| !text.is_empty());
    match (text("user"), text("userAgent")) {
        (Some(user), Some(agent)) => format!("{user} ({agent})"),
        (Some(one), None) | (None, Some(one)) => one.to_owned(),
        (None, None) => "unknown client".to_owned(),
    }
}

fn open(row: &Value) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let number = |key: &str| row[key].as_u64().unwrap_or_default();
    let (behind, since) = (number("eventsBehind"), seconds(number("stateSeconds")));
    let least = if row["eventsBehindIsLowerBound"] == true { "at least " } else { "" };
    let state = match text("state") {
        "idle" if text("selectors") == "none" => format!("caught up, last event {since} ago"),
        "idle" => format!("caught up (filtered watch), last event {since} ago"),
        "sending" => format!("receiving, {least}{} events waiting", grouped(behind)),
        _ if behind == 0 => format!("stalled for {since}: it does not read what was sent on its connection"),
        _ => format!(
            "stalled for {since}, {least}{} events waiting. It can still resume until its position expires \
             (`window.*`)",
            grouped(behind)
        ),
    };
    let (sent, opened) = (bytes(number("bytesSent")), seconds(number("openSeconds")));
    let (at, feed) = (text("resourceVersion"), text("feedResourceVersion"));
    format!(
        "{} watches {} over {}: {state}; {sent} sent in {opened}; at resourceVersion {at}, feed at {feed}",
        who(row),
        place(row),
        text("protocol")
    )
}

fn happened(row: &Value, kind: &str) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let ago = seconds(row["secondsAgo"].as_u64().unwrap_or_default());
    let count = match row["count"].as_u64().unwrap_or(1) {
        1 => String::new(),
        count => format!(", {} times", grouped(count)),
    };
    let (reason, method, target) = (text("reason"), text("method"), text("request"));
    let why = match kind {
        "refused" => refusal(reason.split(' ').next().unwrap_or_default()),
        _ => meaning(reason),
    };
    format!("{ago} ago{count}: {}, {method} {target}: {reason}: {why}", who(row))
        .trim_end_matches([' ', ':'])
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_text_is_percent_encoded() {
        let order =
            ExplainOptions { agent: Some("kubectl/v1 (a&b)".to_owned()), limit: 7, ..ExplainOptions::default() };
        assert_eq!(order.query(), "limit=7&agent=kubectl%2Fv1%20%28a%26b%29");
    }

    #[test]
    fn stalled_and_idle_watches_are_explained_differently() {
        let row = |state: &str, behind: u64| {
            let (least, protocol, namespace) = (behind > 200, "h2", "shop");
            open(&json!({
                "user": "ada", "userAgent": "informer", "resource": "pods.v1", "namespace": namespace,
                "selectors": "labels", "protocol": protocol, "state": state, "stateSeconds": 300,
                "eventsBehind": behind, "eventsBehindIsLowerBound": least, "bytesSent": 2048, "openSeconds": 400,
                "resourceVersion": "7", "feedResourceVersion": "9",
            }))
        };
        assert_eq!(
            row("idle", 0),
            "ada (informer) watches pods.v1 in shop by labels over h2: caught up (filtered watch), last event 5 min \
             ago; 2.0 KiB sent in 6 min; at resourceVersion 7, feed at 9"
        );
        assert!(
            row("stalled", 256).contains("stalled for 5 min, at least 256 events waiting. It can still resume until")
        );
    }
}
