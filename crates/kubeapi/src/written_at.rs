/// The annotation that says when an object was written, in nanoseconds of the writer's own clock: a writer that also
/// watches can tell how long an event was under way.
pub const WRITTEN_AT: &str = "kube-fanout.io/written-at-ns";
