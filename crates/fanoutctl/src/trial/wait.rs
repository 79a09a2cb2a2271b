use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The polling interval for conditions without notification.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Polls `look` until it returns a value; returns `None` after `patience`.
pub async fn until<T>(patience: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look().await {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        sleep(LOOK_AGAIN).await;
    }
}
