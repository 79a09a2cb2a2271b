/// How many events are waiting for a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventsWaiting {
    Exactly(usize),
    /// The lane holds so many, and there are others before them.
    AtLeast(usize),
    /// The reader's place has left the history, of which the lane holds so many.
    Lost(usize),
}
