use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::client::{ConnectionTarget, accepting};
use super::{KubernetesRelease, ServerBuild, UpstreamClient, UpstreamError, UpstreamRequestCause, UpstreamServer};

const VERSION: &str = "/version";
/// The timeout after which a caller stops waiting for a server's build.
const CALLER_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout of the request itself, after which another may be sent.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

impl UpstreamClient {
    /// Requests the release that upstream emulates, which may be older than its own.
    pub async fn release(&self) -> Result<KubernetesRelease, UpstreamError> {
        Ok(self.build().await?.release)
    }

    /// Requests the build that the responding server reports.
    pub async fn build(&self) -> Result<ServerBuild, UpstreamError> {
        let (_, body) = self.fetch(UpstreamRequestCause::Discovery, VERSION, "application/json").await?;
        ServerBuild::parse(&body).ok_or_else(|| UpstreamError::OtherDocument(VERSION.to_owned()))
    }

    /// Requests the build of the server at the other end of a connection, unless it is known. A server that fails to
    /// respond for a while is treated as one that does not report it.
    ///
    /// The request outlives the caller: a server that has just started responds late, and an apiserver counts a request
    /// that its client cancels as an error.
    pub async fn learn_build(&self, server: &UpstreamServer) -> Result<(), UpstreamError> {
        let requesting = async {
            let lock = server.lock_requests().await;
            if server.is_known() || server.is_backing_off() {
                return Ok(());
            }
            let (client, server) = (self.clone(), server.clone());
            let (done, is_done) = oneshot::channel();
            self.tasks().spawn("release", async move {
                let _lock = lock;
                let _ = done.send(client.request_build(&server).await.inspect_err(|_| server.failed()));
            });
            // If the task has panicked, a caller that needs the build requests it again.
            is_done.await.unwrap_or(Ok(()))
        };
        timeout(CALLER_TIMEOUT, requesting).await.unwrap_or_else(|_| {
            server.failed();
            Err(UpstreamError::Timeout(CALLER_TIMEOUT))
        })
    }

    async fn request_build(&self, server: &UpstreamServer) -> Result<(), UpstreamError> {
        let requesting = async {
            let (cause, via) = (UpstreamRequestCause::Discovery, ConnectionTarget::Server(server));
            let response = self.send_request(cause, via, VERSION, accepting("application/json")?, None).await?;
            let by = response.body().server().clone();
            let body = self.read(response).await?;
            server.record_response(&by, ServerBuild::parse(&body));
            Ok(())
        };
        timeout(REQUEST_TIMEOUT, requesting).await.unwrap_or(Err(UpstreamError::Timeout(REQUEST_TIMEOUT)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn version_request_completes_after_its_caller_is_dropped() {
        let (near, mut far) = duplex(4096);
        let near = parking_lot::Mutex::new(Some(near));
        let client = UpstreamClient::in_memory(move || near.lock().take());
        let server = UpstreamServer::with_unknown_build();
        let mut head = [0; 13];
        tokio::select! {
            biased;
            _ = client.learn_build(&server) => panic!("nothing has answered"),
            read = far.read_exact(&mut head) => assert_eq!((read.ok(), &head), (Some(13), b"GET /version ")),
        }
        let body = r#"{"major":"1","minor":"37","gitVersion":"v1.37.1"}"#;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        far.write_all(answer.as_bytes()).await.expect("the connection is still there");
        drop(server.lock_requests().await);
        assert!(server.is_known(), "and the next caller sends no request");
    }
}
