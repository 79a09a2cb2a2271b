//! The limit of the machine: servers that only send one frame to all clients. `make figures` measures them next to the
//! apiserver and the proxy. The difference is the proxy's overhead beyond its codec, TLS and the kernel.
//!
//! ```text
//! apiserver ─► Feed (one watch of JSON) ─► hyper   HTTP/1.1 and HTTP/2 by hyper, one body for each watch
//!                                          h2      the h2 crate; frames are joined, and written once for all streams
//!                                          socket  chunked HTTP/1.1 by hand: TLS on a bare socket
//! apiserver ◄─► forward                            bytes from one TLS connection to another, without parsing
//! ```
//!
//! Requests are not parsed further: a watch receives every event from now on, whatever its parameters, and any other
//! request an empty list. So the servers have no other use.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "scripts read what it says")]

mod feed;
mod gathered;
mod of_forward;
mod of_h2;
mod of_hyper;
mod of_socket;
mod tls;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use self::feed::Feed;
use self::of_forward::Target;

/// The allocator of the proxy.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
struct Arguments {
    server: Server,
    /// The apiserver that is watched, and how.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// The collection that is watched.
    #[arg(long, default_value = "/api/v1/pods")]
    path: String,
    /// Where the certificate goes that clients must trust.
    #[arg(long)]
    certificate_out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Server {
    Hyper,
    H2,
    Socket,
    Forward,
}

/// Source of the responses.
#[derive(Clone)]
enum Served {
    Events(Arc<Feed>),
    Forwarded(Target),
}

fn main() -> Result<(), Failure> {
    // `cargo bench` runs every bench target.
    if std::env::args().any(|argument| argument == "--bench") {
        println!("a server for `make figures`, not a benchmark");
        return Ok(());
    }
    let arguments = Arguments::parse();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(arguments))
}

async fn serve(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { server, kubeconfig, path, certificate_out } = arguments;
    let protocols: &[&[u8]] = match server {
        Server::Hyper => &[b"h2", b"http/1.1"],
        Server::H2 | Server::Forward => &[b"h2"],
        Server::Socket => &[b"http/1.1"],
    };
    let (config, certificate) = tls::config(protocols)?;
    std::fs::write(certificate_out, certificate)?;
    let served = match server {
        Server::Forward => Served::Forwarded(Target::of(&kubeconfig)?),
        Server::Hyper | Server::H2 | Server::Socket => Served::Events(Feed::follow(&kubeconfig, &path).await?),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("serving on https://{}", listener.local_addr()?);
    let acceptor = TlsAcceptor::from(config);
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (acceptor, served) = (acceptor.clone(), served.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(socket).await else { return };
            match (served, server) {
                (Served::Forwarded(target), _) => of_forward::connection(stream, target).await,
                (Served::Events(feed), Server::Hyper) => of_hyper::connection(stream, feed).await,
                (Served::Events(feed), Server::H2) => of_h2::connection(stream, feed).await,
                (Served::Events(feed), _) => of_socket::connection(stream, feed).await,
            }
        });
    }
}

/// The response to every request that is not a watch.
fn list(feed: &Arc<Feed>) -> String {
    let version = feed.version();
    format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}},"items":[]}}"#)
}

/// Whether the request is a watch.
fn is_watch(query: &str) -> bool {
    query.contains("watch=true")
}
