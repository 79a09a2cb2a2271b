//! A relay that terminates TLS on both sides, so that it sees plain bytes and breaks connections as planned.
//!
//! Client certificates do not pass the relay; tokens do.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::Acceptor;
use socket2::Socket;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};

use super::framing::{Direction, Framing};
use super::plan::{Kind, Place, Plans, Side};
use super::pump::{Over, Pump};
use super::tally::Tally;
use crate::bed::{Identity, Target, eventually};

/// A relay in front of one server.
pub struct Relay {
    url: String,
    ca: PathBuf,
    shared: Arc<Shared>,
    accepting: AbortHandle,
}

/// The shared state of a relay's connections.
pub struct Shared {
    pub side: Side,
    to: Target,
    /// TLS configurations: HTTP/2 with HTTP/1.1, and HTTP/1.1 only.
    servers: [Arc<ServerConfig>; 2],
    pub plans: Mutex<Plans>,
    pub tally: Mutex<Tally>,
    pub armed: AtomicBool,
    /// The number of faults that are still in effect.
    pub lasting: AtomicUsize,
    latest: Latest,
    /// The number of watch frames that have passed.
    pub events: AtomicUsize,
}

/// The time of the last fault of any relay on either side of one proxy.
#[derive(Clone, Default)]
pub struct Latest(Arc<Mutex<Option<Instant>>>);

/// The time after a fault in which its effects may persist.
const MENDING: Duration = Duration::from_secs(1);

impl Shared {
    /// Records a fault that took effect.
    pub fn hit(&self, kind: Kind, place: Place, offset: usize) {
        let now = Instant::now();
        let before = self.latest.0.lock().expect("not poisoned").replace(now);
        let is_mending = before.is_some_and(|before| now - before < MENDING);
        let is_together = is_mending || self.lasting.load(Ordering::Relaxed) > 0;
        self.tally.lock().expect("not poisoned").hit(kind, place, offset, is_together);
    }
}

/// The shared state of both directions of a connection.
pub struct Link {
    pub shared: Arc<Shared>,
    /// Whether the connection carries the proxy's own reads.
    pub is_its_own: bool,
    /// The newest stream that the client has opened.
    pub newest: AtomicU32,
    /// Ends the connection.
    pub doom: Notify,
}

/// One in this many upstream connections uses HTTP/1.1, as with load balancers that support nothing else.
const H1_ONE_IN: u64 = 3;
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The time between a FIN and the close of the socket, because a close with unread data would send an RST.
const LINGER: Duration = Duration::from_millis(30);

impl Relay {
    pub async fn start(side: Side, to: Target, seed: u64, latest: &Latest, dir: &Path) -> Self {
        let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let ca = dir.join(format!("relay-{side:?}.pem"));
        std::fs::write(&ca, certificate.cert.pem()).expect("a file");
        let server = |protocols: &[&[u8]]| {
            let key = PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).expect("PKCS #8");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let mut config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .expect("ring has them")
                .with_no_client_auth()
                .with_single_cert(vec![certificate.cert.der().clone()], key)
                .expect("they belong together");
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(config)
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("https://{}", listener.local_addr().expect("it is bound"));
        let shared = Arc::new(Shared {
            side,
            to,
            servers: [server(&[b"h2", b"http/1.1"]), server(&[b"http/1.1"])],
            plans: Mutex::new(Plans::new(seed, side)),
            tally: Mutex::new(Tally::default()),
            armed: AtomicBool::new(false),
            lasting: AtomicUsize::new(0),
            latest: latest.clone(),
            events: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Self { url, ca, shared, accepting }
    }

    /// The relay as a server, with this caller's credentials.
    pub fn target(&self, identity: &Identity) -> Target {
        Target { url: self.url.clone(), ca: Some(self.ca.clone()), identity: identity.clone() }
    }

    /// Enables faults.
    pub fn arm(&self) {
        self.shared.plans.lock().expect("not poisoned").begin();
        self.shared.armed.store(true, Ordering::Relaxed);
    }

    /// Disables faults, and returns when none is in effect.
    pub async fn disarm(&self) {
        self.shared.armed.store(false, Ordering::Relaxed);
        let lasting = &self.shared.lasting;
        eventually("faults are over", async || (lasting.load(Ordering::Relaxed) == 0).then_some(())).await;
    }

    /// The number of watch events that have passed.
    pub fn events(&self) -> usize {
        self.shared.events.load(Ordering::Relaxed)
    }

    /// A kind, or a kind at one of its places, that occurred less often than required.
    pub fn lacks(&self, of_kind_min: u64, at_place_min: u64) -> Option<String> {
        let (tally, side) = (self.tally(), self.shared.side);
        side.kinds().iter().find_map(|&kind| {
            let places = Place::all(side, kind).into_iter();
            let lacking = places.map(|place| (place, tally.at(kind, place))).find(|(_, hits)| *hits < at_place_min);
            let of_kind = tally.of(kind);
            match lacking {
                _ if of_kind < of_kind_min => Some(format!("{kind:?} was hit {of_kind} times")),
                Some((place, hits)) => Some(format!("{kind:?} was hit {hits} times at {place:?}")),
                None => None,
            }
        })
    }

    pub fn tally(&self) -> Tally {
        self.shared.tally.lock().expect("not poisoned").clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    for number in 0_u64.. {
        let Ok((client, _)) = listener.accept().await else { return };
        let speaks_h2 = shared.side != Side::Upstream || !number.is_multiple_of(H1_ONE_IN);
        drop(tokio::spawn(relay(client, usize::from(!speaks_h2), shared.clone())));
    }
}

/// Errors are not reported, because both sides notice that the connection is closed.
async fn relay(client: TcpStream, offer: usize, shared: Arc<Shared>) -> io::Result<()> {
    let server = TcpStream::connect(shared.to.host()).await?;
    for side in [&client, &server] {
        side.set_nodelay(true)?;
    }
    let sockets = [raw(&client)?, raw(&server)?];
    let hello = timeout(HANDSHAKE_MAX, LazyConfigAcceptor::new(Acceptor::default(), client)).await??;
    // The proxy forwards requests over HTTP/1.1 (`upstream::pool`).
    let is_its_own = hello.client_hello().alpn().is_some_and(|mut offered| offered.any(|name| name == b"h2"));
    let client = timeout(HANDSHAKE_MAX, hello.into_stream(shared.servers[offer].clone())).await??;
    let is_h2 = client.get_ref().1.alpn_protocol() == Some(b"h2");
    let mut tls = shared.to.tls();
    tls.alpn_protocols = vec![if is_h2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let name = ServerName::try_from("127.0.0.1").expect("an address");
    let server = timeout(HANDSHAKE_MAX, TlsConnector::from(Arc::new(tls)).connect(name, server)).await??;
    let ((from_client, to_client), (from_server, to_server)) = (tokio::io::split(client), tokio::io::split(server));
    let link = Arc::new(Link { shared, is_its_own, newest: AtomicU32::new(0), doom: Notify::new() });
    let pump = |direction| (link.clone(), direction, Framing::new(is_h2, direction));
    let down = Pump::new(pump(Direction::Down), from_server, to_client).run();
    let up = Pump::new(pump(Direction::Up), from_client, to_server).run();
    let over = tokio::select! {
        over = async { tokio::try_join!(Box::pin(down), Box::pin(up)) } => over.err(),
        () = link.doom.notified() => Some(Over::Fault(Kind::Cut, Duration::ZERO)),
    };
    end(over, &sockets).await;
    Ok(())
}

/// Ends both connections as the fault demands.
async fn end(over: Option<Over>, sockets: &[Socket; 2]) {
    let Some(Over::Fault(kind, time)) = over else { return };
    match kind {
        Kind::Cut => {
            sockets.iter().for_each(|socket| drop(socket.shutdown(std::net::Shutdown::Write)));
            sleep(LINGER).await;
        }
        _ => {
            sleep(time).await;
            sockets.iter().for_each(|socket| drop(socket.set_linger(Some(Duration::ZERO))));
        }
    }
}

/// A second handle of the same socket.
fn raw(stream: &TcpStream) -> io::Result<Socket> {
    Ok(Socket::from(stream.as_fd().try_clone_to_owned()?))
}
