//! Bytes of an HTTP/2 client, to the crate `http2` alone and in memory.

use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use base::AbortSignal;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use http2::{Http2Connection, Http2Limits, HttpService, ReceivedBody, RequestHeadBudget};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;

/// Answers each request at once, and records its head.
struct Answering(Arc<Mutex<Vec<String>>>);

impl HttpService for Answering {
    type Body = Full<Bytes>;
    type Answer = Ready<Response<Full<Bytes>>>;

    fn call(&mut self, request: Request<ReceivedBody>) -> Option<(Self::Answer, AbortSignal)> {
        let (head, _) = request.into_parts();
        self.0.lock().expect("no panic").push(format!("{head:?}"));
        Some((ready(Response::new(Full::from("answer"))), AbortSignal::default()))
    }

    fn is_caller_unknown(&self) -> bool {
        false
    }
}

/// A longer input may have more useless frames than a client may send at once. How many depends on the clock.
const INPUT_BYTES_MAX: usize = 8 << 10;
const PIPE_BYTES: usize = 1 << 20;
const MINUTE: Duration = Duration::from_secs(60);
const LIMITS: Http2Limits =
    Http2Limits { streams_max: 250, header_bytes_max: 64 << 10, header_max: MINUTE, ping_after: MINUTE };

/// Sends the input in pieces of that size. Returns the requests, and the number of bytes that the server has sent.
async fn exchange(input: &[u8], piece: usize) -> (Vec<String>, usize) {
    let (mut near, far) = tokio::io::duplex(PIPE_BYTES);
    let requests = Arc::default();
    let heads = Arc::<RequestHeadBudget>::default().connection();
    let mut connection = Http2Connection::new(far, LIMITS, heads, Answering(Arc::clone(&requests)));
    let mut is_over = false;
    for part in input.chunks(piece) {
        if is_over || near.write_all(part).await.is_err() {
            break;
        }
        while !is_over && !connection.wake_set().is_empty() {
            is_over = connection.poll(&mut Context::from_waker(Waker::noop())).is_ready();
        }
        // The in-memory pipe yields after a number of operations.
        tokio::task::yield_now().await;
    }
    drop(connection);
    let mut received = Vec::new();
    near.read_to_end(&mut received).await.expect("a pipe has no errors");
    let requests = std::mem::take(&mut *requests.lock().expect("no panic"));
    (requests, received.len())
}

/// The requests do not depend on the pieces in which their bytes arrive, and the responses have a limit.
///
/// After a frame on a stream that has ended, the connection ends if the response was sent before that frame arrived,
/// and otherwise the stream. So one of the two may have fewer requests.
pub fn connections(input: &[u8]) {
    std::thread_local! {
        static RUNTIME: Runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    }
    if input.len() > INPUT_BYTES_MAX {
        return;
    }
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let (whole, sent) = exchange(input, INPUT_BYTES_MAX).await;
            let (pieces, _) = exchange(input, 1).await;
            assert!(whole.iter().zip(&pieces).all(|(one, other)| one == other), "{whole:?} {pieces:?}");
            assert!(sent <= 1024 + 32 * input.len(), "{sent} bytes are answered");
        });
    });
}
