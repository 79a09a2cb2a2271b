/// The kind of connections that a forwarded request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardPool {
    /// The request takes seconds at most: many requests share a connection.
    Short,
    /// The response lasts as long as the client reads: one connection each.
    Stream,
    /// The connection becomes a byte tunnel: one connection each, used once.
    Tunnel,
}
