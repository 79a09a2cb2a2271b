use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::PeerCertChain;
use crate::net::{Peer, PeerAddress};

/// Where a request comes from.
#[derive(Debug, Clone)]
pub struct RequestSender {
    /// The certificates that the sender has the key of. Who issued them is looked at once for a connection.
    pub certificates: Option<Arc<PeerCertChain>>,
    /// The address that pays for questions about the sender.
    pub address: Option<IpAddr>,
}

impl RequestSender {
    /// The sender of the requests that come by this connection.
    pub fn of(peer: &Peer) -> Self {
        let address = match peer.address {
            PeerAddress::Tcp(address) => address.ip(),
            // All of them share a budget, as if they came from one machine, which they do.
            PeerAddress::Unix { .. } => Ipv4Addr::UNSPECIFIED.into(),
        };
        let shown = |chain: &Arc<[_]>| peer.connection.keep(|| PeerCertChain::new(chain.clone()));
        Self { certificates: peer.certificates.as_ref().map(shown), address: Some(address) }
    }
}
