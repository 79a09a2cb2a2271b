//! A server between the apiserver and the proxy that adds a field to configmaps and limitranges. No field table has this
//! field, so the proxy sees an apiserver that is newer than its tables.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube_fanout::wire::{FeedEncoding, FrameEnvelope, FrameSplitter, JsonLayout, ListMeta, ObjectReader, WatchItem};
use kubeapi::SelectableFieldTable;
use tokio::net::TcpListener;

use super::http::{Http, Protocol, RequestSpec};
use super::plane::Plane;

pub struct Planter {
    plants: Arc<AtomicU32>,
    minor: Arc<AtomicU32>,
    kubeconfig: PathBuf,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Clone)]
struct Way {
    upstream: Http,
    plants: Arc<AtomicU32>,
    /// The minor release that `/version` reports: 0 is the apiserver's own; with [`Planter::UNKNOWN`] there is none.
    minor: Arc<AtomicU32>,
}

type Body = BoxBody<Bytes, hyper::Error>;

// Values of `plants`: the encodings to which the field is added.
const NOTHING: u32 = 0;
const JSON: u32 = 1;
const EVERYTHING: u32 = 2;

/// The resources whose objects get the field, and their kinds.
const PLANTED: [(&str, &str); 2] = [("/configmaps", "ConfigMap"), ("/limitranges", "LimitRange")];

impl Planter {
    /// The field in protobuf: number 5000 with the text `yes`.
    pub const FIELD: &[u8] = b"\xc2\xb8\x02\x03yes";

    pub async fn start(plane: &Plane) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let kubeconfig = plane.file("planter.kubeconfig");
        let token = plane.target().identity.token;
        let document = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "p",
            "clusters": [{"name": "p", "cluster": {"server": url}}],
            "users": [{"name": "p", "user": {"token": token}}],
            "contexts": [{"name": "p", "context": {"cluster": "p", "user": "p"}}],
        });
        std::fs::write(&kubeconfig, document.to_string()).expect("a file");
        let plants = Arc::new(AtomicU32::new(NOTHING));
        let minor = Arc::new(AtomicU32::new(0));
        let upstream = Http::new(plane.target(), Protocol::H2);
        let way = Way { upstream, plants: plants.clone(), minor: minor.clone() };
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let way = way.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        let way = way.clone();
                        async move { Ok::<_, Infallible>(way.answer(request).await) }
                    });
                    let _ =
                        auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self { plants, minor, kubeconfig, server }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Starts to add the field to JSON and protobuf.
    pub fn plant(&self) {
        self.plants.store(EVERYTHING, Ordering::SeqCst);
    }

    /// Starts to add the field to JSON only, so that it is missing in protobuf.
    pub fn plant_json(&self) {
        self.plants.store(JSON, Ordering::SeqCst);
    }

    /// The minor for [`Self::say_release`] that hides the release.
    pub const UNKNOWN: u32 = u32::MAX;

    /// Makes `/version` report release `1.minor`, or the apiserver's own release if `minor` is 0.
    pub fn say_release(&self, minor: u32) {
        self.minor.store(minor, Ordering::SeqCst);
    }
}

impl Drop for Planter {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Way {
    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let mut headers = HeaderMap::new();
        for name in [http::header::ACCEPT, http::header::USER_AGENT] {
            if let Some(value) = request.headers().get(&name) {
                headers.insert(name, value.clone());
            }
        }
        let forwarded =
            RequestSpec { method: request.method().clone(), path: path.clone(), headers, body: Bytes::new() };
        let (mut head, body) = self.upstream.send(forwarded).await.into_parts();
        let minor = self.minor.load(Ordering::SeqCst);
        if path == "/version" && minor != 0 {
            let minor = if minor == Planter::UNKNOWN { String::new() } else { minor.to_string() };
            let whole = serde_json::json!({"major": "1", "minor": minor}).to_string();
            head.headers.remove("content-length");
            return Response::from_parts(head, Full::from(whole).map_err(|never| match never {}).boxed());
        }
        let content_type = head.headers.get("content-type").and_then(|value| value.to_str().ok());
        let encoding = content_type.and_then(FeedEncoding::from_content_type);
        let is_converted = request.headers().get("accept").is_some_and(|accept| accept.as_bytes().contains(&b';'));
        let planted = PLANTED.iter().find(|(resource, _)| path.contains(resource));
        let (Some(encoding), Some((_, kind)), true) = (encoding, planted, head.status == 200 && !is_converted) else {
            return Response::from_parts(head, body.boxed());
        };
        head.headers.remove("content-length");
        let bed = Soil::new(encoding, kind, self.plants);
        if path.contains("watch=") {
            return Response::from_parts(head, bed.stream(body));
        }
        let list = body.collect().await.expect("a list").to_bytes();
        Response::from_parts(head, Full::new(bed.list(&list)).map_err(|never| match never {}).boxed())
    }
}

/// Adds the field to the objects of one response.
struct Soil {
    encoding: FeedEncoding,
    plants: Arc<AtomicU32>,
    reader: ObjectReader,
    envelope: FrameEnvelope,
}

impl Soil {
    fn new(encoding: FeedEncoding, kind: &str, plants: Arc<AtomicU32>) -> Self {
        let reader = ObjectReader::new(encoding, JsonLayout::BuiltIn, Arc::new(SelectableFieldTable::default()));
        Self { encoding, plants, reader, envelope: FrameEnvelope::new(encoding, "v1", kind, JsonLayout::BuiltIn) }
    }

    fn planted(&self, body: &[u8]) -> Vec<u8> {
        match (self.plants.load(Ordering::SeqCst), self.encoding) {
            (NOTHING, _) | (JSON, FeedEncoding::Protobuf) | (_, FeedEncoding::Table) => body.to_vec(),
            (_, FeedEncoding::Json) => [&body[..body.len() - 1], br#","planted":"yes"}"#].concat(),
            (_, FeedEncoding::Protobuf) => [body, Planter::FIELD].concat(),
        }
    }

    fn list(&self, document: &Bytes) -> Bytes {
        let page = self.reader.list(document).expect("a list");
        let (resource_version, continue_token) = (page.resource_version, page.continue_token);
        let frame = self.envelope.list(&ListMeta { resource_version, continue_token, remaining: None, shard: None });
        let bodies: Vec<_> = page.items.iter().map(|object| self.planted(object.body())).collect();
        let len = bodies.iter().map(|body| frame.item_len(body.len())).sum();
        let mut list = frame.head(bodies.len(), len).to_vec();
        bodies.iter().enumerate().for_each(|(at, body)| frame.put_item(at == 0, body, &mut list));
        list.extend_from_slice(&frame.tail());
        list.into()
    }

    fn frame(&self, frame: Bytes) -> Bytes {
        match self.reader.watch_event(frame.clone()) {
            Ok(WatchItem::Change { event_type, object, .. }) => {
                self.envelope.frame(event_type, &self.planted(object.body()))
            }
            _ => frame,
        }
    }

    fn stream(self, body: Incoming) -> Body {
        let splitter = FrameSplitter::new(self.encoding, 16 << 20);
        let frames = stream::unfold((self, body, splitter), |(soil, mut body, mut splitter)| async move {
            loop {
                if let Some(frame) = splitter.next_frame().expect("a frame") {
                    let frame = Ok(Frame::data(soil.frame(frame)));
                    return Some((frame, (soil, body, splitter)));
                }
                match body.frame().await? {
                    Ok(frame) => splitter.push(frame.data_ref().map_or(&[], |data| data)),
                    Err(error) => return Some((Err(error), (soil, body, splitter))),
                }
            }
        });
        StreamBody::new(frames).boxed()
    }
}
