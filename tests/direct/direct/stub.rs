//! An upstream that is only a function, for tests of forwarding that script the response.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::TRANSFER_ENCODING;
use http::{Request, Response, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A response of the stub. An error in its body breaks the connection.
pub type Reply = Response<UnsyncBoxBody<Bytes, Failure>>;

/// A running stub, which stops when dropped.
pub struct Stub {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<http::request::Parts>>>,
    task: JoinHandle<()>,
}

/// Another server, to which a stub forwards requests.
#[derive(Clone)]
pub struct Behind {
    connections: legacy::Client<HttpConnector, Incoming>,
    url: String,
}

/// Starts a stub that answers every request with `answer`. An `Err` closes the connection without a response.
pub async fn stub<F, A>(answer: F) -> Stub
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Result<Reply, Failure>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound port");
    let heads: Arc<Mutex<Vec<_>>> = Arc::default();
    let seen = heads.clone();
    let accept = async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (seen, answer) = (seen.clone(), answer.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (head, body) = request.into_parts();
                seen.lock().push(head.clone());
                answer(Request::from_parts(head, body))
            });
            drop(tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                drop(builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await);
            }));
        }
    };
    Stub { address, heads, task: tokio::spawn(accept) }
}

impl Stub {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The heads of the requests for a path, in order of arrival.
    pub fn seen(&self, path: &str) -> Vec<http::request::Parts> {
        self.heads.lock().iter().filter(|head| head.uri.path() == path).cloned().collect()
    }

    /// A response with a text as its body.
    pub fn reply(status: u16, text: impl Into<Bytes>) -> Reply {
        let body = Full::new(text.into()).map_err(|never| match never {}).boxed_unsync();
        Response::builder().status(status).body(body).expect("a response")
    }
}

impl Behind {
    pub fn at(url: &str) -> Self {
        Self { connections: legacy::Client::builder(TokioExecutor::new()).build_http(), url: url.to_owned() }
    }

    /// The response of the other server.
    pub async fn answer(&self, request: Request<Incoming>) -> Result<Reply, Failure> {
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = format!("{}{path}", self.url).parse()?;
        head.version = Version::HTTP_11;
        let mut answer = self.connections.request(Request::from_parts(head, body)).await?;
        answer.headers_mut().remove(TRANSFER_ENCODING);
        Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}
