use kubeapi::ResourceVersion;

/// The sizes of one feed, for metrics and admin pages.
#[derive(Debug, Clone, Copy, Default)]
pub struct CacheStats {
    pub objects: usize,
    /// The number of bytes of all object bodies.
    pub object_bytes: usize,
    pub events: usize,
    pub event_bytes: usize,
    /// The number of bytes that were derived from objects and events, and kept.
    pub derived_bytes: usize,
    /// The number of bytes of everything of the feed that is alive, regardless of its holder.
    pub memory_bytes: usize,
    /// The oldest version that a watch may start from.
    pub floor: ResourceVersion,
    pub progress: ResourceVersion,
    /// The number of lanes, without the lane of all events.
    pub lanes: usize,
    /// The number of seconds between the oldest and the newest event.
    pub span_seconds: f64,
}
