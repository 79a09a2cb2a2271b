//! Endless TLS handshakes from one address, and new clients from another.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Answers, EVERY, Field, Latencies, allow, attack, ratio_max, seconds};
use crate::bed::{Target, log_line, within};

/// The addresses of the flood and of other clients.
pub const FLOOD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
pub const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// The number of concurrent connections of the flood.
const AT_ONCE: usize = 500;
/// The minimum number of newcomers that the proxy admits, however busy the machine is.
pub const NEWCOMERS_MIN: usize = 6;

/// Connects from this address.
async fn connect(target: &Target, from: Ipv4Addr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let stream = socket.connect(target.host().parse().expect("an address")).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn name(target: &Target) -> ServerName<'static> {
    let address: SocketAddr = target.host().parse().expect("an address");
    address.ip().into()
}

/// Performs a complete TLS handshake.
pub async fn shake(target: &Target, connector: &TlsConnector, from: Ipv4Addr) -> std::io::Result<TlsStream<TcpStream>> {
    let io = connect(target, from).await?;
    connector.connect(name(target), io).await
}

/// Opens a connection, and sends a request that is answered from the cache.
async fn try_come(target: &Target, connector: &TlsConnector, path: &str, from: Ipv4Addr) -> std::io::Result<[u8; 12]> {
    let mut io = shake(target, connector, from).await?;
    let (host, token) = (target.host(), &target.identity.token);
    let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\r\n");
    io.write_all(head.as_bytes()).await?;
    let mut status = [0; 12];
    io.read_exact(&mut status).await?;
    Ok(status)
}

/// Does so until it is answered. From an address that others flood, a connection may be closed before its caller is
/// known; clients then open another one.
async fn come(target: &Target, connector: &TlsConnector, path: &str, from: Ipv4Addr) {
    let status = loop {
        match try_come(target, connector, path, from).await {
            Err(_) if from == FLOOD => tokio::time::sleep(EVERY).await,
            answered => break answered.expect("a new client is accepted"),
        }
    };
    assert_eq!(&status, b"HTTP/1.1 200");
}

/// Sends a prepared `ClientHello`, which costs the sender nothing, and waits for the response.
async fn begin(target: &Target, hello: &[u8]) -> std::io::Result<()> {
    let mut io = connect(target, FLOOD).await?;
    io.write_all(hello).await?;
    io.read_exact(&mut [0; 1]).await.map(drop)
}

/// Newcomers in their own thread, each with a new connection, until the attack is over. `every` is the pause after each
/// of them.
pub async fn newcomers(target: &Target, path: &str, from: Ipv4Addr, every: Duration) -> Latencies {
    let (target, path, until) = (target.clone(), path.to_owned(), Arc::new(AtomicBool::new(false)));
    let came = Arc::new(AtomicUsize::new(0));
    let (over, count) = (until.clone(), came.clone());
    let thread = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let connector = TlsConnector::from(Arc::new(target.tls()));
            let mut seen = Vec::new();
            while !over.load(Ordering::SeqCst) {
                let began = Instant::now();
                within("a new client is accepted", come(&target, &connector, &path, from)).await;
                seen.push(began.elapsed().as_secs_f64() * 1e3);
                count.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(every).await;
            }
            seen.sort_by(f64::total_cmp);
            Latencies(seen)
        })
    });
    tokio::time::sleep(seconds()).await;
    allow(|| came.load(Ordering::SeqCst) >= NEWCOMERS_MIN).await;
    until.store(true, Ordering::SeqCst);
    tokio::task::spawn_blocking(move || thread.join()).await.expect("joined").expect("they were accepted")
}

/// Work for a flood is limited to its turns, so that a newcomer from another address waits for one of them at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn handshake_flood_does_not_delay_other_addresses() {
    let Some(field) = Field::lay("").await else { return };
    let target = field.healthy();
    let connector = TlsConnector::from(Arc::new(target.tls()));
    let mut client = ClientConnection::new(Arc::new(target.tls()), name(&target)).expect("a client");
    let mut hello = Vec::new();
    client.write_tls(&mut hello).expect("in memory");
    let path = format!("{}?resourceVersion=0", field.pod);
    newcomers(&target, &path, OTHER, EVERY).await;
    for is_whole in [true, false] {
        let what = if is_whole { "whole handshakes" } else { "handshakes that are only begun" };
        let alone = newcomers(&target, &path, OTHER, EVERY).await;
        let (over, answers) = (AtomicBool::new(false), Answers::default());
        let coming = async {
            let seen = newcomers(&target, &path, OTHER, EVERY).await;
            allow(|| answers.count() > AT_ONCE).await;
            over.store(true, Ordering::SeqCst);
            seen
        };
        let blow = |_, _, answers: Answers| async {
            let is_answered = if is_whole {
                shake(&target, &connector, FLOOD).await.is_ok()
            } else {
                begin(&target, &hello).await.is_ok()
            };
            answers.put(if is_answered { "answered" } else { "ended" });
            drop(answers);
        };
        let cpu = field.proxy.cpu_seconds();
        let (under, ()) = tokio::join!(coming, attack(AT_ONCE, &over, &answers, blow));
        let cpu = field.proxy.cpu_seconds() - cpu;
        let ratio = under.at(0.99) / alone.at(0.99);
        log_line(&format!(
            "{what}: alone {alone}; under attack {under}; p99 × {ratio:.1}; {cpu:.1} s of CPU; {answers}"
        ));
        field.proxy.assert_sound();
        assert!(under.0.len() >= NEWCOMERS_MIN, "{what}: new clients were not accepted");
        assert!(answers.count() > AT_ONCE, "{what}: there was no flood");
        assert!(ratio_max() == 0.0 || ratio <= ratio_max(), "{what}: p99 × {ratio:.1}");
    }
}
