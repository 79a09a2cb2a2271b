use std::cmp::Reverse;

use super::{CachedResource, CheckFinding};
use crate::upstream::{JsonListPage, METADATA_LIST, UpstreamClient, UpstreamError, UpstreamRequestCause};

/// The number of objects of a resource, and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ResourceSize {
    objects: u64,
    /// The average size of an object in JSON, in bytes.
    bytes: u64,
}

const AREA: &str = "sizes";
/// The maximum number of resources to measure, and to report, the largest first.
const MEASURED_MAX: usize = 100;
const REPORTED_MAX: usize = 12;
/// The number of objects whose size is measured.
const SAMPLE: usize = 20;
/// The approximate size of a bookmark in bytes; each watch receives one per minute.
const BOOKMARK_BYTES: u64 = 250;

/// Counts the objects of each resource and reports their total size. `budget` is the memory of all feeds.
pub async fn sizes(client: &UpstreamClient, items: &[CachedResource], budget: usize) -> Vec<CheckFinding> {
    let (mut found, mut failed) = (Vec::new(), None);
    for item in items.iter().take(MEASURED_MAX) {
        match size(client, item).await {
            Ok(Some(size)) => found.push((size.objects.saturating_mul(size.bytes), size.objects, item)),
            Ok(None) => {}
            Err(error) => {
                let is_gone = error.code().is_none();
                failed.get_or_insert_with(|| CheckFinding::request_failed(AREA, item.gvr.group_resource(), &error));
                // Every further request would wait as long.
                if is_gone {
                    break;
                }
            }
        }
    }
    found.sort_by_key(|(bytes, ..)| Reverse(*bytes));
    let bytes: u64 = found.iter().map(|(bytes, ..)| bytes).sum();
    let mut findings: Vec<_> =
        found.iter().take(REPORTED_MAX).map(|(bytes, objects, item)| finding(item, *objects, *bytes)).collect();
    findings.extend(failed);
    if let Some(rest) = found.get(REPORTED_MAX..).filter(|rest| !rest.is_empty()) {
        let objects: u64 = rest.iter().map(|(_, objects, _)| objects).sum();
        findings.push(CheckFinding::ok(AREA, format!("{} more resources: {objects} objects", rest.len())));
    }
    if items.len() > MEASURED_MAX {
        let message = format!("{} further resources were not measured", items.len() - MEASURED_MAX);
        findings.push(CheckFinding::ok(AREA, message));
    }
    let (all, room) = (mebibytes(bytes), mebibytes(budget as u64));
    findings.push(if bytes > budget as u64 {
        let message = format!(
            "about {all} of JSON in total exceeds the memory of {room} for feeds: what does not fit is forwarded"
        );
        CheckFinding::warning(AREA, message).with_remedy("raise feeds.memoryMebibytes, or set feeds.resources")
    } else {
        CheckFinding::ok(AREA, format!("about {all} of JSON in total; feeds may use {room}"))
    });
    findings
}

fn finding(item: &CachedResource, objects: u64, bytes: u64) -> CheckFinding {
    let part = if item.selector.is_some() { " of this node" } else { "" };
    let (name, size) = (item.gvr.group_resource(), mebibytes(bytes));
    CheckFinding::ok(AREA, format!("{name}{part}: {objects} objects, about {size}"))
}

/// Measures a resource; returns `None` if it may not be read.
async fn size(client: &UpstreamClient, item: &CachedResource) -> Result<Option<ResourceSize>, UpstreamError> {
    let selector = item.selector.as_ref().map(|selector| format!("&fieldSelector={}", selector.replace('=', "%3D")));
    let selected = selector.unwrap_or_default();
    let path = item.gvr.path();
    let fetch = async |limit: usize, accept: &str| match client
        .fetch(UpstreamRequestCause::List, &format!("{path}?limit={limit}{selected}"), accept)
        .await
    {
        Ok((_, body)) => Ok(Some(body)),
        Err(error) if error.code().is_some_and(|code| code < 500) => Ok(None),
        Err(error) => Err(error),
    };
    let Some(first) = fetch(1, METADATA_LIST).await? else { return Ok(None) };
    let Some(full) = fetch(SAMPLE, "application/json").await? else { return Ok(None) };
    Ok(Some(measured(&first, &full)))
}

fn measured(first: &[u8], full: &[u8]) -> ResourceSize {
    let [first, full] = [first, full].map(|body| serde_json::from_slice::<JsonListPage<'_>>(body).unwrap_or_default());
    let sampled = full.items.len() as u64;
    let bytes = full.items.iter().map(|object| object.get().len() as u64).sum::<u64>().checked_div(sampled);
    // With a selector, upstream returns no count: there are at least as many objects as were sent.
    let counted = first.metadata.remaining_item_count.map(|left| left.unsigned_abs() + first.items.len() as u64);
    let is_whole = first.metadata.continue_.is_none_or(|token| token.is_empty());
    let objects = counted.unwrap_or(if is_whole { first.items.len() as u64 } else { sampled });
    ResourceSize { objects, bytes: bytes.unwrap_or_default() }
}

fn mebibytes(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

/// Reports the cost of a fleet of proxies for upstream while nothing changes. Each has up to `feeds` upstream watches
/// for cached resources, and `own` others: definitions and RBAC.
pub fn cost(nodes: u64, feeds: u64, own: u64) -> CheckFinding {
    let each = feeds + own;
    let streams = nodes * each;
    let message = format!(
        "{} prox{} × up to {each} watch{} = {streams} upstream watches; idle load: no requests, {} KiB/min of bookmarks",
        nodes,
        if nodes == 1 { "y" } else { "ies" },
        if each == 1 { "" } else { "es" },
        (streams * BOOKMARK_BYTES) >> 10
    );
    CheckFinding::ok("cost", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_count_uses_remaining_item_count() {
        let first = br#"{"metadata":{"continue":"x","remainingItemCount":41},"items":[{}]}"#;
        let full = br#"{"metadata":{},"items":[{"a":1},{"a":100}]}"#;
        assert_eq!(measured(first, full), ResourceSize { objects: 42, bytes: 8 });
        let selected = br#"{"metadata":{"continue":"x"},"items":[{}]}"#;
        assert_eq!(measured(selected, full).objects, 2);
        assert_eq!(measured(br#"{"metadata":{},"items":[]}"#, br#"{"items":[]}"#), ResourceSize::default());
    }

    #[test]
    fn fleet_cost_is_proxies_times_watches() {
        let finding = cost(1_000, 5, 2).message;
        assert!(finding.contains("1000 proxies × up to 7 watches = 7000 upstream watches"), "{finding}");
    }
}
