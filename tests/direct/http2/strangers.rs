//! The first requests of a connection, before any caller on it is authenticated.

use demo::{self, RunningDemoApiserver};
use kube_fanout::auth::AuthMode;
use kube_fanout::net::Http2Codec;

use super::frames::{REFUSED_STREAM, head, hello, request, window};
use super::rows::{CODECS, served_by};
use super::wire::{ReceivedFrames, Wire};
use crate::direct::{self, App, PODS};

/// Number of requests in one write.
const REQUESTS: u32 = 100;

async fn delegated(codec: Http2Codec, up: &RunningDemoApiserver) -> App {
    up.reviews().give("a", "ada");
    up.reviews().allow("ada", "*");
    served_by(codec, direct::app(up)).with(|config| config.auth = AuthMode::Delegated).run().await
}

/// Requests in one write, with their bearer tokens.
fn requests(token: impl Fn(u32) -> String) -> Vec<u8> {
    let request_frames = |at: u32| {
        let bearer = format!("Bearer {}", token(at));
        head(2 * at + 1, &request("GET", PODS, &[("authorization", &bearer)]))
    };
    // The window has room for all responses.
    [hello(), window(0, 1 << 24), (0..REQUESTS).flat_map(request_frames).collect()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessed_tokens_sent_in_one_write_cause_one_review() {
    for codec in CODECS {
        let up = demo::upstream().pods(3).run().await;
        let app = delegated(codec, &up).await;
        let before = up.reviews().counts().tokens;
        let mut wire = Wire::to(&app).await;
        wire.send(&requests(|at| format!("guess-{at}"))).await;
        let all_settled = |received: &ReceivedFrames| (0..REQUESTS).all(|at| received.is_settled(2 * at + 1));
        wire.until("all are refused", all_settled).await;
        assert_eq!(wire.received.answer(1), Some(401));
        let refused = |at: u32| wire.received.reset(2 * at + 1).is_none_or(|code| code == REFUSED_STREAM);
        assert!((1..REQUESTS).all(|at| refused(at) && wire.received.answer(2 * at + 1).is_none()));
        assert_eq!(up.reviews().counts().tokens - before, 1);
    }
}

/// client-go multiplexes its first requests before any of them is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_multiplexed_requests_of_valid_token_all_succeed() {
    for codec in CODECS {
        let up = demo::upstream().pods(3).run().await;
        let app = delegated(codec, &up).await;
        let mut wire = Wire::to(&app).await;
        wire.send(&requests(|_| "a".to_owned())).await;
        let all_answered = |received: &ReceivedFrames| (0..REQUESTS).all(|at| received.answer(2 * at + 1) == Some(200));
        wire.wait("all are answered", all_answered).await;
    }
}
