/// The purpose of a review, which determines how old its result may be, and is part of the key of a cached result.
///
/// So a review for a lease is not coalesced with one for a request, which may wait in a longer queue, and a result that
/// is too old for requests is not used for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ReviewPurpose {
    /// A review for a request, which counts against its user's limit.
    Request,
    /// A review for a request whose path is no resource: discovery, metrics. Discovery above its limit is forwarded, so
    /// it does not use up the limit of other requests.
    NonResource,
    /// A review for a request of a downstream proxy that the cache does not answer.
    Proxy,
    /// A review for a lease of an open watch.
    Lease,
    /// A review for one namespace of a lease.
    Namespace,
}
