//! Tests of tokens whose identity is reviewed less often than the bearer's rights.

use tokio::time::sleep;

use super::*;

const PODS: &str = "/api/v1/namespaces/t1/pods?watch=1";

fn scene_of(recheck_tokens: u64) -> Scene {
    scene_with(AuthConfig { recheck_tokens: seconds(recheck_tokens), ..AuthConfig::remembering_for_a_day() })
}

#[tokio::test(start_paused = true)]
async fn whose_a_token_is_is_asked_as_often_as_is_said_and_what_it_may_each_minute() {
    // If the period is shorter than that of rights, the latter applies.
    for (recheck, least, most) in [(1, 30, 40), (60, 30, 40), (600, 3, 5)] {
        let scene = scene_of(recheck);
        let watches = [scene.watch("ada", PODS).await, scene.watch("ada", "/api/v1/namespaces/t2/pods?watch=1").await];
        sleep(seconds(30 * 60)).await;
        let (accesses, tokens) = scene.counted();
        assert!((least..=most).contains(&tokens), "{recheck} s: {tokens} in half an hour, for both");
        assert!((60..=80).contains(&accesses), "{recheck} s: {accesses}");
        assert!(watches.iter().all(|watch| watch.why().is_none()), "{recheck} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_taken_away_ends_its_watch_within_that_time_and_a_minute_and_a_right_as_soon_as_ever() {
    for after in [1, 100, 550, 1_300] {
        let scene = scene_of(600);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(after)).await;
        scene.stub.take("ada");
        let took = until(&watch.over()).await;
        assert!(took <= seconds(660), "{after} s: {took:?}");
        assert_eq!(watch.why(), Some("unauthenticated"), "{after} s");

        let scene = scene_of(600);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(after)).await;
        scene.stub.deny("ada", "t1");
        let took = until(&watch.over()).await;
        assert!(took <= seconds(75), "{after} s: {took:?}");
        assert_eq!(watch.why(), Some("denied"), "{after} s");
    }
}

/// The grace of an outage counts from the last known identity, and not from the failed review.
#[tokio::test(start_paused = true)]
async fn in_an_outage_such_a_token_lasts_as_long_as_any() {
    for after in [100, 550, 900] {
        let scene = scene_of(600);
        let watch = scene.watch("ada", PODS).await;
        sleep(seconds(after)).await;
        scene.stub.silent(true);
        let took = until(&watch.over()).await;
        assert!(took >= seconds(235) && took <= seconds(365), "{after} s: {took:?}");
        assert_eq!(watch.why(), Some("unavailable"), "{after} s");
    }
}
