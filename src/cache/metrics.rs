use metrics::{counter, describe_counter};

/// Describes the metrics of this module.
pub fn describe() {
    describe_counter!(
        "kube_fanout_watch_unchanged_events_total",
        "events not sent to watches that would show no change without the fields that they leave out"
    );
}

/// Counts events that one watch is not sent.
pub(super) fn unchanged(events: u64) {
    if events > 0 {
        counter!("kube_fanout_watch_unchanged_events_total").increment(events);
    }
}
