//! The `health` command: asks a running proxy how it is, for images that have no shell and no curl.

use std::fmt;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{CONNECTION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::config::{HealthQuestion, ProbePlace};

/// What a proxy said of itself; its text is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthAnswer {
    asked: String,
    status: StatusCode,
    said: String,
}

/// Why nothing is known.
#[derive(Debug, thiserror::Error)]
pub enum NoHealthAnswer {
    #[error("{0}: no answer in time")]
    Late(String),
    #[error("{asked}: {source}")]
    Failed { asked: String, source: Failure },
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How much of an answer is read: more than what is said of the feeds that one process has.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Asks once.
///
/// # Errors
/// There was no answer, or none in time.
#[inline(never)]
pub fn ask(question: HealthQuestion) -> BoxFuture<'static, Result<HealthAnswer, NoHealthAnswer>> {
    Box::pin(async move {
        let HealthQuestion { place, path, timeout: longest } = question;
        let asked = match &place {
            ProbePlace::Tcp(host) => format!("http://{host}{path}"),
            ProbePlace::Unix(socket) => format!("unix:{}{path}", socket.display()),
        };
        match timeout(longest, answer(&place, &path)).await {
            Ok(Ok((status, said))) => Ok(HealthAnswer { asked, status, said }),
            Ok(Err(source)) => Err(NoHealthAnswer::Failed { asked, source }),
            Err(_) => Err(NoHealthAnswer::Late(asked)),
        }
    })
}

async fn answer(place: &ProbePlace, path: &str) -> Result<(StatusCode, String), Failure> {
    match place {
        ProbePlace::Tcp(host) => answer_of(TcpStream::connect(host).await?, host, path).await,
        ProbePlace::Unix(socket) => answer_of(UnixStream::connect(socket).await?, "localhost", path).await,
    }
}

async fn answer_of(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    path: &str,
) -> Result<(StatusCode, String), Failure> {
    let request = Request::get(path).header(HOST, host).header(CONNECTION, "close").body(Empty::<Bytes>::new())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let asking = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    tokio::pin!(asking);
    tokio::select! {
        answered = &mut asking => answered,
        ended = connection => {
            ended?;
            asking.await
        }
    }
}

impl HealthAnswer {
    /// Whether all is well.
    pub fn is_well(&self) -> bool {
        self.status.is_success()
    }
}

impl fmt::Display for HealthAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said: Vec<_> = self.said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        write!(f, "{}: {} {}", self.asked, self.status.as_u16(), said.join("; "))
    }
}
