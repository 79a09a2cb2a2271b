//! The `net` layer alone: a listener whose handler records its peers.

use std::convert::Infallible;
use std::sync::Arc;

use base::{BackgroundTasks, DrainTrigger};
use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use kube_fanout::net::{self, ConnectionLimits, ConnectionPeer, ListenAddress, Listener, ListenerTls, RequestBody};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{Client, Place};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A listener that answers every request. `/leave` closes its connection; the response to `/stream` stays open and
/// carries what [`say`](Self::say) sends.
pub struct Listening {
    address: ListenAddress,
    seen: Arc<Seen>,
    tasks: BackgroundTasks,
    _drain: DrainTrigger,
}

#[derive(Default)]
struct Seen {
    peers: Mutex<Vec<(String, ConnectionPeer)>>,
    streams: Mutex<Vec<mpsc::UnboundedSender<Bytes>>>,
}

impl Seen {
    fn answer(&self, peer: ConnectionPeer, request: &Request<RequestBody>) -> Response<Body> {
        let path = request.uri().path();
        if path == "/leave" {
            peer.connection.close();
        } else {
            peer.connection.authenticated(None);
        }
        self.peers.lock().push((path.to_owned(), peer));
        if path != "/stream" {
            return Response::new(Full::from("here").boxed_unsync());
        }
        let (sender, mut lines) = mpsc::unbounded_channel();
        self.streams.lock().push(sender);
        let next = poll_fn(move |cx| lines.poll_recv(cx).map(|text| text.map(|text| Ok(Frame::data(text)))));
        Response::new(StreamBody::new(next).boxed_unsync())
    }
}

impl Listening {
    pub fn start(listener: Listener, tls: Option<ListenerTls>, limits: ConnectionLimits) -> Self {
        let address = listener.local_address().expect("it is bound");
        let (tasks, seen) = (BackgroundTasks::new(), Arc::<Seen>::default());
        let (drain, watch) = DrainTrigger::new();
        let here = seen.clone();
        let handle = move |peer: ConnectionPeer, request: Request<RequestBody>| {
            let answer = here.answer(peer, &request);
            async { answer }
        };
        tasks.spawn("listener", net::serve(listener, tls, limits, tasks.clone(), watch, handle));
        Self { address, seen, tasks, _drain: drain }
    }

    pub fn client(&self) -> Client {
        Client::to(match &self.address {
            ListenAddress::Tcp(address) => Place::Tcp(*address),
            ListenAddress::Unix(path) => Place::Unix(path.clone()),
        })
    }

    pub fn requests(&self) -> usize {
        self.seen.peers.lock().len()
    }

    /// The last peer that requested a path.
    pub fn last_peer(&self, path: &str) -> ConnectionPeer {
        let peers = self.seen.peers.lock();
        peers
            .iter()
            .rev()
            .find(|(requested, _)| requested == path)
            .map(|(_, peer)| peer.clone())
            .expect("a request arrived")
    }

    /// The certificate of the last peer that requested a path.
    pub fn certificate_at(&self, path: &str) -> Option<Vec<u8>> {
        self.last_peer(path).certificates.map(|chain| chain[0].to_vec())
    }

    /// Sends a text on every open stream.
    pub fn send_to_all(&self, text: &'static str) {
        self.seen.streams.lock().iter().for_each(|stream| drop(stream.send(Bytes::from(text))));
    }

    pub async fn stop(self) {
        self.tasks.join().await;
    }
}
