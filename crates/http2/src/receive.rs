//! Processing of a client's frames.

use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use futures_util::task::{self, waker_ref};
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::{GOAWAY_PING, GoAwayState, HEADER_BLOCKS, Http2Connection};
use super::error::{Http2Error, Http2ErrorCode};
use super::exchange::{ExchangePhase, Http2Exchange, RequestUpload};
use super::frame::{ACK, Http2Frame, Http2FrameType};
use super::received_body::{ReceivedBody, ReceivedBodyBuffer};
use super::request_head::{RequestHead, RequestHeadError};
use super::response_head;
use super::service::HttpService;
use super::wake_set::StreamWaker;
use super::windows::{UPLOAD_BYTES_MAX, grow};
use base::MemoryCharge;

/// The status of the only response that the codec creates itself (RFC 6585 §5).
const FIELDS_TOO_LARGE: u16 = 431;

const TOO_LARGE: Http2Error = Http2Error::Connection(Http2ErrorCode::FlowControl, "flow-control window overflow");

impl<I: AsyncRead + AsyncWrite + Unpin, S: HttpService> Http2Connection<I, S> {
    pub(super) fn receive_frame(&mut self, frame: Http2Frame<'_>) -> Result<(), Http2Error> {
        if !self.has_settings {
            if !matches!(frame, Http2Frame::Settings(_)) {
                return Err(Http2Error::protocol("the first frame is not SETTINGS"));
            }
            self.has_settings = true;
        }
        match frame {
            Http2Frame::Headers { stream, block, end_stream, .. } => {
                return self.receive_fields(stream, &block, end_stream);
            }
            Http2Frame::Data { stream, data, flow, end_stream } => {
                return self.receive_data(stream, data, flow, end_stream);
            }
            Http2Frame::WindowUpdate { stream, increment } => return self.receive_window(stream, increment.into()),
            Http2Frame::Reset { stream } => return self.receive_reset(stream),
            Http2Frame::Settings(payload) => self.receive_settings(payload)?,
            Http2Frame::Ping(opaque) => self.output.put_pong(opaque),
            Http2Frame::Pong(GOAWAY_PING) if self.goaway == GoAwayState::Announced => {
                self.goaway = GoAwayState::Sent;
                self.output.put_goaway(self.last_stream, Http2ErrorCode::No);
            }
            Http2Frame::GoAway => self.is_client_leaving = true,
            Http2Frame::Pong(_) | Http2Frame::Ignored => {}
            Http2Frame::Continuation { .. } => unreachable!("it is joined with its header block"),
        }
        self.abuse_budget.spend()
    }

    fn receive_fields(&mut self, stream: u32, block: &[u8], end_stream: bool) -> Result<(), Http2Error> {
        let mut head = RequestHead::new(self.limits.header_bytes_max);
        self.decoder.read(block, HEADER_BLOCKS * self.limits.header_bytes_max, |name, value| {
            head.take(name, value);
        })?;
        let bytes = head.bytes;
        if let Some(exchange) = self.streams.with_id(stream) {
            return exchange.receive_trailers(head, end_stream, self.heads.charge(bytes));
        }
        if stream.is_multiple_of(2) {
            return Err(Http2Error::protocol("stream identifier reserved for servers"));
        }
        if stream <= self.highest_stream {
            if self.recent_resets.has(stream) {
                return self.abuse_budget.spend();
            }
            return Err(Http2Error::Connection(Http2ErrorCode::StreamClosed, "frame on a closed stream"));
        }
        self.highest_stream = stream;
        if self.goaway == GoAwayState::Sent {
            // The client receives the last processed stream in GOAWAY, and may send the rest of this request before
            // that.
            self.recent_resets.note(stream, body_window(end_stream));
            return self.abuse_budget.spend();
        }
        self.last_stream = stream;
        if self.streams.len() >= self.limits.streams_max {
            return self.refuse_stream(stream, Http2ErrorCode::Refused, end_stream);
        }
        match head.into_request(end_stream) {
            Ok((request, length)) => match self.heads.charge(bytes) {
                Some(charge) => self.start(stream, request, (length, end_stream), charge),
                None => return self.refuse_stream(stream, Http2ErrorCode::Refused, end_stream),
            },
            Err(RequestHeadError::Malformed) => {
                return self.refuse_stream(stream, Http2ErrorCode::Protocol, end_stream);
            }
            Err(RequestHeadError::TooLarge) => {
                let mut block = self.start_block();
                response_head::put(&mut block, FIELDS_TOO_LARGE, &mut HeaderMap::new(), Some(0));
                self.output.put_block(stream, &block, true, self.send.frame_bytes_max);
                if !end_stream {
                    self.output.put_reset(stream, Http2ErrorCode::No);
                    self.recent_resets.note(stream, body_window(end_stream));
                }
                return self.abuse_budget.spend();
            }
        }
        Ok(())
    }

    /// Resets a stream that is refused before it begins. The rest of its body is discarded.
    fn refuse_stream(&mut self, id: u32, reason: Http2ErrorCode, end_stream: bool) -> Result<(), Http2Error> {
        self.output.put_reset(id, reason);
        self.recent_resets.note(id, body_window(end_stream));
        self.abuse_budget.spend()
    }

    fn start(
        &mut self,
        id: u32,
        request: Request<()>,
        (length, end_stream): (Option<u64>, bool),
        charge: MemoryCharge,
    ) {
        // Some clients enlarge each stream's window, so a new stream allows as many frames as one byte.
        self.abuse_budget.note_sent(1);
        self.started += 1;
        let waker = Arc::new(StreamWaker::new(self.wake_set.clone(), self.streams.next_key()));
        let (upload, body) = if end_stream {
            (None, ReceivedBody::empty())
        } else {
            let (inbox, body) = ReceivedBodyBuffer::new(length, task::waker(waker.clone()));
            let upload =
                RequestUpload { inbox, window: UPLOAD_BYTES_MAX, unacked: 0, has_ended: false, trailers: None };
            (Some(Box::new(upload)), body)
        };
        let Some((future, abort)) = self.service.call(request.map(|()| body)) else {
            self.output.put_reset(id, Http2ErrorCode::Refused);
            self.recent_resets.note(id, body_window(end_stream));
            return;
        };
        // Registered once, because the waker stays the same. A stream that is already cut is polled in any case.
        let _ = abort.poll_aborted(&Context::from_waker(&waker_ref(&waker)));
        let stream = Http2Exchange {
            id,
            phase: ExchangePhase::Handling { future, head: charge },
            chunk: Bytes::new(),
            is_last: false,
            window: self.send.first_window,
            upload,
            waker,
            abort,
            deadline: None,
            polls: 0,
            is_waiting: false,
        };
        stream.wake();
        self.streams.put(stream);
    }

    fn receive_data(&mut self, id: u32, data: &[u8], flow: usize, end_stream: bool) -> Result<(), Http2Error> {
        self.receive.take(flow)?;
        let Some(stream) = self.streams.with_id(id) else {
            self.receive.release(flow, &mut self.output);
            self.check_not_idle(id)?;
            return match self.recent_resets.take(id, flow, end_stream) {
                Some(true) => Ok(()),
                Some(false) => self.abuse_budget.spend(),
                None => Err(Http2Error::Stream(id, Http2ErrorCode::StreamClosed)),
            };
        };
        let Some(upload) = stream.upload.as_mut().filter(|upload| !upload.has_ended) else {
            self.receive.release(flow, &mut self.output);
            return Err(Http2Error::Stream(id, Http2ErrorCode::StreamClosed));
        };
        let Some(left) = upload.window.checked_sub(flow) else {
            self.receive.release(flow, &mut self.output);
            return Err(Http2Error::Stream(id, Http2ErrorCode::FlowControl));
        };
        upload.window = left;
        // Padding is not delivered, so its window is returned at once.
        upload.unacked += flow - data.len();
        self.receive.release(flow - data.len(), &mut self.output);
        if upload.inbox.put(data).is_none() {
            self.receive.release(data.len(), &mut self.output);
            return Err(Http2Error::Stream(id, Http2ErrorCode::Protocol));
        }
        if end_stream {
            upload.has_ended = true;
            return upload.inbox.end(None).ok_or(Http2Error::Stream(id, Http2ErrorCode::Protocol));
        }
        if data.is_empty() { self.abuse_budget.spend() } else { Ok(()) }
    }

    fn receive_window(&mut self, id: u32, increment: i64) -> Result<(), Http2Error> {
        self.abuse_budget.spend_on_window()?;
        if id == 0 {
            let grown = grow(&mut self.send.window, increment);
            self.wake_waiting();
            return grown.ok_or(TOO_LARGE);
        }
        let Some(stream) = self.streams.with_id(id) else {
            // Clients return the window for data they have read, long after the response has ended.
            return self.check_not_idle(id);
        };
        stream.widen(increment).ok_or(Http2Error::Stream(id, Http2ErrorCode::FlowControl))
    }

    fn receive_reset(&mut self, id: u32) -> Result<(), Http2Error> {
        let Some(key) = self.streams.key(id) else {
            self.check_not_idle(id)?;
            // The client has received the reset, so no more can arrive on the stream.
            self.recent_resets.forget(id);
            return self.abuse_budget.spend();
        };
        let is_answered =
            self.streams.get(key).is_some_and(|stream| !matches!(stream.phase, ExchangePhase::Handling { .. }));
        self.remove(key);
        // Cancelling a request without a response costs the client nothing, so it is charged.
        if is_answered { Ok(()) } else { self.abuse_budget.spend() }
    }

    /// Refuses a frame on an idle stream. A stream that has ended is not idle.
    fn check_not_idle(&self, id: u32) -> Result<(), Http2Error> {
        if id > self.highest_stream || id.is_multiple_of(2) {
            return Err(Http2Error::protocol("frame on an idle stream"));
        }
        Ok(())
    }

    fn receive_settings(&mut self, payload: &[u8]) -> Result<(), Http2Error> {
        let by = self.send.take(payload)?;
        if by != 0 && !self.streams.all().all(|stream| stream.widen(by).is_some()) {
            return Err(TOO_LARGE);
        }
        self.output.put(Http2FrameType::Settings, ACK, 0, &[]);
        Ok(())
    }
}

/// Returns the number of bytes of a request body that a client may send before it receives the reset.
fn body_window(end_stream: bool) -> usize {
    if end_stream { 0 } else { UPLOAD_BYTES_MAX }
}

impl<F, B> Http2Exchange<F, B> {
    fn receive_trailers(
        &mut self,
        head: RequestHead,
        end_stream: bool,
        charge: Option<MemoryCharge>,
    ) -> Result<(), Http2Error> {
        let id = self.id;
        let Some(upload) = self.upload.as_mut().filter(|upload| !upload.has_ended) else {
            return Err(Http2Error::Stream(id, Http2ErrorCode::StreamClosed));
        };
        let trailers =
            head.into_trailers().filter(|_| end_stream).ok_or(Http2Error::Stream(id, Http2ErrorCode::Protocol))?;
        upload.trailers = Some(charge.ok_or(Http2Error::Stream(id, Http2ErrorCode::EnhanceYourCalm))?);
        upload.has_ended = true;
        upload.inbox.end(Some(trailers)).ok_or(Http2Error::Stream(id, Http2ErrorCode::Protocol))
    }
}
