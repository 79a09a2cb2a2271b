use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::PeerCertChain;
use crate::net::{Peer, PeerAddress};

/// The origin of a request.
#[derive(Debug, Clone)]
pub struct RequestSender {
    /// The certificates whose key the sender has. They are verified once per connection.
    pub certificates: Option<Arc<PeerCertChain>>,
    /// The address whose limit the sender's token reviews count against.
    pub address: Option<IpAddr>,
}

impl RequestSender {
    /// The sender of the requests on this connection.
    pub fn of(peer: &Peer) -> Self {
        let address = match peer.address {
            PeerAddress::Tcp(address) => address.ip(),
            // All unix socket peers share a limit, because they run on one machine.
            PeerAddress::Unix { .. } => Ipv4Addr::UNSPECIFIED.into(),
        };
        let shown = |chain: &Arc<[_]>| peer.connection.keep(|| PeerCertChain::new(chain.clone()));
        Self { certificates: peer.certificates.as_ref().map(shown), address: Some(address) }
    }
}
