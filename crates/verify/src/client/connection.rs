use std::sync::Arc;

use crate::links::SharedConnection;
use crate::record::ClientTransport;
use base::BackgroundTasks;
use probe::{
    self, EstablishedConnection, FlowControlWindows, HttpRequestSender, PendingResponse, ProbeRequestError,
    RequestSpec, TargetServer, WatchProtocol,
};

const WINDOWS: FlowControlWindows =
    FlowControlWindows { stream: 1 << 20, connection: 4 << 20, socket: None, as_go: false };

/// One client's connection to a server. It is opened when needed, and reopened after it is lost.
pub(crate) struct ClientConnection {
    target: TargetServer,
    protocol: WatchProtocol,
    tasks: BackgroundTasks,
    sender: Option<HttpRequestSender>,
    /// A connection that several clients share, over HTTP/2.
    shared: Option<Arc<SharedConnection>>,
}

impl ClientConnection {
    pub(crate) fn new(target: &TargetServer, transport: ClientTransport, tasks: &BackgroundTasks) -> Self {
        let protocol = match transport {
            ClientTransport::H1 => WatchProtocol::H1,
            ClientTransport::H2 => WatchProtocol::H2,
            ClientTransport::Ws => WatchProtocol::Ws,
        };
        Self { target: target.clone(), protocol, tasks: tasks.clone(), sender: None, shared: None }
    }

    /// Makes the client use a shared connection if it uses HTTP/2.
    pub(super) fn sharing(self, link: Option<Arc<SharedConnection>>) -> Self {
        let shared = link.filter(|_| self.protocol == WatchProtocol::H2);
        Self { shared, ..self }
    }

    /// Sends a read. If the server has closed the connection, the read is sent again on a new one, as every client
    /// does.
    pub(crate) async fn get(&mut self, path: &str, accept: &str) -> Result<PendingResponse, ProbeRequestError> {
        let request = RequestSpec::get(path, accept);
        if let Some(link) = &self.shared {
            return self.get_by(link, &request).await;
        }
        if let Some(sender) = self.sender.take().filter(|sender| !sender.is_closed())
            && let Ok(answer) = sender.get(&self.target, &request).await
        {
            self.keep(sender);
            return Ok(answer);
        }
        let sender = self.dial().await?;
        let answer = sender.get(&self.target, &request).await?;
        self.keep(sender);
        Ok(answer)
    }

    async fn get_by(
        &self,
        link: &SharedConnection,
        request: &RequestSpec<'_>,
    ) -> Result<PendingResponse, ProbeRequestError> {
        let (times, sender) = link.sender(0, async || self.dial().await).await?;
        if let Ok(answer) = sender.get(&self.target, request).await {
            return Ok(answer);
        }
        let (_, sender) = link.sender(times, async || self.dial().await).await?;
        sender.get(&self.target, request).await
    }

    async fn dial(&self) -> Result<HttpRequestSender, ProbeRequestError> {
        let EstablishedConnection { sender, driver, .. } = probe::open(&self.target, self.protocol, WINDOWS).await?;
        self.tasks.spawn("verify connection", driver);
        Ok(sender)
    }

    fn keep(&mut self, sender: HttpRequestSender) {
        // A WebSocket carries one watch.
        self.sender = (self.protocol != WatchProtocol::Ws).then_some(sender);
    }

    /// Drops the connection, as HTTP/1.1 requires if a response is not read to its end. A shared connection is kept:
    /// there only the stream is reset.
    pub(crate) fn give_up(&mut self) {
        self.sender = None;
    }
}
