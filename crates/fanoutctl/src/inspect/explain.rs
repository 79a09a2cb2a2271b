use std::fmt::Write as _;

use serde_json::{Value, json};

use super::reasons::{meaning, refusal};
use super::rows::place;
use super::table::{bytes, grouped, printable, seconds};
use super::{AskedProxy, Findings, InspectError};

/// Whose fate is to be explained: a part of a name, or everybody's.
#[derive(Debug, Clone, Default)]
pub struct ExplainOrder {
    pub user: Option<String>,
    pub agent: Option<String>,
    pub resource: Option<String>,
    /// How many watches and happenings at most, of each kind.
    pub limit: usize,
}

/// Says of each proxy who waits for what, and why watches ended, and requests were refused or passed through.
///
/// # Errors
/// One of them does not answer, or does not show who reads what.
pub async fn explain(proxies: &[AskedProxy], order: &ExplainOrder) -> Result<Findings, InspectError> {
    let query = order.query();
    let (mut text, mut found) = (String::new(), Vec::new());
    for proxy in proxies {
        let shown = async |page: &str| {
            let path = format!("/debug/{page}?{query}");
            let shown = proxy.json(&path).await?;
            shown.map_err(|not| {
                InspectError::of(&format!("{} {path}", proxy.name), format!("{} {}", not.status.as_u16(), not.why))
            })
        };
        let (watches, recent) = (shown("watches").await?, shown("recent").await?);
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", proxy.name);
        write(&mut text, &watches, &recent);
        found.push(json!({"proxy": proxy.name, "watches": watches, "recent": recent}));
    }
    Ok(Findings { text, json: found.into(), is_well: true })
}

impl ExplainOrder {
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

/// A text as a query has it.
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
    let left_out = number("leftOut");
    let more = if left_out == 0 { String::new() } else { format!(", {} more are not shown", grouped(left_out)) };
    let _ = writeln!(text, "  open watches: {}{more}", grouped(number("total")));
    for row in rows {
        let _ = writeln!(text, "    {}", printable(&open(row)));
    }
    let kinds = [("watches that ended", "ended"), ("refused", "refused"), ("passed through", "passedThrough")];
    for (title, key) in kinds {
        let rows = recent[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let _ = writeln!(text, "  {title}, the latest first: {}", if rows.is_empty() { "none" } else { "" }.trim_end());
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
        (None, None) => "somebody".to_owned(),
    }
}

fn open(row: &Value) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let number = |key: &str| row[key].as_u64().unwrap_or_default();
    let (behind, since) = (number("eventsBehind"), seconds(number("stateSeconds")));
    let least = if row["eventsBehindAtLeast"] == true { "at least " } else { "" };
    let state = match text("state") {
        "parked" => format!("has everything; nothing to say for {since}"),
        "sending" => format!("is being told; {least}{} events are waiting", grouped(behind)),
        _ if behind == 0 => format!("takes nothing of what was handed to its connection, for {since}"),
        _ => format!(
            "takes nothing, for {since}; {least}{} events are waiting. It keeps its place, and costs nobody else \
                      anything, until that leaves the history (window.*)",
            grouped(behind)
        ),
    };
    let (sent, opened) = (bytes(number("bytesSent")), seconds(number("openSeconds")));
    let (at, feed) = (text("resourceVersion"), text("feedResourceVersion"));
    format!(
        "{} watches {} over {}: {state}. {sent} in {opened}, at {at} of {feed}",
        who(row),
        place(row),
        text("protocol")
    )
}

fn happened(row: &Value, kind: &str) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or_default();
    let ago = seconds(row["secondsAgo"].as_u64().unwrap_or_default());
    let times = match row["times"].as_u64().unwrap_or(1) {
        1 => String::new(),
        times => format!(", {} times", grouped(times)),
    };
    let (reason, method, asked) = (text("reason"), text("method"), text("asked"));
    let why = match kind {
        "refused" => refusal(reason.split(' ').next().unwrap_or_default()),
        _ => meaning(reason),
    };
    format!("{ago} ago{times}: {}, {method} {asked}: {reason}: {why}", who(row)).trim_end_matches([' ', ':']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_may_have_any_characters() {
        let order = ExplainOrder { agent: Some("kubectl/v1 (a&b)".to_owned()), limit: 7, ..ExplainOrder::default() };
        assert_eq!(order.query(), "limit=7&agent=kubectl%2Fv1%20%28a%26b%29");
    }

    #[test]
    fn a_slow_client_is_told_from_an_idle_one() {
        let row = |state: &str, behind: u64| {
            let (least, protocol, namespace) = (behind > 200, "h2", "shop");
            open(&json!({
                "user": "ada", "userAgent": "informer", "resource": "pods.v1", "namespace": namespace,
                "selectors": "labels", "protocol": protocol, "state": state, "stateSeconds": 300,
                "eventsBehind": behind, "eventsBehindAtLeast": least, "bytesSent": 2048, "openSeconds": 400,
                "resourceVersion": "7", "feedResourceVersion": "9",
            }))
        };
        assert_eq!(
            row("parked", 0),
            "ada (informer) watches pods.v1 in shop by labels over h2: has everything; nothing to say for 5 min. \
             2.0 KiB in 6 min, at 7 of 9"
        );
        assert!(row("stalled", 256).contains("takes nothing, for 5 min; at least 256 events are waiting"));
    }
}
