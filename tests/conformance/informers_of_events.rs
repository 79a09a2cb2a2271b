//! How long client-go informers of Events take to start after a deletion and after an expiry, directly and through the
//! proxy. `events.rs` tests that they do start. `make informers-of-events` is the long form. It needs a release build
//! and also checks how long they take.

use std::time::Duration;

use crate::bed::{self, Plan, Times, log_line, number};
use crate::event_scenes::{EXPIRES_SOON, EventScene, LASTS, LastChange};

/// The number of informers that start together.
const COUNT: u32 = 10;
/// The number of Events that remain, if they do not expire.
const KEPT: u32 = 500;
/// The driver's polling interval for synced informers.
const LOOK_SECONDS: f64 = 0.02;

#[tokio::test]
async fn event_informers_sync_as_fast_as_direct() {
    let mut slow = Vec::new();
    let percent_max = number("EVENT_PERCENT", 0);
    for (last, ttl, kept) in [(LastChange::Deletion, LASTS, KEPT), (LastChange::Expiry, EXPIRES_SOON, 0)] {
        let Some(bed) = bed::own_with(&format!("informers-{last:?}"), &[ttl]).await else { return };
        let proxy = Plan::tls().start(&bed).await;
        let mut scene = EventScene::set(&bed, &proxy, last, kept).await;
        for watchlist in ["on", "off"] {
            let (mut direct, mut through) = (Vec::new(), Vec::new());
            for round in 0..number("EVENT_ROUNDS", 5) {
                // A list of any version may show an older state, and the informer's store has it for a moment.
                scene.change(watchlist == "on").await;
                let sides = [(&mut direct, bed.target()), (&mut through, proxy.target())];
                // Alternates which side goes first.
                let sides: Vec<_> = if round % 2 == 0 { sides.into() } else { sides.into_iter().rev().collect() };
                for (times, target) in sides {
                    let synced = scene.sync(&target, watchlist, COUNT).await;
                    let seconds = synced["sync_seconds"].as_f64().expect("a number");
                    times.push(Duration::from_secs_f64(seconds));
                }
            }
            let (direct, through) = (Times::of(direct), Times::of(through));
            let [theirs, ours] = [&direct, &through].map(|times| times.at(50).as_secs_f64());
            let what = format!("{COUNT} informers after a {last:?}, watch-list {watchlist}");
            log_line(&format!("{what}: directly {direct}, through the proxy {through}: × {:.2}", ours / theirs));
            if percent_max > 0 && ours > theirs * percent_max as f64 / 100.0 + LOOK_SECONDS {
                slow.push(what);
            }
        }
        proxy.assert_sound();
    }
    assert!(slow.is_empty(), "{slow:?}");
}
