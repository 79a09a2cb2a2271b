//! Tests with a wall clock set forwards and backwards while watches are open. Only the expiry of credentials depends on
//! it.

use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use tokio::time::sleep;

use super::*;
use base::WallClock;

const PODS: &str = "/api/v1/namespaces/t1/pods?watch=1";
const HOUR: i64 = 3600;
/// The time within which a lease is checked again (A4).
const BOUND: Duration = Duration::from_secs(75);

/// A token of Ada's whose own claims expire in so many seconds.
fn token(clock: &WallClock, seconds: u64) -> String {
    let ends = clock.now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() + seconds;
    format!("ada~.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(format!(r#"{{"exp":{ends}}}"#)))
}

#[tokio::test(start_paused = true)]
async fn clock_step_past_token_expiry_ends_watch_within_bound() {
    let scene = scene();
    let token = token(&scene.stub.clock, 600);
    let watch = scene.watch(&token, PODS).await;
    sleep(seconds(5)).await;
    scene.stub.clock.step(HOUR);
    let took = time_to_end(&watch.end_token()).await;
    assert!(took <= BOUND, "{took:?}");
    assert_eq!(watch.end_reason(), Some("unauthenticated"));
    assert!(scene.authorizer.known(&token, [127, 0, 0, 1]).await.is_err(), "and it is good for nothing else");
}

#[tokio::test(start_paused = true)]
async fn revocation_ends_watch_within_bound_after_clock_steps_back() {
    let scene = scene();
    let token = token(&scene.stub.clock, 600);
    let watch = scene.watch(&token, PODS).await;
    sleep(seconds(5)).await;
    scene.stub.clock.step(-24 * HOUR);
    sleep(seconds(300)).await;
    assert_eq!(watch.end_reason(), None, "nothing ends by the step");
    scene.stub.take(&token);
    let took = time_to_end(&watch.end_token()).await;
    assert!(took <= BOUND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn clock_steps_end_no_watch_and_send_no_extra_reviews() {
    let scene = scene();
    let token = token(&scene.stub.clock, 24 * 3600);
    let watch = scene.watch(&token, PODS).await;
    scene.stub.reviews();
    for step in [-HOUR, 2 * HOUR, -30 * HOUR, 29 * HOUR] {
        scene.stub.clock.step(step);
        sleep(seconds(150)).await;
        assert_eq!(watch.end_reason(), None, "by {step} s");
    }
    // The identity and the permission, every 48 to 60 s each.
    let reviews = scene.stub.reviews().len();
    assert!((16..=27).contains(&reviews), "{reviews}");
}
