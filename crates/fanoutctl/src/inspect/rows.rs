//! Accessors for rows of the admin pages.

use serde_json::Value;

/// Returns a text of a row; empty if it is absent.
pub(super) fn text(row: &Value, key: &str) -> String {
    row[key].as_str().unwrap_or_default().to_owned()
}

/// Returns a number of a row; 0 if it is absent.
pub(super) fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_default()
}

/// Returns the name of a feed: resource, namespace and selector.
pub(super) fn feed_name(feed: &Value) -> String {
    let parts = ["resource", "namespace", "selector"].map(|key| text(feed, key));
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns a watch's resource, namespace and kind of selectors.
pub(super) fn place(watch: &Value) -> String {
    let [resource, namespace] = ["resource", "namespace"].map(|key| text(watch, key));
    let place = if namespace.is_empty() { resource } else { format!("{resource} in {namespace}") };
    match watch["selectors"].as_str() {
        None | Some("none") => place,
        Some(selectors) => format!("{place} by {selectors}"),
    }
}
