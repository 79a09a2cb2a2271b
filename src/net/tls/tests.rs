use rustls::client::{ResolvesClientCert, Resumption};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SignatureScheme, SupportedProtocolVersion};
use tokio_rustls::TlsConnector;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::net::tls_stream::{self, TlsRecordReader};

type Pair = rcgen::CertifiedKey<rcgen::KeyPair>;

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// A client that sends a certificate, whether or not it has the key.
#[derive(Debug)]
struct Shows(Arc<CertifiedKey>);

impl ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn pair() -> Pair {
    rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap()
}

fn shows(certificate: &Pair, key: &Pair) -> Arc<Shows> {
    let key = PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
    let key = ring::sign::any_supported_type(&key.into()).unwrap();
    Arc::new(Shows(Arc::new(CertifiedKey::new(vec![certificate.cert.der().clone()], key))))
}

fn client(
    server: &ListenerTls,
    version: &'static SupportedProtocolVersion,
    shows: Option<Arc<Shows>>,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server.self_signed_pem().unwrap().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_protocol_versions(&[version]).with_root_certificates(roots);
    let mut config = match shows {
        Some(shows) => builder.with_client_cert_resolver(shows),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::in_memory_sessions(8);
    Arc::new(config)
}

/// Makes one connection, in memory. Returns the kind of the handshake and the server's stream if both sides succeeded.
async fn shake(
    server: &ListenerTls,
    client: &Arc<ClientConfig>,
) -> std::io::Result<(HandshakeKind, TlsStream<tokio::io::DuplexStream>)> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (near, far) = tokio::io::duplex(1 << 16);
    let connect = async {
        let mut near = TlsConnector::from(client.clone()).connect("localhost".try_into().unwrap(), near).await?;
        // In TLS 1.3, tickets and the refusal of a client certificate arrive after the handshake.
        near.read_u8().await?;
        std::io::Result::Ok(near.get_ref().1.handshake_kind().unwrap())
    };
    let accept = async {
        let mut far = server.acceptor().accept(far).await?;
        far.write_u8(1).await?;
        far.flush().await?;
        std::io::Result::Ok(far)
    };
    let (kind, far) = tokio::join!(connect, accept);
    Ok((kind?, far?))
}

fn client_chain(stream: &TlsStream<tokio::io::DuplexStream>) -> Option<&[CertificateDer<'static>]> {
    stream.get_ref().1.peer_certificates()
}

fn server(clients: ClientCertificates) -> ListenerTls {
    ListenerTls::self_signed(vec!["localhost".to_owned()], clients).unwrap()
}

#[tokio::test]
async fn client_certificate_is_optional_and_any_issuer_accepted() {
    let (server, pair) = (server(ClientCertificates::Requested), pair());
    for version in VERSIONS {
        let (_, stream) = shake(&server, &client(&server, version, Some(shows(&pair, &pair)))).await.unwrap();
        assert_eq!(client_chain(&stream), Some(&[pair.cert.der().clone()][..]), "{version:?}");
        let (_, stream) = shake(&server, &client(&server, version, None)).await.unwrap();
        assert_eq!(client_chain(&stream), None, "{version:?}");
    }
}

/// An event is encrypted once for each of its readers.
#[tokio::test]
async fn server_prefers_aes128_over_client_order() {
    let server = server(ClientCertificates::Ignored);
    for version in VERSIONS {
        let (_, stream) = shake(&server, &client(&server, version, None)).await.unwrap();
        let suite = stream.get_ref().1.negotiated_cipher_suite().unwrap().suite();
        assert!(is_aes_128(suite), "{suite:?}");
    }
}

#[tokio::test]
async fn client_certificate_without_private_key_is_refused() {
    let (server, stolen, own) = (server(ClientCertificates::Requested), pair(), pair());
    for version in VERSIONS {
        let client = client(&server, version, Some(shows(&stolen, &own)));
        assert!(shake(&server, &client).await.is_err(), "{version:?}");
    }
}

/// R-DOWNSTREAM-5: a chain that would be expensive to verify is refused before verification.
#[tokio::test]
async fn oversized_certificate_chain_fails_handshake() {
    let (server, pair) = (server(ClientCertificates::Requested), pair());
    let own = pair.cert.der();
    let of_bytes = |bytes: usize| CertificateDer::from(vec![0x30; bytes]);
    for (what, above, taken) in [
        ("as many as may be", vec![own.clone(); CHAIN_CERTIFICATES_MAX - 1], true),
        ("one more", vec![own.clone(); CHAIN_CERTIFICATES_MAX], false),
        ("some hundred", vec![own.clone(); 60], false),
        ("as large as may be", vec![of_bytes(CHAIN_BYTES_MAX - own.len())], true),
        ("a byte more", vec![of_bytes(CHAIN_BYTES_MAX - own.len() + 1)], false),
    ] {
        let key = shows(&pair, &pair).0.key.clone();
        let chain = std::iter::once(own.clone()).chain(above).collect();
        let shows = Arc::new(Shows(Arc::new(CertifiedKey::new(chain, key))));
        for version in VERSIONS {
            let shaken = shake(&server, &client(&server, version, Some(shows.clone()))).await;
            assert_eq!(shaken.is_ok(), taken, "{what}, {version:?}");
        }
    }
}

#[tokio::test]
async fn requesting_certificates_disables_session_resumption() {
    let pair = pair();
    for (clients, second) in
        [(ClientCertificates::Requested, HandshakeKind::Full), (ClientCertificates::Ignored, HandshakeKind::Resumed)]
    {
        let server = server(clients);
        for version in VERSIONS {
            let client = client(&server, version, Some(shows(&pair, &pair)));
            assert_eq!(shake(&server, &client).await.unwrap().0, HandshakeKind::Full, "{clients:?} {version:?}");
            assert_eq!(shake(&server, &client).await.unwrap().0, second, "{clients:?} {version:?}");
        }
    }
}

#[tokio::test]
async fn server_requests_no_certificate_when_ignored() {
    let (server, pair) = (server(ClientCertificates::Ignored), pair());
    for version in VERSIONS {
        let (_, stream) = shake(&server, &client(&server, version, Some(shows(&pair, &pair)))).await.unwrap();
        assert_eq!(client_chain(&stream), None, "{version:?}");
    }
}

#[test]
fn invalid_certificate_file_is_named_in_the_error() {
    let (one, other) = (pair(), pair());
    let (chain, key) = (one.cert.pem().into_bytes(), one.signing_key.serialize_pem().into_bytes());
    let paths = [PathBuf::from("tls.crt"), PathBuf::from("tls.key")];
    let read = |contents: [&[u8]; 2]| {
        let contents = contents.map(<[u8]>::to_vec);
        server_config(&paths, &contents, ClientCertificates::Ignored).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(read([&chain, &key]), Ok(()));
    for (contents, named) in [
        ([&b""[..], &key[..]], "cannot read tls.crt: no certificate"),
        ([&chain[..chain.len() / 2], &key[..]], "cannot read tls.crt: "),
        ([&chain[..], &b""[..]], "cannot read tls.key: "),
        ([&chain[..], &key[..key.len() / 2]], "cannot read tls.key: "),
        ([&chain[..], other.signing_key.serialize_pem().as_bytes()], "tls.key does not match tls.certificate ("),
    ] {
        let error = read(contents).expect_err(named);
        assert!(error.starts_with(named), "{error}");
    }
}

/// What is kept of a client that sends more than is read: one record, and not the beginning of the next.
#[tokio::test]
async fn tls_reader_starts_no_record_while_one_is_partly_read() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    const RECORD: usize = 16 << 10;
    let server = server(ClientCertificates::Ignored);
    for version in VERSIONS {
        let (near, far) = tokio::io::duplex(1 << 20);
        let client = TlsConnector::from(client(&server, version, None));
        let connect = client.connect("localhost".try_into().unwrap(), near);
        let accept =
            server.acceptor().accept(TlsRecordReader::of(far, Arc::<http2::RequestHeadBudget>::default().connection()));
        let (near, far) = tokio::join!(connect, accept);
        let (mut near, mut far) = (near.unwrap(), tls_stream::TlsStream::new(far.unwrap()));
        let sent: Vec<u8> = (0..=250).cycle().take(4 * RECORD).collect();
        near.write_all(&sent).await.unwrap();
        near.flush().await.unwrap();
        let mut seen = vec![0; sent.len()];
        for part in seen.chunks_mut(1_000) {
            far.read_exact(part).await.unwrap();
            assert!(far.is_between_records(), "{version:?}");
        }
        assert!(seen == sent, "{version:?}");
    }
}

#[test]
fn certificate_is_valid_from_not_before_until_not_after() {
    let made = rcgen::generate_simple_self_signed(vec!["fanout.example".to_owned()]).expect("a certificate");
    let validity = CertificateValidity::of_pem(made.cert.pem().as_bytes()).expect("one certificate");
    let CertificateValidity { not_before, not_after } = validity;
    let second = Duration::from_secs(1);
    assert_eq!(validity.check(not_before), Ok(()));
    assert_eq!(validity.check(not_after - second), Ok(()));
    let expired = validity.check(not_after).expect_err("it has expired").to_string();
    assert!(expired.starts_with("expired on ") && expired.contains("4096"), "{expired}");
    let early = validity.check(not_before - second).expect_err("it is not valid yet").to_string();
    assert!(early.starts_with("not valid before ") && early.contains("1975"), "{early}");
    assert_eq!(CertificateValidity::of_pem(b"half of"), None);
}
