use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Between two looks at something that does not tell when it changes.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Looks again and again until something is there, for so long; `None` if it is not there by then.
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
