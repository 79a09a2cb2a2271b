use std::error::Error;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Notifies tasks that can free file descriptors. It is process-wide, like the descriptors.
static DESCRIPTOR_REQUESTED: Notify = Notify::const_new();
/// The number of attempts to free a descriptor before the error is final.
pub const DESCRIPTOR_TRIES: u32 = 20;
/// The time to wait for idle client connections to close.
const CLOSE_WAIT: Duration = Duration::from_millis(50);

/// Whether the error means that the process, or the whole machine, has no file descriptors left.
pub fn is_out_of_descriptors(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)))
}

/// Requests that the owners of idle client connections close some, and gives them a moment to do so.
pub async fn request_descriptor() {
    DESCRIPTOR_REQUESTED.notify_waiters();
    sleep(CLOSE_WAIT).await;
}

/// Waits until a task needs a file descriptor and none is free.
pub async fn descriptor_requested() {
    DESCRIPTOR_REQUESTED.notified().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot connect")]
    struct Outer(#[source] io::Error);

    #[test]
    fn descriptor_exhaustion_is_found_in_the_error_source_chain() {
        for (errno, expected) in [(Errno::MFILE, true), (Errno::NFILE, true), (Errno::CONNREFUSED, false)] {
            let error = || io::Error::from_raw_os_error(errno.raw_os_error());
            assert_eq!(is_out_of_descriptors(&error()), expected, "{errno:?}");
            assert_eq!(is_out_of_descriptors(&Outer(error())), expected, "{errno:?} below another");
        }
        assert!(!is_out_of_descriptors(&io::Error::from(io::ErrorKind::ConnectionRefused)));
    }
}
