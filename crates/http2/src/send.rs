//! Sending of responses on the streams of a connection.

use std::mem::{replace, take};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, Bytes};
use futures_util::task::waker_ref;
use http::{HeaderMap, Response};
use http_body::{Body, Frame};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::connection::Http2Connection;
use super::error::{Http2Error, Http2ErrorCode};
use super::exchange::{ExchangePhase, Http2Exchange};
use super::frame::{END_STREAM, Http2FrameType};
use super::hpack;
use super::output::{COPIED_BYTES_MAX, DIRECT_BYTES_MAX};
use super::response_head;
use super::service::{HttpService, IdleAwareBody as _};
use super::windows::UPLOAD_BYTES_MAX;

/// The number of bytes of a response that are sent before other streams have their turn: one write.
const STREAM_QUANTUM: usize = DIRECT_BYTES_MAX;

impl<I: AsyncRead + AsyncWrite + Unpin, S: HttpService> Http2Connection<I, S> {
    /// Polls a woken stream. If `is_alone`, no other stream is sent in this turn.
    pub(super) fn poll_stream(&mut self, key: usize, is_alone: bool) {
        // The wake-up may be for a closed stream. If another one has its key, that one is polled without need.
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.waker.clear_woken();
        stream.count_poll();
        if stream.abort.is_aborted() {
            return self.reset(key, Http2ErrorCode::Cancel);
        }
        if let ExchangePhase::Handling { future, .. } = &mut stream.phase {
            match Pin::new(future).poll(&mut Context::from_waker(&waker_ref(&stream.waker))) {
                Poll::Pending => {}
                Poll::Ready(response) if self.has_room() => self.start_response(key, response),
                Poll::Ready(response) => self.delay_response(key, response),
            }
        } else if matches!(stream.phase, ExchangePhase::HeadReady { .. }) {
            self.resume_response(key);
        }
        self.return_window(key);
        self.send_body(key, is_alone);
        self.limit(key);
    }

    /// Keeps an answer until there is room for its head. A stream whose answer does not fit into the budget of heads is
    /// reset.
    fn delay_response(&mut self, key: usize, response: Response<S::Body>) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let ExchangePhase::Handling { head, .. } = replace(&mut stream.phase, ExchangePhase::Transition) else {
            return;
        };
        let Some(head) = self.heads.replace(head, head_bytes(&response)) else {
            return self.reset(key, Http2ErrorCode::EnhanceYourCalm);
        };
        stream.phase = ExchangePhase::HeadReady { response: Box::new(response), _head: head };
        self.waiting_heads += 1;
        self.wait(key, false);
    }

    fn resume_response(&mut self, key: usize) {
        if !self.has_room() {
            return self.wait(key, false);
        }
        let Some(stream) = self.streams.get_mut(key) else { return };
        let ExchangePhase::HeadReady { response, .. } = replace(&mut stream.phase, ExchangePhase::Transition) else {
            return;
        };
        self.waiting_heads -= 1;
        self.start_response(key, *response);
    }

    fn start_response(&mut self, key: usize, response: Response<S::Body>) {
        let (mut head, body) = response.into_parts();
        let ends = body.is_end_stream();
        let mut block = self.start_block();
        let length = body.size_hint().exact().filter(|_| !ends);
        response_head::put(&mut block, head.status.as_u16(), &mut head.headers, length);
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.phase = ExchangePhase::SendingBody(body);
        self.output.put_block(stream.id, &block, ends, self.send.frame_bytes_max);
        if ends {
            self.finish(key);
        }
    }

    /// Starts a header block, with the table size update if one is due.
    pub(super) fn start_block(&mut self) -> Vec<u8> {
        let mut block = Vec::with_capacity(512);
        if take(&mut self.send.must_announce_no_table) {
            hpack::write_table_size_zero(&mut block);
        }
        block
    }

    /// Sends available body data as far as there is room. No data is taken from the body before there is room for it.
    fn send_body(&mut self, key: usize, mut is_alone: bool) {
        let mut left = STREAM_QUANTUM;
        let mut is_parked = false;
        while let Some(stream) = self.streams.get_mut(key) {
            let ExchangePhase::SendingBody(_) = stream.phase else { return };
            let (is_between, is_last) = (stream.chunk.is_empty(), stream.is_last);
            if !(is_between && is_last) {
                if stream.window <= 0 {
                    // A WINDOW_UPDATE wakes the stream.
                    return;
                }
                if self.send.window <= 0 || !self.has_room() {
                    return self.wait(key, left < STREAM_QUANTUM);
                }
            }
            if is_between && !is_last {
                if is_parked {
                    // If the body has been woken since, the stream is polled again.
                    return;
                }
                let Some(stream) = self.streams.get_mut(key) else { return };
                let ExchangePhase::SendingBody(body) = &mut stream.phase else { return };
                let polled = Pin::new(&mut *body).poll_frame(&mut Context::from_waker(&waker_ref(&stream.waker)));
                match polled.map_ok(Frame::into_data) {
                    Poll::Pending => return,
                    Poll::Ready(Some(Ok(Ok(data)))) => {
                        stream.chunk = data;
                        (stream.is_last, is_parked) = (body.is_end_stream(), body.is_parked());
                        continue;
                    }
                    Poll::Ready(Some(Ok(Err(frame)))) => match frame.into_trailers() {
                        Ok(trailers) => return self.send_trailers(key, &trailers),
                        Err(_) => stream.is_last = true,
                    },
                    Poll::Ready(Some(Err(_))) => return self.reset(key, Http2ErrorCode::Internal),
                    Poll::Ready(None) => stream.is_last = true,
                }
            }
            if left == 0 {
                return self.streams.get(key).iter().for_each(|stream| stream.wake());
            }
            left = left.saturating_sub(self.send_piece(key, left, is_alone));
            is_alone = false;
        }
    }

    /// Sends what fits into one write, and returns its size in bytes. The last piece ends the stream.
    fn send_piece(&mut self, key: usize, at_most: usize, is_alone: bool) -> usize {
        let Some(stream) = self.streams.get_mut(key) else { return 0 };
        let room = usize::try_from(stream.window.min(self.send.window)).unwrap_or(0);
        let (id, length) = (stream.id, stream.chunk.len().min(room).min(at_most));
        let flags = |end| if stream.is_last && end == stream.chunk.len() { END_STREAM } else { 0 };
        let mut sent = 0;
        if is_alone || length > COPIED_BYTES_MAX {
            let data = (flags(length), id, &stream.chunk[..length]);
            // The next read returns the same error.
            let put = self.output.put_directly(&mut self.io, &mut Context::from_waker(&self.writer), data);
            sent = put.unwrap_or_default();
        }
        if sent == 0 {
            sent = length.min(self.send.frame_bytes_max);
            self.output.put(Http2FrameType::Data, flags(sent), id, &stream.chunk[..sent]);
        }
        let ends = flags(sent) != 0;
        stream.chunk.advance(sent);
        if stream.chunk.is_empty() {
            // An empty slice would keep its buffer alive.
            stream.chunk = Bytes::new();
        }
        self.allowance = self.allowance.saturating_sub(sent);
        self.abuse_budget.note_sent(sent);
        let spent = i64::try_from(sent).unwrap_or(i64::MAX);
        stream.window -= spent;
        self.send.window -= spent;
        if ends {
            self.finish(key);
        }
        sent
    }

    fn send_trailers(&mut self, key: usize, trailers: &HeaderMap) {
        let mut block = self.start_block();
        hpack::put_fields(&mut block, trailers);
        if let Some(stream) = self.streams.get(key) {
            self.output.put_block(stream.id, &block, true, self.send.frame_bytes_max);
        }
        self.finish(key);
    }

    /// Whether more response data may be put. Writes the buffered frames first if the buffer is full.
    fn has_room(&mut self) -> bool {
        if self.allowance == 0 {
            return false;
        }
        if self.output.is_full() {
            // The next read returns the same error.
            let _ = self.output.poll_out(&mut self.io, &mut Context::from_waker(&self.writer));
        }
        !self.output.is_full()
    }

    fn wait(&mut self, key: usize, has_sent: bool) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        match (replace(&mut stream.is_waiting, true), has_sent) {
            (true, _) => {}
            (false, true) => self.waiting_again.push(key),
            (false, false) => self.waiting.push_back(key),
        }
    }

    /// Returns to the client the window of request body data that was read.
    fn return_window(&mut self, key: usize) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Some(upload) = &mut stream.upload else { return };
        let (taken, is_dropped) = upload.inbox.take_read();
        if is_dropped {
            // The body was dropped, so the client may only use the rest of its window.
            return self.receive.release(taken, &mut self.output);
        }
        upload.unacked += taken;
        if !upload.has_ended && upload.unacked >= UPLOAD_BYTES_MAX / 2 {
            self.output.put_window(stream.id, upload.unacked);
            upload.window += take(&mut upload.unacked);
        }
        self.receive.release(taken, &mut self.output);
    }

    /// Sets the deadline of a stream whose time is limited. Most streams end at once and need no timer.
    fn limit(&mut self, key: usize) {
        let Some(stream) = self.streams.get_mut(key).filter(|stream| stream.deadline.is_none()) else { return };
        if let Some((max, _)) = stream.abort.timeout() {
            let at = Instant::now() + max;
            stream.deadline = Some(at);
            self.check_timer_by(at);
        }
    }

    /// Ends a stream whose response is complete. The rest of the request is not awaited (RFC 9113 §8.1).
    fn finish(&mut self, key: usize) {
        if self.streams.get(key).is_some_and(Http2Exchange::is_receiving) {
            self.reset(key, Http2ErrorCode::No);
        } else {
            self.remove(key);
        }
    }

    fn reset(&mut self, key: usize, reason: Http2ErrorCode) {
        if let Some(stream) = self.streams.get(key) {
            self.recent_resets.note(stream.id, stream.upload_window());
            self.output.put_reset(stream.id, reason);
        }
        self.remove(key);
    }

    /// Resets the stream with the identifier `id` because of a client error.
    pub(super) fn reset_for(&mut self, id: u32, reason: Http2ErrorCode) -> Result<(), Http2Error> {
        match self.streams.key(id) {
            Some(key) => self.reset(key, reason),
            None if id > self.highest_stream => return Err(Http2Error::Connection(reason, "frame on an idle stream")),
            None => {
                self.output.put_reset(id, reason);
                self.recent_resets.note(id, 0);
            }
        }
        self.abuse_budget.spend()
    }

    /// Removes a stream. This drops the future or body of the response, and the reader of the request body gets its
    /// end.
    pub(super) fn remove(&mut self, key: usize) {
        let Some(stream) = self.streams.remove(key) else { return };
        if matches!(stream.phase, ExchangePhase::HeadReady { .. }) {
            self.waiting_heads -= 1;
        }
        if let Some(upload) = &stream.upload {
            self.receive.release(upload.inbox.unacked(), &mut self.output);
        }
        if stream.is_waiting {
            self.waiting.retain(|waiting| *waiting != key);
            self.waiting_again.retain(|waiting| *waiting != key);
        }
    }
}

/// Returns the size of a response head, as HTTP/2 counts it.
fn head_bytes<B>(response: &Response<B>) -> usize {
    response.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + hpack::FIELD_BYTES).sum()
}
