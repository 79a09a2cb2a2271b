//! The columns of the two tables: their cells, and the selection of those that fit on the screen.

use serde_json::Value;

use crate::inspect::rows::{feed_name, number, place, text};
use crate::inspect::table::{bytes, grouped, seconds};

/// A column of a table.
#[derive(Clone, Copy)]
pub(super) struct TopColumn {
    pub(super) head: &'static str,
    /// The name of the sort order of this column.
    pub(super) sort: &'static str,
    pub(super) is_number: bool,
    /// The order in which columns are dropped if not all fit: those with a higher number first.
    leaves: u8,
    pub(super) cell: fn(&Value) -> String,
    /// A function that returns how a cell is highlighted.
    pub(super) tone: fn(&Value) -> TextHighlight,
}

/// The way in which a text is highlighted; the text itself has the same information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextHighlight {
    Plain,
    Good,
    Warning,
    Bad,
}

/// The number of spaces between two columns.
pub(super) const GAP: usize = 2;
/// The minimum width to which texts are shortened.
const TEXT_MIN: usize = 12;
/// The minimum width of a number, so that columns do not move when a number grows.
const NUMBER_MIN: usize = 6;

impl TopColumn {
    const fn text(head: &'static str, sort: &'static str, leaves: u8, cell: fn(&Value) -> String) -> Self {
        Self { head, sort, is_number: false, leaves, cell, tone: |_| TextHighlight::Plain }
    }

    const fn number(head: &'static str, sort: &'static str, leaves: u8, cell: fn(&Value) -> String) -> Self {
        Self { head, sort, is_number: true, leaves, cell, tone: |_| TextHighlight::Plain }
    }

    const fn toned(self, tone: fn(&Value) -> TextHighlight) -> Self {
        Self { tone, ..self }
    }
}

pub(super) const FEED_COLUMNS: [TopColumn; 8] = [
    TopColumn::text("FEED", "name", 0, feed_name),
    TopColumn::text("ENCODING", "", 5, |feed| text(feed, "encoding")),
    TopColumn::text("STATE", "", 1, feed_state).toned(feed_tone),
    TopColumn::number("OBJECTS", "", 3, |feed| grouped(number(feed, "objects"))),
    TopColumn::number("VERSION", "", 6, |feed| text(feed, "resourceVersion")),
    TopColumn::number("READERS", "readers", 1, |feed| grouped(number(feed, "readers"))),
    TopColumn::number("HISTORY", "", 4, |feed| grouped(number(feed, "windowEvents"))),
    TopColumn::number("MEMORY", "memory", 2, |feed| bytes(number(feed, "memoryBytes"))),
];

pub(super) const WATCH_COLUMNS: [TopColumn; 9] = [
    TopColumn::text("WATCH", "resource", 0, place),
    TopColumn::text("USER", "user", 2, user),
    TopColumn::text("AGENT", "agent", 1, |watch| text(watch, "userAgent")),
    TopColumn::number("BEHIND", "behind", 0, behind),
    TopColumn::text("STATE", "", 1, |watch| text(watch, "state")).toned(watch_tone),
    TopColumn::number("SINCE", "since", 1, |watch| seconds(number(watch, "stateSeconds"))),
    TopColumn::number("SENT", "sent", 3, |watch| bytes(number(watch, "bytesSent"))),
    TopColumn::number("OPEN", "open", 4, |watch| seconds(number(watch, "openSeconds"))),
    TopColumn::text("PROTOCOL", "", 5, |watch| text(watch, "protocol")),
];

/// Formats a user. The common prefix of service accounts is shortened, because it would leave no room for the name.
fn user(watch: &Value) -> String {
    let user = text(watch, "user");
    user.strip_prefix("system:serviceaccount:").map(|account| format!("sa:{account}")).unwrap_or(user)
}

fn feed_state(feed: &Value) -> String {
    match feed["staleSeconds"].as_u64() {
        Some(stale) => format!("{} for {}", text(feed, "state"), seconds(stale)),
        None => text(feed, "state"),
    }
}

fn feed_tone(feed: &Value) -> TextHighlight {
    match feed["state"].as_str() {
        Some("live") => TextHighlight::Good,
        Some("syncing" | "stale") => TextHighlight::Warning,
        _ => TextHighlight::Bad,
    }
}

fn behind(watch: &Value) -> String {
    let least = if watch["eventsBehindIsLowerBound"] == true { "≥ " } else { "" };
    format!("{least}{}", grouped(number(watch, "eventsBehind")))
}

fn watch_tone(watch: &Value) -> TextHighlight {
    match watch["state"].as_str() {
        Some("idle" | "sending") => TextHighlight::Plain,
        _ => TextHighlight::Warning,
    }
}

/// Selects the columns that fit into `room`, given the width that each needs. Returns their indexes and widths. The
/// widest texts are shortened first.
pub(super) fn fitted(columns: &[TopColumn], needs: &[usize], room: usize) -> Vec<(usize, usize)> {
    let need = |at: usize| if columns[at].is_number { needs[at].max(NUMBER_MIN) } else { needs[at] };
    let least = |at: usize| if columns[at].is_number { need(at) } else { need(at).min(TEXT_MIN) };
    let mut visible: Vec<_> = (0..columns.len()).collect();
    let taken = |visible: &[usize], width: &dyn Fn(usize) -> usize| {
        visible.iter().map(|at| width(*at)).sum::<usize>() + GAP * visible.len().saturating_sub(1)
    };
    while visible.len() > 1 && taken(&visible, &least) > room {
        let last = (0..visible.len()).max_by_key(|nth| columns[visible[*nth]].leaves).unwrap_or_default();
        visible.remove(last);
    }
    let mut over = taken(&visible, &need).saturating_sub(room);
    let mut widths: Vec<_> = visible.into_iter().map(|at| (at, need(at))).collect();
    while over > 0 {
        let texts = widths.iter_mut().filter(|(at, width)| *width > least(*at));
        let Some((_, widest)) = texts.max_by_key(|(_, width)| *width) else { break };
        (*widest, over) = (*widest - 1, over - 1);
    }
    widths
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_format_the_fields_of_feeds_and_watches() {
        let feed = json!({"resource": "pods.v1", "namespace": "a", "selector": null, "encoding": "json",
            "state": "stale", "staleSeconds": 130, "objects": 1200, "resourceVersion": "77", "readers": 3,
            "windowEvents": 9, "memoryBytes": 1536});
        let cells = FEED_COLUMNS.map(|column| (column.cell)(&feed));
        assert_eq!(cells, ["pods.v1 a", "json", "stale for 2 min", "1,200", "77", "3", "9", "1.5 KiB"]);
        let watch = json!({"resource": "pods.v1", "namespace": "a", "selectors": "labels",
            "user": "system:serviceaccount:x:y", "userAgent": "kubelet", "eventsBehind": 5, "eventsBehindIsLowerBound": true,
            "state": "stalled", "stateSeconds": 7, "bytesSent": 10, "openSeconds": 9, "protocol": "h2"});
        let cells = WATCH_COLUMNS.map(|column| (column.cell)(&watch));
        let expected = ["pods.v1 in a by labels", "sa:x:y", "kubelet", "≥ 5", "stalled", "7 s", "10 B", "9 s", "h2"];
        assert_eq!(cells, expected);
        let tones =
            [("live", TextHighlight::Good), ("stale", TextHighlight::Warning), ("forbidden", TextHighlight::Bad)];
        for (state, tone) in tones {
            assert_eq!(feed_tone(&json!({"state": state})), tone);
        }
    }

    #[test]
    fn columns_are_dropped_and_truncated_to_fit_the_width() {
        let needs = [20, 30, 60, 6, 7, 5, 8, 5, 4];
        let heads = |room: usize| {
            let visible = fitted(&WATCH_COLUMNS, &needs, room);
            let heads: Vec<_> = visible.iter().map(|(at, _)| WATCH_COLUMNS[*at].head).collect();
            let taken = visible.iter().map(|(_, width)| width).sum::<usize>() + GAP * (visible.len() - 1);
            (heads.join(" "), taken)
        };
        let all = "WATCH USER AGENT BEHIND STATE SINCE SENT OPEN PROTOCOL";
        assert_eq!(heads(200), (all.to_owned(), 163));
        assert_eq!(heads(120), (all.to_owned(), 120));
        assert_eq!(heads(80), ("WATCH USER AGENT BEHIND STATE SINCE SENT".to_owned(), 80));
        assert_eq!(heads(50).0, "WATCH AGENT BEHIND STATE");
        assert_eq!(heads(1).0.split(' ').count(), 1);
    }
}
