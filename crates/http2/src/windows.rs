//! Flow control in both directions (RFC 9113 §5.2).

use super::error::{Http2Error, Http2ErrorCode};
use super::frame::{HIGHEST, Http2FrameType};
use super::output::{BUFFERED_BYTES_MAX, FrameOutputBuffer};

/// The initial size of every window in bytes (RFC 9113 §6.9.2).
const FIRST: u32 = 65_535;
/// The maximum number of bytes of a request body that a client may send before they are read.
pub(super) const UPLOAD_BYTES_MAX: usize = 256 << 10;
/// The same limit for all streams of a connection together.
const CONNECTION_BYTES_MAX: usize = 1 << 20;

/// The client's limits on what the server sends.
#[derive(Debug)]
pub(super) struct Http2SendLimits {
    /// The connection's send window, in bytes.
    pub(super) window: i64,
    /// The send window of a new stream, in bytes.
    pub(super) first_window: i64,
    /// The maximum payload of a frame that the client accepts.
    pub(super) frame_bytes_max: usize,
    /// Whether the next header block must announce an empty dynamic table.
    pub(super) must_announce_no_table: bool,
}

impl Http2SendLimits {
    pub(super) fn new() -> Self {
        Self { window: FIRST.into(), first_window: FIRST.into(), frame_bytes_max: 16_384, must_announce_no_table: true }
    }

    /// Applies the client's settings, and skips those that do not concern the server (RFC 9113 §6.5.2). Returns the
    /// change of the streams' windows.
    pub(super) fn take(&mut self, payload: &[u8]) -> Result<i64, Http2Error> {
        let before = self.first_window;
        for setting in payload.chunks_exact(6) {
            let Some((name, value)) = setting.split_first_chunk() else { continue };
            let value = value.try_into().map_or(0, u32::from_be_bytes);
            match (u16::from_be_bytes(*name), value) {
                (0x1, _) => self.must_announce_no_table = true,
                (0x2, 2..) => return Err(Http2Error::protocol("SETTINGS_ENABLE_PUSH is not 0 or 1")),
                (0x4, ..=HIGHEST) => self.first_window = value.into(),
                (0x4, _) => {
                    let what = "SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1";
                    return Err(Http2Error::Connection(Http2ErrorCode::FlowControl, what));
                }
                // Larger frames would only make other streams wait.
                (0x5, 0x4000..=0xff_ffff) => self.frame_bytes_max = (value as usize).min(BUFFERED_BYTES_MAX),
                (0x5, _) => return Err(Http2Error::protocol("SETTINGS_MAX_FRAME_SIZE out of range")),
                _ => {}
            }
        }
        Ok(self.first_window - before)
    }
}

/// Changes a window; `None` if it exceeds the largest window.
pub(super) fn grow(window: &mut i64, by: i64) -> Option<()> {
    *window += by;
    (*window <= HIGHEST.into()).then_some(())
}

/// The server's limit on what a client sends on a connection.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    left: usize,
    /// The number of bytes that were read and not yet returned to the client's window.
    unacked: usize,
}

impl ReceiveWindow {
    /// Announces the server's limits, which must be the first frames of a connection.
    pub(super) fn announced(output: &mut FrameOutputBuffer, streams_max: usize, header_bytes_max: usize) -> Self {
        let values = [(0x3, streams_max), (0x4, UPLOAD_BYTES_MAX), (0x6, header_bytes_max)];
        let setting = |(name, value): (u16, usize)| {
            let value = u32::try_from(value).unwrap_or(u32::MAX);
            name.to_be_bytes().into_iter().chain(value.to_be_bytes())
        };
        output.put(Http2FrameType::Settings, 0, 0, &values.into_iter().flat_map(setting).collect::<Vec<_>>());
        output.put_window(0, CONNECTION_BYTES_MAX - FIRST as usize);
        Self { left: CONNECTION_BYTES_MAX, unacked: 0 }
    }

    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Http2Error> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or(Http2Error::Connection(
            Http2ErrorCode::FlowControl,
            "data exceeds the connection's flow-control window",
        ))?;
        Ok(())
    }

    /// Returns window to the client, and sends the update once it is half of the whole.
    pub(super) fn release(&mut self, bytes: usize, output: &mut FrameOutputBuffer) {
        self.unacked += bytes;
        if self.unacked >= CONNECTION_BYTES_MAX / 2 {
            output.put_window(0, self.unacked);
            self.left += self.unacked;
            self.unacked = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_settings_change_send_limits() {
        let mut send = Http2SendLimits::new();
        send.must_announce_no_table = false;
        assert_eq!(send.take(&[0, 4, 0, 0, 0, 1, 0, 5, 0, 255, 255, 255, 0, 4, 0, 0, 0, 5]), Ok(5 - 65_535));
        assert_eq!(
            (send.first_window, send.frame_bytes_max, send.must_announce_no_table),
            (5, BUFFERED_BYTES_MAX, false)
        );
        assert_eq!(send.take(&[0, 1, 0, 0, 0, 0]), Ok(0));
        assert!(send.must_announce_no_table);
        assert!(send.take(&[0, 5, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn window_is_31_bits_and_can_be_negative() {
        let mut window = 10;
        assert_eq!((grow(&mut window, -20), window), (Some(()), -10));
        assert_eq!(grow(&mut window, i64::from(HIGHEST)), Some(()));
        assert_eq!(grow(&mut window, 11), None);
    }

    #[test]
    fn receive_window_is_returned_in_halves_without_loss() {
        let mut output = FrameOutputBuffer::default();
        let mut window = ReceiveWindow::announced(&mut output, 250, 65_536);
        assert_eq!(window.take(CONNECTION_BYTES_MAX), Ok(()));
        assert!(matches!(window.take(1), Err(Http2Error::Connection(Http2ErrorCode::FlowControl, _))));
        window.release(CONNECTION_BYTES_MAX / 2 - 1, &mut output);
        assert!(window.take(1).is_err());
        window.release(CONNECTION_BYTES_MAX / 2 + 1, &mut output);
        assert_eq!(window.take(CONNECTION_BYTES_MAX), Ok(()));
    }

    #[test]
    fn known_settings_are_parsed_and_invalid_values_refused() {
        let read = |name: u8, value: u32| {
            let (mut payload, mut limits) = (vec![0, name], Http2SendLimits::new());
            payload.extend(value.to_be_bytes());
            limits.must_announce_no_table = false;
            let change = limits.take(&payload).ok()?;
            Some((limits.must_announce_no_table, change, limits.frame_bytes_max))
        };
        let first = i64::from(FIRST);
        assert_eq!(read(1, 0), Some((true, 0, 16_384)));
        let unchanged = Some((false, 0, 16_384));
        assert_eq!([read(2, 0), read(2, 1), read(2, 2)], [unchanged, unchanged, None]);
        assert_eq!(read(4, HIGHEST), Some((false, i64::from(HIGHEST) - first, 16_384)));
        assert_eq!(read(4, HIGHEST + 1), None);
        assert_eq!([read(5, 16_383), read(5, 1 << 24)], [None, None]);
        assert_eq!([read(5, 16_384), read(5, 16_385)], [unchanged, Some((false, 0, 16_385))]);
        assert_eq!([read(3, 7), read(99, 7)], [unchanged, unchanged]);
    }
}
