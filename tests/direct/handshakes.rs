//! A flood of connections or TLS handshakes from one address does not hold up clients from other addresses, and new
//! connections wait instead of being refused (R-THREAT-10).

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use kube_fanout::net::{ClientCertificates, ConnectionLimits, Listener, ListenerTls};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::direct::{Dir, Listening, Trust, within};

/// The flooding address, and another one.
const FLOOD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// Less than a second, the TCP retry interval of a connection for which the backlog had no room.
const SOON: Duration = Duration::from_millis(900);

/// A listener with TLS.
struct Gateway {
    _listening: Listening,
    address: SocketAddr,
    trust: Trust,
    _dir: Dir,
}

impl Gateway {
    fn open() -> Self {
        let (dir, names) = (Dir::new(), vec!["127.0.0.1".to_owned()]);
        let tls = ListenerTls::self_signed(names, ClientCertificates::Requested).expect("a certificate");
        let trust = Trust::in_file(&dir.file("ca.pem", tls.self_signed_pem().expect("we made it")));
        let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = listener.local_address().expect("it is bound").to_string().parse().expect("an address");
        // No timeout on slow machines, because the test asserts which connections are accepted, and in which order.
        let limits = ConnectionLimits { handshake_max: Duration::from_secs(3600), ..ConnectionLimits::default() };
        Self { _listening: Listening::start(listener, Some(tls), limits), address, trust, _dir: dir }
    }

    fn name(&self) -> ServerName<'static> {
        self.address.ip().into()
    }

    /// A connection from this address. The kernel establishes it without the listener.
    fn connect(&self, from: Ipv4Addr) -> StdTcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from((from, 0)).into()).expect("an address of this machine");
        socket.connect(&self.address.into()).expect("it listens");
        socket.set_nonblocking(true).expect("it can be");
        socket.into()
    }

    /// A connection with an unfinished handshake.
    fn begun(&self, from: Ipv4Addr) -> StdTcpStream {
        let mut client = ClientConnection::new(self.trust.config(), self.name()).expect("a client");
        let mut hello = Vec::new();
        client.write_tls(&mut hello).expect("in memory");
        let mut io = self.connect(from);
        io.write_all(&hello).expect("it has room");
        io
    }

    async fn handshake(&self, from: Ipv4Addr) -> TlsStream<TcpStream> {
        let io = TcpStream::from_std(self.connect(from)).expect("it is polled");
        let shaken = TlsConnector::from(Arc::clone(&self.trust.config())).connect(self.name(), io);
        within("a handshake", shaken).await.expect("it is accepted")
    }
}

/// Whether the server has sent anything.
fn is_answered(io: &StdTcpStream) -> bool {
    io.peek(&mut [0; 1]).is_ok_and(|bytes| bytes > 0)
}

/// No connection is accepted yet, and none has to be retried.
#[tokio::test]
async fn connection_burst_waits_in_accept_queue() {
    const COME: usize = 1_000;
    let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let address = listener.local_address().expect("it is bound").to_string().parse().expect("an address");
    let came: Vec<_> = (0..COME).map_while(|_| StdTcpStream::connect_timeout(&address, SOON).ok()).collect();
    assert_eq!(came.len(), COME);
}

/// Everything runs on one thread, so no request is answered before all have been sent. While the new connection is
/// accepted, half of the thread's time goes to the flood. The clock also counts time in which other programs run.
#[tokio::test]
async fn handshake_flood_does_not_delay_other_source() {
    const HANDSHAKES: usize = 300;
    let gateway = Gateway::open();
    let flood: Vec<_> = (0..HANDSHAKES).map(|_| gateway.begun(FLOOD)).collect();
    gateway.handshake(OTHER).await;
    let before = flood.iter().filter(|io| is_answered(io)).count();
    assert!(before <= HANDSHAKES / 2, "{before} of the flood went before");
    for io in flood {
        let io = TcpStream::from_std(io).expect("it is polled");
        within("an answer", io.readable()).await.expect("no connection is refused");
        assert!(is_answered(&io.into_std().expect("it is ours")));
    }
}

/// Nodes behind one address reconnect together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_handshakes_of_one_source_all_succeed() {
    const NODES: usize = 2_000;
    let gateway = Gateway::open();
    let fleet = join_all((0..NODES).map(|_| gateway.handshake(FLOOD))).await;
    assert_eq!(fleet.len(), NODES);
}
