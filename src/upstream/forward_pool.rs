/// Which connections a passed-through request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardPool {
    /// Answered within seconds: many share a connection.
    Short,
    /// Read for as long as the client likes: a connection of its own.
    Stream,
    /// Becomes a byte tunnel: a connection of its own, used once.
    Tunnel,
}
