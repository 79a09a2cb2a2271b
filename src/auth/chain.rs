use std::sync::Arc;

use rustls::pki_types::CertificateDer;

/// A certificate chain, leaf first. Its sender has proven possession of the leaf's key; nothing else is verified.
pub type Chain = Arc<[CertificateDer<'static>]>;
