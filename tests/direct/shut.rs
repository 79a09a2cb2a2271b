//! Clients whose HTTP/2 windows stay closed, and the objects that they request.

use bytes::Bytes;
use demo::{self, RunningDemoApiserver};
use http::Request;
use tokio::net::TcpStream;

use crate::direct::{self, Client, within};

/// Objects of 1 MiB and of 60 KB.
pub const LARGE: &str = "/api/v1/namespaces/default/configmaps/large?resourceVersion=0";
pub const MIDDLING: &str = "/api/v1/namespaces/default/configmaps/middling?resourceVersion=0";

pub async fn with_objects() -> RunningDemoApiserver {
    let up = demo::upstream().run().await;
    up.put("configmaps", direct::configmap("default", "large", &"x".repeat(1 << 20)));
    up.put("configmaps", direct::configmap("default", "middling", &"x".repeat(60_000)));
    up
}

/// A connection whose windows stay closed, and its requests.
pub struct Shut {
    sender: h2::client::SendRequest<Bytes>,
    host: String,
    pub bodies: Vec<h2::RecvStream>,
}

impl Shut {
    pub async fn to(client: &Client) -> Self {
        let host = client.url().trim_start_matches("http://").to_owned();
        let io = TcpStream::connect(&host).await.expect("a connection");
        let mut builder = h2::client::Builder::new();
        let (sender, connection) = builder.initial_window_size(0).handshake(io).await.expect("HTTP/2");
        drop(tokio::spawn(connection));
        Self { sender, host, bodies: Vec::new() }
    }

    /// Returns the status. A body stays unread.
    pub async fn request_status(&mut self, path: &str, accept: &str) -> u16 {
        let request = Request::get(format!("http://{}{path}", self.host)).header("accept", accept);
        let mut sender = self.sender.clone().ready().await.expect("open");
        let (answer, _) = sender.send_request(request.body(()).expect("a request"), true).expect("open");
        let answer = within("a head", answer).await.expect("an answer");
        let status = answer.status().as_u16();
        // Dropping the body would reset the stream instead of leaving it unread.
        if status == 200 {
            self.bodies.push(answer.into_body());
        }
        status
    }

    /// Asserts that all streams are reset, and not ended.
    pub async fn is_cut(&mut self) {
        for body in &mut self.bodies {
            let end = within("the end of the aborted response", body.data()).await;
            assert!(end.is_some_and(|end| end.is_err_and(|error| error.is_reset())), "a truncated body looks whole");
        }
    }
}
