//! The view of a table: sort order, filter and scroll position.

use serde_json::Value;

use crate::inspect::rows::{feed_name, number, place, text};

/// A sort order of table rows.
pub(super) struct RowSortOrder {
    pub(super) name: &'static str,
    /// Whether the default direction is ascending, as for names; numbers begin with the largest.
    pub(super) is_up: bool,
    key: fn(&Value) -> RowSortKey,
}

/// The sort key of a row.
type RowSortKey = (u64, u64, String);

/// The sort order, filter and scroll position of a table.
pub(super) struct TopTableView {
    orders: &'static [RowSortOrder],
    /// The index of the selected sort order.
    nth: usize,
    pub(super) is_turned: bool,
    /// The text that a row must contain, in upper or lower case.
    pub(super) filter: String,
    /// The index of the first visible row.
    pub(super) first: usize,
    /// The number of rows that fit on the screen.
    pub(super) page: usize,
}

pub(super) const FEED_ORDERS: [RowSortOrder; 3] = [
    RowSortOrder { name: "readers", is_up: false, key: |feed| (number(feed, "readers"), 0, String::new()) },
    RowSortOrder { name: "memory", is_up: false, key: |feed| (number(feed, "memoryBytes"), 0, String::new()) },
    RowSortOrder { name: "name", is_up: true, key: |feed| (0, 0, feed_name(feed)) },
];

/// The sort orders of `/debug/watches`, with the names that the page accepts.
pub(super) const WATCH_ORDERS: [RowSortOrder; 7] = [
    RowSortOrder {
        name: "behind",
        is_up: false,
        key: |watch| (number(watch, "eventsBehind"), number(watch, "stateSeconds"), String::new()),
    },
    RowSortOrder { name: "since", is_up: false, key: |watch| (number(watch, "stateSeconds"), 0, String::new()) },
    RowSortOrder { name: "sent", is_up: false, key: |watch| (number(watch, "bytesSent"), 0, String::new()) },
    RowSortOrder { name: "open", is_up: false, key: |watch| (number(watch, "openSeconds"), 0, String::new()) },
    RowSortOrder { name: "agent", is_up: true, key: |watch| (0, 0, text(watch, "userAgent")) },
    RowSortOrder { name: "user", is_up: true, key: |watch| (0, 0, text(watch, "user")) },
    RowSortOrder { name: "resource", is_up: true, key: |watch| (0, 0, place(watch)) },
];

/// The fields of feeds and watches that a filter searches.
const FILTERED: [&str; 6] = ["resource", "namespace", "selector", "state", "user", "userAgent"];

impl TopTableView {
    pub(super) fn new(orders: &'static [RowSortOrder]) -> Self {
        Self { orders, nth: 0, is_turned: false, filter: String::new(), first: 0, page: 1 }
    }

    pub(super) fn order(&self) -> &'static RowSortOrder {
        &self.orders[self.nth]
    }

    pub(super) fn is_up(&self) -> bool {
        self.order().is_up != self.is_turned
    }

    /// Selects the next sort order of the table.
    pub(super) fn sort_by_next(&mut self) {
        (self.nth, self.is_turned, self.first) = ((self.nth + 1) % self.orders.len(), false, 0);
    }

    /// Returns the rows that match the filter, sorted. Rows with equal keys keep their order.
    pub(super) fn rows<'a>(&self, rows: &'a [Value]) -> Vec<&'a Value> {
        let filter = self.filter.to_lowercase();
        let is_wanted = |row: &&Value| {
            FILTERED.iter().filter_map(|key| row[*key].as_str()).any(|text| text.to_lowercase().contains(&filter))
        };
        let mut rows: Vec<_> = rows.iter().filter(|row| filter.is_empty() || is_wanted(row)).collect();
        let key = self.order().key;
        rows.sort_by(|a, b| if self.is_up() { key(a).cmp(&key(b)) } else { key(b).cmp(&key(a)) });
        rows
    }

    /// Scrolls down by `by` rows; up if the number is negative.
    pub(super) fn scroll(&mut self, by: isize) {
        self.first = self.first.saturating_add_signed(by);
    }

    /// Adjusts the scroll position to the number of rows and the height of the page, so that the last page stays full.
    pub(super) fn fit(&mut self, rows: usize, page: usize) {
        self.page = page.max(1);
        self.first = self.first.min(rows.saturating_sub(page));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn watches() -> Vec<Value> {
        let watch = |resource: &str, user: &str, agent: &str, numbers: [u64; 4]| {
            let [behind, since, sent, open] = numbers;
            json!({"resource": resource, "user": user, "userAgent": agent, "eventsBehind": behind,
                "stateSeconds": since, "bytesSent": sent, "openSeconds": open})
        };
        vec![
            watch("pods.v1", "b", "Zeta/1", [0, 9, 5, 70]),
            watch("nodes.v1", "c", "alpha/1", [7, 1, 90, 10]),
            watch("nodes.v1", "a", "kubelet/1", [7, 3, 1, 40]),
        ]
    }

    #[test]
    fn rows_are_sorted_by_each_column_in_both_directions() {
        let rows = watches();
        let users = |view: &TopTableView| view.rows(&rows).iter().map(|row| text(row, "user")).collect::<String>();
        let mut view = TopTableView::new(&WATCH_ORDERS);
        let mut seen = Vec::new();
        for _ in 0..=WATCH_ORDERS.len() {
            let up = users(&view);
            view.is_turned = true;
            seen.push((view.order().name, up, users(&view)));
            view.sort_by_next();
        }
        let seen: Vec<_> = seen.iter().map(|(name, a, b)| format!("{name} {a} {b}")).collect();
        let expected = [
            "behind acb bca",
            "since bac cab",
            "sent cba abc",
            "open bac cab",
            "agent bca acb",
            "user abc cba",
            "resource cab bca",
            "behind acb bca",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn filter_matches_every_text_ignoring_case() {
        let rows = watches();
        let mut view = TopTableView::new(&WATCH_ORDERS);
        for (filter, found) in [("", 3), ("NODES", 2), ("zeta", 1), ("let/1", 1), ("none", 0)] {
            view.filter = filter.to_owned();
            assert_eq!(view.rows(&rows).len(), found, "{filter}");
        }
    }

    #[test]
    fn scrolling_stops_at_the_first_and_last_row() {
        let mut view = TopTableView::new(&FEED_ORDERS);
        let mut seen = Vec::new();
        for by in [-1, 3, 100, -2, -500] {
            view.scroll(by);
            view.fit(30, 10);
            seen.push(view.first);
        }
        assert_eq!(seen, [0, 3, 20, 18, 0]);
        view.scroll(5);
        view.fit(4, 10);
        assert_eq!(view.first, 0);
    }
}
