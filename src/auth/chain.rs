use std::sync::Arc;

use rustls::pki_types::CertificateDer;

/// A certificate chain, leaf first. Its sender has the leaf's key; nothing else is known.
pub type Chain = Arc<[CertificateDer<'static>]>;
