use std::fmt::{self, Display};
use std::fs::File;
use std::future::pending;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

use super::metrics::reload_metrics;

/// A value that is read from files, and reloaded when they change. Clones share it.
///
/// Files are compared by content, which detects both files that are rewritten in place and symbolic links that are
/// redirected (as for mounted Secrets). If the files cannot be used, the failure is logged and the load is retried, and
/// the last good value stays. Examples are half-written files, and certificates whose key has not been updated yet.
pub struct WatchedFile<T> {
    value: watch::Receiver<Arc<T>>,
    /// The files of the value; `None` for a fixed value.
    origin: Option<Arc<WatchedFileSource<T>>>,
}

/// The error if the files of a value cannot be used, and there is no earlier value.
#[derive(Debug, thiserror::Error)]
pub enum FileLoadError<E> {
    #[error("cannot read {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Content(E),
}

type ListFilesFn = Box<dyn Fn() -> Vec<PathBuf> + Send + Sync>;
type ParseFilesFn<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync>;

/// The files of a value, and the function that parses them.
struct WatchedFileSource<T> {
    /// The name of the value in logs and metrics.
    what: &'static str,
    files: ListFilesFn,
    read: ParseFilesFn<T>,
    value: watch::Sender<Arc<T>>,
    last_load: Mutex<LastFileLoad>,
    hasher: RandomState,
    /// The metrics of reloads that replaced the value, of those that failed, and of whether the files cannot be used.
    metrics: (Counter, Counter, Gauge),
}

#[derive(Debug)]
struct LastFileLoad {
    /// A hash of the files from which the value was read; `None` if the value expired. The contents are not kept,
    /// because they include private keys.
    fingerprint: Option<u64>,
    /// The reason that the current files cannot be used; `None` if they can.
    last_error: Option<String>,
}

/// The maximum size of a file in bytes: a bundle of some thousand certificates fits.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The default interval between checks of the files.
pub const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

impl<T: Send + Sync + 'static> WatchedFile<T> {
    /// Loads the value from `files`. `read` gets their contents in the same order.
    pub fn load<E: Display>(
        what: &'static str,
        files: Vec<PathBuf>,
        read: impl Fn(&[Vec<u8>]) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, FileLoadError<E>> {
        Self::load_listed(what, move || files.clone(), read)
    }

    /// Loads a value like [`load`](Self::load) if other files name its files: the list of files is computed at every
    /// check.
    pub fn load_listed<E: Display>(
        what: &'static str,
        files: impl Fn() -> Vec<PathBuf> + Send + Sync + 'static,
        read: impl Fn(&[Vec<u8>]) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, FileLoadError<E>> {
        let hasher = RandomState::new();
        let paths = files();
        let contents = read_all(&paths).map_err(|(path, source)| FileLoadError::File { path, source })?;
        let fingerprint = hasher.hash_one((&paths, &contents));
        let first = read(&contents).map_err(FileLoadError::Content)?;
        let read = move |contents: &[Vec<u8>]| read(contents).map_err(|error| error.to_string());
        let last_load = Mutex::new(LastFileLoad { fingerprint: Some(fingerprint), last_error: None });
        let (sender, value) = watch::channel(Arc::new(first));
        let (files, read, metrics) = (Box::new(files), Box::new(read), reload_metrics(what));
        let origin = WatchedFileSource { what, files, read, value: sender, last_load, hasher, metrics };
        Ok(Self { value, origin: Some(Arc::new(origin)) })
    }

    /// Creates a value that never changes.
    pub fn fixed(value: T) -> Self {
        Self { value: watch::channel(Arc::new(value)).1, origin: None }
    }

    /// Returns the last value that could be loaded.
    pub fn current(&self) -> Arc<T> {
        self.value.borrow().clone()
    }

    /// Completes when the value has changed since this clone last returned it.
    pub async fn changed(&mut self) {
        if self.value.changed().await.is_err() {
            // A fixed value never changes.
            pending::<()>().await;
        }
    }

    /// Returns the reason that the files could not be used at the last check.
    pub fn last_error(&self) -> Option<String> {
        self.origin.as_ref()?.last_load.lock().last_error.clone()
    }

    /// Makes the next check load the files even if they have not changed, because the value depends on more than them.
    pub fn expire(&self) {
        if let Some(origin) = &self.origin {
            origin.last_load.lock().fingerprint = None;
        }
    }

    /// Checks the files periodically, forever. It must be spawned once, whatever the number of clones.
    pub async fn watch(self, every: Duration) {
        while self.origin.is_some() {
            sleep(every).await;
            self.check_now().await;
        }
    }

    /// Checks the files now, on a blocking thread: disks may stall, and credential plugins take time.
    pub async fn check_now(&self) {
        let Some(origin) = self.origin.clone() else { return };
        let what = origin.what;
        if let Err(error) = tokio::task::spawn_blocking(move || origin.check()).await {
            tracing::error!(what, %error, "cannot check files for changes; retrying");
        }
    }
}

impl<T> WatchedFileSource<T> {
    fn check(&self) {
        let (replaced, failed, failing) = &self.metrics;
        let found = self.read_if_changed(&(self.files)());
        failing.set(if found.is_ok() { 0.0 } else { 1.0 });
        match found {
            Ok(None) => self.last_load.lock().last_error = None,
            Ok(Some((fingerprint, value))) => {
                replaced.increment(1);
                *self.last_load.lock() = LastFileLoad { fingerprint: Some(fingerprint), last_error: None };
                self.value.send_replace(Arc::new(value));
                tracing::info!(what = self.what, "reloaded changed files");
            }
            Err(why) => {
                failed.increment(1);
                let reported = self.last_load.lock().last_error.replace(why.clone());
                if reported.as_ref() != Some(&why) {
                    tracing::warn!(what = self.what, error = %why, "reload failed; keeping the previous contents");
                }
            }
        }
    }

    fn read_if_changed(&self, paths: &[PathBuf]) -> Result<Option<(u64, T)>, String> {
        let contents = read_all(paths).map_err(|(path, error)| format!("{}: {error}", path.display()))?;
        let fingerprint = self.hasher.hash_one((paths, &contents));
        if self.last_load.lock().fingerprint == Some(fingerprint) {
            return Ok(None);
        }
        Ok(Some((fingerprint, (self.read)(&contents)?)))
    }
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, (PathBuf, io::Error)> {
    paths.iter().map(|path| read_bounded(path).map_err(|error| (path.clone(), error))).collect()
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    if File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)? as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(content)
}

impl<T> Clone for WatchedFile<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), origin: self.origin.clone() }
    }
}

impl<T> fmt::Debug for WatchedFile<T> {
    /// Formats the type without the value, because the files may include keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = self.origin.as_ref().map(|origin| origin.what);
        f.debug_struct("WatchedFile").field("what", &what).finish_non_exhaustive()
    }
}

/// A value that can be replaced while in use. Clones share it.
///
/// Code that takes several steps gets the value once, so that all steps use the same one.
#[derive(Debug)]
pub struct Reloadable<T>(watch::Sender<Arc<T>>);

impl<T> Reloadable<T> {
    pub fn new(value: T) -> Self {
        Self(watch::Sender::new(Arc::new(value)))
    }

    /// Returns the current value.
    pub fn get(&self) -> Arc<T> {
        self.0.borrow().clone()
    }

    /// Replaces the value for all later reads.
    pub fn set(&self, value: T) {
        self.0.send_replace(Arc::new(value));
    }

    /// Completes when the value differs from `known`.
    pub async fn replaced(&self, known: &Arc<T>) {
        // `self` holds the sender, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|value| !Arc::ptr_eq(value, known)).await;
    }
}

impl<T> From<T> for Reloadable<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[cfg(test)]
mod tests;
