//! A token in a file that is rotated, as a kubelet does for the service account of a pod.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

/// A bearer token that is reread from its file by the monotonic clock.
///
/// kube-client uses the wall clock and rereads the file a minute after the last time. If the wall clock is set back by
/// an hour, it does not reread for an hour, and continues with an expired token.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    cached: Mutex<CachedToken>,
}

#[derive(Debug)]
struct CachedToken {
    header: HeaderValue,
    read: Instant,
}

/// The interval at which the token file is read. Tokens are rotated long before they expire.
const READ_EVERY: Duration = Duration::from_secs(10);

impl TokenFile {
    pub(super) fn load(path: PathBuf) -> io::Result<Self> {
        let header = read(&path)?;
        Ok(Self { path, cached: Mutex::new(CachedToken { header, read: Instant::now() }) })
    }

    /// Returns the value of an `Authorization` header. If the file cannot be read, it is the last value that could be.
    pub(super) async fn header(&self) -> HeaderValue {
        if !self.is_due() {
            return self.cached.lock().header.clone();
        }
        let path = self.path.clone();
        // Disk reads may stall, so they run on a blocking thread.
        match tokio::task::spawn_blocking(move || read(&path)).await {
            Ok(Ok(header)) => self.cached.lock().header = header,
            Ok(Err(error)) => {
                let (file, why) = (self.path.display(), error.kind());
                tracing::warn!(%file, error = %why, "cannot read the token file; keeping the previous token");
            }
            Err(error) => {
                tracing::error!(
                    file = %self.path.display(), %error,
                    "token file reader failed; keeping the previous token"
                );
            }
        }
        self.cached.lock().header.clone()
    }

    /// Whether the token file is due to be read again. Only the caller that gets `true` reads it; the others use the
    /// current token.
    fn is_due(&self) -> bool {
        let (mut cached, now) = (self.cached.lock(), Instant::now());
        let is_due = now.duration_since(cached.read) >= READ_EVERY;
        if is_due {
            cached.read = now;
        }
        is_due
    }
}

fn read(path: &Path) -> io::Result<HeaderValue> {
    let text = std::fs::read_to_string(path)?;
    let token = text.trim();
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    if token.is_empty() {
        return Err(invalid("the file is empty"));
    }
    let mut header =
        HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| invalid("the content is not a token"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    /// The wall clock stands still here, as after it was set back.
    #[tokio::test(start_paused = true)]
    async fn token_file_is_reloaded_independently_of_wall_clock() {
        let path = std::env::temp_dir().join(format!("kube-fanout-token-{}", fastrand::u64(..)));
        let write = |text: &str| std::fs::write(&path, text).expect("a file");
        write("one\n");
        let file = TokenFile::load(path.clone()).expect("it is there");
        write("two");
        assert_eq!(file.header().await, "Bearer one");
        advance(READ_EVERY).await;
        assert_eq!(file.header().await, "Bearer two");
        for broken in ["", " \n", "a\nb"] {
            write(broken);
            advance(READ_EVERY).await;
            assert_eq!(file.header().await, "Bearer two", "the last good one stays: {broken:?}");
        }
        std::fs::remove_file(&path).expect("it is there");
        advance(READ_EVERY).await;
        assert_eq!(file.header().await, "Bearer two");
        assert!(TokenFile::load(path).is_err());
    }
}
