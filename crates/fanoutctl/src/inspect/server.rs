use std::path::PathBuf;

use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::InspectError;
use base::BackgroundTasks;
use probe::{
    EstablishedConnection, FlowControlWindows, HttpRequestSender, PendingResponse, RequestSpec, TargetCredentials,
    TargetServer, WatchProtocol, open,
};

/// The address of an API server, and the credentials for it.
#[derive(Debug, Clone)]
pub struct ApiserverOptions {
    /// The server URL `https://HOST:PORT`; `None` selects the kubeconfig's server.
    pub url: Option<String>,
    pub kubeconfig: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
    pub insecure: bool,
}

/// One HTTP/1.1 connection to an API server or a proxy.
pub(super) struct ApiserverConnection {
    pub(super) name: String,
    target: TargetServer,
    sender: HttpRequestSender,
    _tasks: BackgroundTasks,
}

/// A response with its whole body.
pub(super) struct FetchedResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// The maximum size of a response body in bytes. A page of 500 objects at etcd's size limit is smaller.
const BODY_BYTES_MAX: usize = 1 << 30;
const WINDOWS: FlowControlWindows =
    FlowControlWindows { stream: 1 << 20, connection: 4 << 20, socket: None, as_go: false };

impl ApiserverConnection {
    pub(super) async fn at(reach: &ApiserverOptions) -> Result<Self, InspectError> {
        let credentials = TargetCredentials {
            kubeconfig: reach.kubeconfig.clone(),
            ca: reach.ca.clone(),
            insecure: reach.insecure,
            token_file: reach.token_file.clone(),
            ..TargetCredentials::default()
        };
        let wrong = |error: &dyn std::fmt::Display| InspectError(error.to_string());
        let url = match &reach.url {
            Some(url) => url.clone(),
            None => credentials.server().map_err(|error| wrong(&error))?,
        };
        let target = credentials.target(&url).await.map_err(|error| wrong(&error))?.by("kubectl-fanout");
        let opened = open(&target, WatchProtocol::H1, WINDOWS).await;
        let EstablishedConnection { sender, driver, .. } = opened.map_err(|error| InspectError::of(&url, error))?;
        let tasks = BackgroundTasks::new();
        tasks.spawn("connection", driver);
        Ok(Self { name: url, target, sender, _tasks: tasks })
    }

    pub(super) async fn get(&self, path: &str, accept: &str) -> Result<FetchedResponse, InspectError> {
        let mut answer = self.stream(path, accept).await?;
        let wrong = |why: &dyn std::fmt::Display| InspectError(format!("{}{path}: {why}", self.name));
        let (body, bytes) = answer.body.read(BODY_BYTES_MAX).await.map_err(|error| wrong(&error))?;
        if bytes > body.len() as u64 {
            return Err(wrong(&"the response is too long"));
        }
        Ok(FetchedResponse { status: answer.status, headers: answer.headers, body })
    }

    /// Sends a GET and returns the response before its body is read.
    pub(super) async fn stream(&self, path: &str, accept: &str) -> Result<PendingResponse, InspectError> {
        let response = self.sender.get(&self.target, &RequestSpec::get(path, accept)).await;
        response.map_err(|error| InspectError(format!("{}{path}: {error}", self.name)))
    }
}

impl FetchedResponse {
    /// Returns the response if its status is a success; otherwise an error that begins with `what`.
    pub(super) fn success(self, what: &str) -> Result<Self, InspectError> {
        if self.status.is_success() {
            return Ok(self);
        }
        Err(refused(what, self.status, &self.body))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

pub(super) fn refused(what: &str, status: StatusCode, body: &[u8]) -> InspectError {
    let status_object: Value = serde_json::from_slice(body).unwrap_or_default();
    InspectError::of(what, format!("{} {}", status.as_u16(), status_object["message"].as_str().unwrap_or_default()))
}
