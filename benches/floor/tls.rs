use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;

use super::Failure;

/// TLS as in the proxy, with AES-128 first, which Go's server also prefers. Also returns the certificate as PEM.
pub(super) fn config(protocols: &[&[u8]]) -> Result<(Arc<ServerConfig>, String), Failure> {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| !suite.suite().as_str().is_some_and(|name| name.contains("AES_128")));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())?;
    config.ignore_client_order = true;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok((Arc::new(config), made.cert.pem()))
}
