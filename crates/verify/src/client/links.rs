use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use crate::record::AskedServer;
use probe::{LinkError, Sender};

/// Connections over HTTP/2 that several clients share: clients whose numbers are near have the same one to each server.
pub(crate) struct SharedLinks {
    /// As many clients share one.
    clients: u32,
    links: Mutex<HashMap<(AskedServer, u32), Arc<SharedLink>>>,
}

/// One of them. It is dialled by whoever finds it gone first, while the others wait.
#[derive(Default)]
pub(crate) struct SharedLink(AsyncMutex<Dialled>);

/// How often it was dialled, and what requests are sent with since.
#[derive(Default)]
struct Dialled {
    times: u64,
    sender: Option<Sender>,
}

impl SharedLinks {
    pub(crate) fn new(clients: u32) -> Self {
        Self { clients, links: Mutex::default() }
    }

    /// The one of a client to a server; none if each has its own.
    pub(super) fn of(&self, server: AskedServer, client: u32) -> Option<Arc<SharedLink>> {
        let group = client.checked_div(self.clients).filter(|_| self.clients > 1)?;
        Some(self.links.lock().entry((server, group)).or_default().clone())
    }
}

impl SharedLink {
    /// What to send with, and how often it was dialled. One that had been dialled `failed` times is of no use any more.
    pub(super) async fn sender(
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
