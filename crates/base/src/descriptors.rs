use std::error::Error;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Whoever makes room for a descriptor waits here. There is one for the process, as its descriptors are its own.
static WANTED: Notify = Notify::const_new();
/// How often they are asked for one before there is none for good.
pub const DESCRIPTOR_TRIES: u32 = 20;
/// Clients that say nothing are gone by then, as a rule.
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Whether this failed because the process, or the whole machine, has no descriptors left.
pub fn lacks_descriptor(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE)))
}

/// Asks those who hold descriptors for clients that say nothing to give up some, and leaves them a moment for it.
pub async fn want_descriptor() {
    WANTED.notify_waiters();
    sleep(ROOM_PAUSE).await;
}

/// Waits until somebody has no descriptor and needs one.
pub async fn descriptor_wanted() {
    WANTED.notified().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot connect")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_lack_of_descriptors_is_found_below_what_it_made_fail() {
        for (errno, expected) in [(Errno::MFILE, true), (Errno::NFILE, true), (Errno::CONNREFUSED, false)] {
            let error = || io::Error::from_raw_os_error(errno.raw_os_error());
            assert_eq!(lacks_descriptor(&error()), expected, "{errno:?}");
            assert_eq!(lacks_descriptor(&Outer(error())), expected, "{errno:?} below another");
        }
        assert!(!lacks_descriptor(&io::Error::from(io::ErrorKind::ConnectionRefused)));
    }
}
