use std::collections::VecDeque;
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::upstream::{Cause, Client, Error, ResponseBody, Server, UpstreamRequestKind};
use crate::wire::{Encoding, FrameSplitter, ObjectReader, TABLE_ACCEPT, WatchItem, WireError};

/// One open upstream watch. It reads bytes and returns decoded items.
#[derive(Debug)]
pub(super) struct WatchStream {
    body: ResponseBody,
    splitter: FrameSplitter,
    /// Items that were read before the stream was passed on.
    ahead: VecDeque<WatchItem>,
    /// The time at which the last item was received. It is a field because a read may be cancelled at any time.
    last_item: Instant,
}

/// The way in which a stream ended, other than by an ERROR event.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamEnd {
    /// Upstream closed the watch on a frame boundary, which is its ordinary end.
    #[error("upstream ended the watch")]
    Clean,
    /// Neither an event nor a bookmark was received for [`SILENCE_MAX`], so the connection counts as lost
    /// (R-UPSTREAM-2).
    #[error("no event or bookmark received for {SILENCE_MAX:?}")]
    Silent,
    #[error(transparent)]
    Failed(#[from] Error),
}

impl StreamEnd {
    /// Whether the stream broke, including in the middle of a frame.
    pub(super) fn broke_off(&self) -> bool {
        match self {
            Self::Failed(error) => error.broke_off() || matches!(error, Error::Wire(WireError::Truncated)),
            Self::Clean | Self::Silent => false,
        }
    }
}

/// The maximum time without an item. The apiserver sends a bookmark every minute, so a minute and a half of silence
/// indicates a dead connection.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// The maximum size of a watch frame in bytes: many times etcd's limit for an object (R-UPSTREAM-7).
const FRAME_BYTES_MAX: usize = 16 << 20;

impl WatchStream {
    /// Opens a watch. If the response is not in `encoding`, fails with [`Error::OtherRepresentation`].
    pub(super) async fn open(
        client: &Client,
        cause: Cause,
        path_and_query: &str,
        encoding: Encoding,
    ) -> Result<Self, Error> {
        let response = ask(client, cause, UpstreamRequestKind::Watch, path_and_query, encoding).await?;
        Ok(Self {
            body: response.into_body(),
            splitter: FrameSplitter::new(encoding, FRAME_BYTES_MAX),
            ahead: VecDeque::new(),
            last_item: Instant::now(),
        })
    }

    /// Returns the server at the other end of the watch.
    pub(super) fn server(&self) -> &Server {
        self.body.server()
    }

    /// Whether upstream is a proxy that responds from its cache.
    pub(super) fn is_from_memory(&self) -> bool {
        self.body.is_from_memory()
    }

    /// Records that the state at the start of the stream is complete.
    pub(super) fn is_listed(&mut self) {
        self.body.is_listed();
    }

    /// Prepends items that have already been read to the stream.
    pub(super) fn behind(self, ahead: VecDeque<WatchItem>) -> Self {
        Self { ahead, ..self }
    }

    /// Returns the next item of the watch. Cancel-safe: bytes that were read stay in the splitter.
    pub(super) async fn next(&mut self, reader: &ObjectReader) -> Result<WatchItem, StreamEnd> {
        let deadline = self.last_item + SILENCE_MAX;
        loop {
            if let Some(item) = self.buffered(reader)? {
                self.last_item = Instant::now();
                return Ok(item);
            }
            let frame = timeout_at(deadline, self.body.frame()).await.map_err(|_| StreamEnd::Silent)?;
            match frame {
                Some(frame) => {
                    if let Ok(data) = frame.map_err(Error::Broken)?.into_data() {
                        self.splitter.push(&data);
                    }
                }
                None => {
                    // An incomplete last frame is an error, and the watch resumes before it.
                    self.splitter.finish().map_err(Error::Wire)?;
                    return Err(StreamEnd::Clean);
                }
            }
        }
    }

    /// Returns an item that has already arrived completely.
    pub(super) fn buffered(&mut self, reader: &ObjectReader) -> Result<Option<WatchItem>, Error> {
        if let Some(item) = self.ahead.pop_front() {
            return Ok(Some(item));
        }
        let item = self.splitter.next_frame()?.map(|frame| reader.watch_event(frame));
        Ok(item.transpose()?)
    }
}

/// Sends a request in a feed's encoding. If the response has another encoding, fails with
/// [`Error::OtherRepresentation`].
pub(super) async fn ask(
    client: &Client,
    cause: Cause,
    question: UpstreamRequestKind,
    path_and_query: &str,
    encoding: Encoding,
) -> Result<Response<ResponseBody>, Error> {
    let response = match encoding {
        Encoding::Json | Encoding::Protobuf => client.open(cause, question, path_and_query, accept(encoding)).await?,
        Encoding::Table => {
            let mark = if path_and_query.contains('?') { '&' } else { '?' };
            let path_and_query = format!("{path_and_query}{mark}includeObject=Object");
            client.open(cause, question, &path_and_query, accept(encoding)).await?
        }
    };
    let answered = crate::upstream::encoding_of(&response);
    if answered != Some(encoding.byte_encoding()) {
        return Err(Error::OtherRepresentation { asked: encoding.as_str().to_owned(), answered });
    }
    Ok(response)
}

/// Returns the `Accept` header for a feed of this encoding. Protobuf is followed by JSON, so that a server without
/// protobuf responds in JSON rather than with a 406 (R-ACCEPT-3).
fn accept(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Json => "application/json",
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf,application/json",
        Encoding::Table => TABLE_ACCEPT,
    }
}
