//! Clients whose requests and responses have flipped bits. Their results are not checked.

use std::time::Duration;

use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::bed::{Http, Protocol, RequestSpec, Target};

/// A set of clients that read until this value is dropped.
pub struct Noise {
    _clients: JoinSet<()>,
}

const CLIENTS: u64 = 6;
/// The time without data after which a client starts again.
const QUIET: Duration = Duration::from_secs(1);
const PATHS: [&str; 4] = [
    "/api/v1/configmaps?watch=true&allowWatchBookmarks=true",
    "/apis/verify.kube-fanout.io/v1/samples?watch=true",
    "/api/v1/configmaps?resourceVersion=0",
    "/api/v1/namespaces?limit=2",
];

impl Noise {
    pub fn start(target: &Target, seed: u64) -> Self {
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (target, mut rng) = (target.clone(), fastrand::Rng::with_seed(seed ^ (number << 32)));
            clients.spawn(async move {
                loop {
                    let path = PATHS[rng.usize(..PATHS.len())];
                    // Any result is possible and is ignored.
                    let _ = match number % 3 {
                        0 => timeout(QUIET * 5, read(&target, Protocol::H1, path)).await,
                        1 => timeout(QUIET * 5, read(&target, Protocol::H2, path)).await,
                        _ => timeout(QUIET * 5, messages(&target, PATHS[rng.usize(..2)])).await,
                    };
                    // Limits the rate of clients that are refused at once.
                    tokio::time::sleep(Duration::from_millis(rng.u64(5..50))).await;
                }
            });
        }
        Self { _clients: clients }
    }
}

async fn read(target: &Target, protocol: Protocol, path: &str) {
    let http = Http::new(target.clone(), protocol);
    let Ok(Some(answer)) = timeout(QUIET, http.try_send(RequestSpec::get(path))).await else { return };
    let mut body = answer.into_body();
    while let Ok(Some(Ok(_))) = timeout(QUIET, body.frame()).await {}
}

async fn messages(target: &Target, path: &str) {
    let request = format!("wss://{}{path}", target.host()).into_client_request();
    let (Ok(mut request), Ok(io)) = (request, target.try_connect("http/1.1").await) else { return };
    let token = format!("Bearer {}", target.identity.token);
    for (name, value) in [("authorization", token.as_str()), ("origin", target.origin())] {
        request.headers_mut().insert(name, value.parse().expect("a header"));
    }
    let Ok(Ok((mut socket, _))) = timeout(QUIET, Box::pin(client_async(request, io))).await else { return };
    while let Ok(Some(Ok(_))) = timeout(QUIET, socket.next()).await {}
}
