/// The annotation with the time at which an object was written, in nanoseconds of the writer's own clock. A writer that
/// also watches can measure the delivery time of an event.
pub const WRITTEN_AT: &str = "kube-fanout.io/written-at-ns";
