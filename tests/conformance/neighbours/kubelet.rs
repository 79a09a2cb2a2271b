use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::stream;
use http::Response;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::bed::{Http, Plane};

/// A node whose pod logs are endless: the same line, as fast as the client reads. It serves `logs -f`.
pub struct Kubelet {
    sent: Arc<AtomicU64>,
    /// The log path of its only pod.
    pub log: String,
    server: JoinHandle<()>,
}

const LINES: &[u8] = &[b'z'; 16 << 10];
const UNSENT_BYTES: u32 = 64 << 10;

impl Kubelet {
    pub async fn start(plane: &Plane) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Without this limit, the kernel buffers megabytes here for each unread log.
        socket.set_send_buffer_size(UNSENT_BYTES).expect("a small buffer");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let listener = socket.listen(1024).expect("it listens");
        let port = listener.local_addr().expect("an address").port();
        let (tls, sent) = (TlsAcceptor::from(Arc::new(tls(plane))), Arc::<AtomicU64>::default());
        let counter = sent.clone();
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (tls, counter) = (tls.clone(), counter.clone());
                tokio::spawn(async move {
                    let Ok(socket) = tls.accept(socket).await else { return };
                    let service = service_fn(|_| {
                        let counter = counter.clone();
                        let lines = std::iter::repeat_with(move || {
                            counter.fetch_add(LINES.len() as u64, Ordering::Relaxed);
                            Ok::<_, Infallible>(Frame::data(Bytes::from_static(LINES)))
                        });
                        async move { Ok::<_, Infallible>(Response::new(StreamBody::new(stream::iter(lines)))) }
                    });
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        let log = join(&plane.direct(), port).await;
        Self { sent, log, server }
    }

    /// The number of bytes that it has sent.
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Creates the node and a pod on it. Returns the path of the pod's log.
async fn join(direct: &Http, port: u16) -> String {
    direct.create("/api/v1/nodes", json!({"metadata": {"name": "talker"}})).await;
    let addresses = json!([{"type": "InternalIP", "address": "127.0.0.1"}]);
    let status = json!({"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}});
    direct.patch("/api/v1/nodes/talker/status", json!({"status": status})).await;
    let containers = json!([{"name": "c", "image": "i"}]);
    let spec = json!({"nodeName": "talker", "containers": containers, "automountServiceAccountToken": false});
    direct.create("/api/v1/namespaces/t1/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    direct.create("/api/v1/namespaces/t1/pods", json!({"metadata": {"name": "talker"}, "spec": spec})).await;
    "/api/v1/namespaces/t1/pods/talker/log?follow=true".to_owned()
}

/// Uses the test bed's kubelet certificate, which the apiserver trusts.
fn tls(plane: &Plane) -> ServerConfig {
    let certificate = CertificateDer::from_pem_file(plane.dir.join("kubelet.crt")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(plane.dir.join("kubelet.key")).expect("a key");
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring has them")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("they belong together")
}
