//! Reads a watch-list until its initial state is whole. A watch with a timeout may end before that, if the machine stalls.

use std::io::Write;

use bytes::{Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use http_body_util::BodyExt;

use super::{Answer, Frame, Http, RequestSpec, Unframed, within};

const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";

/// The initial state that a watch-list has sent.
pub struct InitialState {
    /// With the bytes that have arrived.
    pub answer: Answer,
    /// The same bytes, decompressed if they are compressed.
    pub plain: Vec<u8>,
    /// Without the bookmark that ends it.
    pub events: Vec<Frame>,
}

impl Http {
    /// Opens a watch-list, and reads it until the bookmark that ends its initial state.
    pub async fn initial_state(&self, request: RequestSpec) -> InitialState {
        let what = request.path.clone();
        let (head, mut body) = self.send(request).await.into_parts();
        let mut answer = Answer { status: head.status, headers: head.headers, body: Bytes::new() };
        let mut frames = Unframed::new(answer.content_type());
        let mut decoder = (answer.header("content-encoding") == "gzip").then(|| MultiGzDecoder::new(Vec::new()));
        let (mut read, mut plain, mut events) = (BytesMut::new(), Vec::new(), Vec::new());
        loop {
            let chunk = within(&what, body.frame()).await.expect("the bookmark comes before the end").expect("a frame");
            let Some(chunk) = chunk.data_ref() else { continue };
            read.extend_from_slice(chunk);
            let inflated = decoder.as_mut().map_or_else(
                || chunk.to_vec(),
                |decoder| {
                    let written = decoder.write_all(chunk).and_then(|()| decoder.flush());
                    written.unwrap_or_else(|error| panic!("{what}: {error}"));
                    std::mem::take(decoder.get_mut())
                },
            );
            frames.push(&inflated);
            plain.extend_from_slice(&inflated);
            while let Some(frame) = frames.next() {
                let (Frame::Json(bytes) | Frame::Protobuf(bytes)) = &frame;
                if bytes.windows(INITIAL_EVENTS_END.len()).any(|window| window == INITIAL_EVENTS_END) {
                    answer.body = read.freeze();
                    return InitialState { answer, plain, events };
                }
                events.push(frame);
            }
        }
    }
}
