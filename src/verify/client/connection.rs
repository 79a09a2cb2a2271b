use crate::base::Tasks;
use crate::probe::{self, Ask, LinkError, OpenedLink, PendingAnswer, Sender, Target, WatchProtocol, Windows};
use crate::verify::record::Transport;

const WINDOWS: Windows = Windows { stream: 1 << 20, connection: 4 << 20, socket: None };

/// One client's connection to a server, dialled when it is needed and again when it is gone.
pub(in crate::verify) struct ClientConnection {
    target: Target,
    protocol: WatchProtocol,
    tasks: Tasks,
    sender: Option<Sender>,
}

impl ClientConnection {
    pub(in crate::verify) fn new(target: &Target, transport: Transport, tasks: &Tasks) -> Self {
        let protocol = match transport {
            Transport::H1 => WatchProtocol::H1,
            Transport::H2 => WatchProtocol::H2,
            Transport::Ws => WatchProtocol::Ws,
        };
        Self { target: target.clone(), protocol, tasks: tasks.clone(), sender: None }
    }

    /// Sends a read. One that meets a connection which its server has closed meanwhile is sent again on a new one, as
    /// every client does.
    pub(in crate::verify) async fn get(&mut self, path: &str, accept: &str) -> Result<PendingAnswer, LinkError> {
        let ask = Ask::get(path, accept);
        if let Some(sender) = self.sender.take().filter(|sender| !sender.is_closed())
            && let Ok(answer) = sender.get(&self.target, &ask).await
        {
            self.keep(sender);
            return Ok(answer);
        }
        let OpenedLink { sender, driver } = probe::open(&self.target, self.protocol, WINDOWS).await?;
        self.tasks.spawn("verify connection", driver);
        let answer = sender.get(&self.target, &ask).await?;
        self.keep(sender);
        Ok(answer)
    }

    fn keep(&mut self, sender: Sender) {
        // A WebSocket carries one watch.
        self.sender = (self.protocol != WatchProtocol::Ws).then_some(sender);
    }

    /// Gives the connection up, as one must over HTTP/1.1 that leaves an answer before its end.
    pub(in crate::verify) fn give_up(&mut self) {
        self.sender = None;
    }
}
