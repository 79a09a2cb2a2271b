//! An upstream in the same process, without a socket: for tests on a clock of theirs, which a kernel does not follow.

use std::fmt;
use std::sync::Arc;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;

use super::credentials::UpstreamCredentials;
use super::link::{Link, Links};
use super::{Client, CostLedger, CredentialSource, Error, UpstreamBody};

type Connect = dyn Fn() -> Option<DuplexStream> + Send + Sync;

/// Makes connections, one for each request.
#[derive(Clone)]
pub(super) struct Memory(Arc<Connect>);

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl Memory {
    pub(super) async fn send(&self, request: Request<UpstreamBody>) -> Result<Response<Incoming>, Error> {
        let io = (self.0)().ok_or_else(|| Error::Unreachable("nobody listens".into()))?;
        let unreachable = |error: hyper::Error| Error::Unreachable(error.into());
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(unreachable)?;
        drop(tokio::spawn(connection));
        sender.send_request(request).await.map_err(unreachable)
    }
}

impl Client {
    /// One whose own requests go where these connections lead; with none, upstream cannot be reached.
    pub(crate) fn in_memory(connect: impl Fn() -> Option<DuplexStream> + Send + Sync + 'static) -> Self {
        let nowhere = CredentialSource::Anonymous(Uri::from_static("http://127.0.0.1:1"));
        let credentials = UpstreamCredentials::load(&nowhere).expect("there are none");
        let mut link = Link::new(credentials).expect("nothing is asked");
        let memory = Memory(Arc::new(connect));
        link.watches.memory = Some(memory.clone());
        link.short.memory = Some(memory);
        Self::of(Links::fixed(link), CostLedger::default())
    }
}
