/// The kind of connections that a passed-through request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardPool {
    /// Takes seconds at most: many requests share a connection.
    Short,
    /// Lasts as long as the client reads: one connection each.
    Stream,
    /// Becomes a byte tunnel: one connection each, used once.
    Tunnel,
}
