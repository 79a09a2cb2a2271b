use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use crate::record::RequestServerRole;
use probe::{HttpRequestSender, ProbeRequestError};

/// HTTP/2 connections that several clients share. Clients with adjacent numbers share one connection to each server.
pub(crate) struct SharedConnections {
    /// The number of clients that share a connection.
    clients: u32,
    links: Mutex<HashMap<(RequestServerRole, u32), Arc<SharedConnection>>>,
}

/// A shared connection. If it is lost, the first client to notice reopens it while the others wait.
#[derive(Default)]
pub(crate) struct SharedConnection(AsyncMutex<SharedConnectionState>);

/// How often the connection was opened, and the current sender.
#[derive(Default)]
struct SharedConnectionState {
    times: u64,
    sender: Option<HttpRequestSender>,
}

impl SharedConnections {
    pub(crate) fn new(clients: u32) -> Self {
        Self { clients, links: Mutex::default() }
    }

    /// Returns a client's shared connection to a server; `None` if each client has its own.
    pub(crate) fn of(&self, server: RequestServerRole, client: u32) -> Option<Arc<SharedConnection>> {
        let group = client.checked_div(self.clients).filter(|_| self.clients > 1)?;
        Some(self.links.lock().entry((server, group)).or_default().clone())
    }
}

impl SharedConnection {
    /// Returns the sender, and how often the connection was opened. If it was opened `failed` times, it is broken and
    /// is reopened.
    pub(crate) async fn sender(
        &self,
        failed: u64,
        dial: impl AsyncFnOnce() -> Result<HttpRequestSender, ProbeRequestError>,
    ) -> Result<(u64, HttpRequestSender), ProbeRequestError> {
        let mut dialled = self.0.lock().await;
        if dialled.times <= failed {
            dialled.sender = None;
        }
        if let Some(sender) = &dialled.sender {
            return Ok((dialled.times, sender.clone()));
        }
        let sender = dial().await?;
        dialled.times += 1;
        dialled.sender = Some(sender.clone());
        Ok((dialled.times, sender))
    }
}
