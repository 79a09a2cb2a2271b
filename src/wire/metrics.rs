use metrics::{Unit, counter, describe_counter};

/// Describes the metrics of this module.
pub fn describe() {
    describe_counter!(
        "kube_fanout_reduced_bytes_total",
        Unit::Bytes,
        "bytes of fields left out of encoded bodies, which clients share"
    );
}

/// Counts the bytes of fields that were left out of a body.
pub(super) fn reduced(bytes: usize) {
    if bytes > 0 {
        counter!("kube_fanout_reduced_bytes_total").increment(bytes as u64);
    }
}
