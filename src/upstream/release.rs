use std::time::Duration;

use tokio::time::timeout;

use super::{Build, Cause, Client, Error, Release, Server};

const VERSION: &str = "/version";
/// A server that does not say what it is within this time has failed to.
const ANSWER_MAX: Duration = Duration::from_secs(2);

impl Client {
    /// The release that upstream behaves as, which may be an older one than it is.
    pub async fn release(&self) -> Result<Release, Error> {
        Ok(self.build().await?.release)
    }

    /// What whoever answers says that it is.
    pub async fn build(&self) -> Result<Build, Error> {
        let (_, body) = self.fetch(Cause::Discovery, VERSION, "application/json").await?;
        Build::parse(&body).ok_or_else(|| Error::OtherDocument(VERSION.to_owned()))
    }

    /// Has the server at the other end of a connection say what it is, unless it has. One that fails to do so for a
    /// while is taken for one that does not say.
    pub async fn meet(&self, server: &Server) -> Result<(), Error> {
        let _turn = server.turn().await;
        if server.is_known() || server.rests() {
            return Ok(());
        }
        let asking = async {
            let response = self.open_beside(Cause::Discovery, server, VERSION, "application/json").await?;
            let by = response.body().server().clone();
            let body = self.read(response).await?;
            server.answered(&by, Build::parse(&body));
            Ok(())
        };
        match timeout(ANSWER_MAX, asking).await {
            Ok(met) => met.inspect_err(|_| server.failed()),
            Err(_) => {
                server.failed();
                Err(Error::Timeout(ANSWER_MAX))
            }
        }
    }
}
