/// The number of events that a reader has not processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventsWaiting {
    Exactly(usize),
    /// The lane has this many unprocessed events, and the ring has others before them.
    AtLeast(usize),
    /// The reader's position has left the history, of which the lane still holds this many events.
    Lost(usize),
}
