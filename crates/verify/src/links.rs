use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use crate::record::RequestTarget;
use probe::{LinkError, Sender};

/// HTTP/2 connections that several clients share. Clients with adjacent numbers share one connection to each server.
pub(crate) struct SharedLinks {
    /// The number of clients that share a connection.
    clients: u32,
    links: Mutex<HashMap<(RequestTarget, u32), Arc<SharedLink>>>,
}

/// A shared connection. If it is lost, the first client to notice reopens it while the others wait.
#[derive(Default)]
pub(crate) struct SharedLink(AsyncMutex<LinkState>);

/// How often the connection was opened, and the current sender.
#[derive(Default)]
struct LinkState {
    times: u64,
    sender: Option<Sender>,
}

impl SharedLinks {
    pub(crate) fn new(clients: u32) -> Self {
        Self { clients, links: Mutex::default() }
    }

    /// Returns a client's shared connection to a server; `None` if each client has its own.
    pub(crate) fn of(&self, server: RequestTarget, client: u32) -> Option<Arc<SharedLink>> {
        let group = client.checked_div(self.clients).filter(|_| self.clients > 1)?;
        Some(self.links.lock().entry((server, group)).or_default().clone())
    }
}

impl SharedLink {
    /// Returns the sender, and how often the connection was opened. If it was opened `failed` times, it is broken and
    /// is reopened.
    pub(crate) async fn sender(
        &self,
        failed: u64,
        dial: impl AsyncFnOnce() -> Result<Sender, LinkError>,
    ) -> Result<(u64, Sender), LinkError> {
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
