use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::sync::Mutex;

use super::link::{self, Failed, Sender, Windows};
use super::target::{Ask, Target};
use super::words::Protocol;
use crate::base::Tasks;

/// Answers of which more is not looked at.
const BODY_BYTES_MAX: usize = 4 << 20;
const WINDOWS: Windows = Windows { stream: 1 << 20, connection: 4 << 20, socket: None };

/// Short requests to one server over one connection, which is dialled again when it breaks.
pub(super) struct Caller {
    target: Target,
    protocol: Protocol,
    tasks: Tasks,
    sender: Mutex<Option<Sender>>,
}

/// An answer, read.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl Caller {
    pub(super) fn new(target: &Target, protocol: Protocol, tasks: &Tasks) -> Self {
        // What opens WebSockets answers over HTTP/1.1.
        let protocol = if protocol == Protocol::H2 { Protocol::H2 } else { Protocol::H1 };
        Self { target: target.clone(), protocol, tasks: tasks.clone(), sender: Mutex::new(None) }
    }

    pub(super) async fn get(&self, path: &str, accept: &str) -> Result<Reply, Failed> {
        self.call(&Ask::get(path, accept), Bytes::new()).await
    }

    pub(super) async fn send(&self, method: Method, path: &str, media: &str, body: Bytes) -> Result<Reply, Failed> {
        self.call(&Ask { method, path, accept: "application/json", content_type: media }, body).await
    }

    async fn call(&self, ask: &Ask<'_>, body: Bytes) -> Result<Reply, Failed> {
        let sender = self.sender().await?;
        let called = async {
            let mut answer = sender.send(&self.target, ask, body).await?;
            let (body, _) = answer.body.read(BODY_BYTES_MAX).await?;
            Ok(Reply { status: answer.status, body })
        };
        let called = called.await;
        if called.is_err() {
            *self.sender.lock().await = None;
        }
        called
    }

    async fn sender(&self) -> Result<Sender, Failed> {
        let mut kept = self.sender.lock().await;
        if let Some(sender) = &*kept {
            return Ok(sender.clone());
        }
        let opened = link::open(&self.target, self.protocol, WINDOWS).await?;
        self.tasks.spawn("bench caller", opened.driver);
        *kept = Some(opened.sender.clone());
        Ok(opened.sender)
    }
}

impl Reply {
    /// The answer, if it is what was asked for.
    pub(super) fn success(self, what: &str) -> Result<Self, String> {
        if self.status.is_success() {
            return Ok(self);
        }
        let said: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let message = said["message"].as_str().unwrap_or_default();
        Err(format!("{what}: {} {message}", self.status))
    }

    /// The version of an object or of a list in JSON.
    pub(super) fn version(&self) -> Option<u64> {
        super::recognise::Recogniser::new(false).list_version(&self.body)
    }
}
