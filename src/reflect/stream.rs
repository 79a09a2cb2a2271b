use std::collections::VecDeque;
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::upstream::{Cause, Client, Error, Question, ResponseBody, Server};
use crate::wire::{Encoding, FrameSplitter, ObjectReader, TABLE_ACCEPT, WatchItem, WireError};
use base::mutant;

/// One open watch upstream: bytes in, decoded items out.
#[derive(Debug)]
pub(super) struct WatchStream {
    body: ResponseBody,
    splitter: FrameSplitter,
    /// Items that were read before the stream was handed on.
    ahead: VecDeque<WatchItem>,
    /// When the last item came. It is kept here because a read may be interrupted at any time.
    last_item: Instant,
}

/// How a stream ended, when not by an error event.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// Upstream closed it on a frame boundary: the ordinary end of a watch.
    #[error("upstream ended the watch")]
    Clean,
    /// Neither an event nor a bookmark for [`SILENCE_MAX`]: the connection is taken for dead (R-UPSTREAM-2).
    #[error("no event and no bookmark for {SILENCE_MAX:?}")]
    Silent,
    #[error(transparent)]
    Failed(#[from] Error),
}

impl Ended {
    /// Whether the stream broke, if need be within a frame.
    pub(super) fn broke_off(&self) -> bool {
        match self {
            Self::Failed(error) => error.broke_off() || matches!(error, Error::Wire(WireError::Truncated)),
            Self::Clean | Self::Silent => false,
        }
    }
}

/// The apiserver sends a bookmark every minute; one and a half without any sign is a dead connection.
const SILENCE_MAX: Duration = Duration::from_secs(90);
/// The largest frame that is read: many times etcd's limit for an object (R-UPSTREAM-7).
const FRAME_BYTES_MAX: usize = 16 << 20;

impl WatchStream {
    /// Opens a watch. The answer must be in `encoding`: anything else is
    /// [`Error::OtherRepresentation`].
    pub(super) async fn open(
        client: &Client,
        cause: Cause,
        path_and_query: &str,
        encoding: Encoding,
    ) -> Result<Self, Error> {
        let response = ask(client, cause, Question::Watch, path_and_query, encoding).await?;
        Ok(Self {
            body: response.into_body(),
            splitter: FrameSplitter::new(encoding, FRAME_BYTES_MAX),
            ahead: VecDeque::new(),
            last_item: Instant::now(),
        })
    }

    /// The server at the other end.
    pub(super) fn server(&self) -> &Server {
        self.body.server()
    }

    /// Whether upstream is a proxy, and answers this from its memory.
    pub(super) fn is_from_memory(&self) -> bool {
        self.body.is_from_memory()
    }

    /// Notes that the state which the stream begins with is whole.
    pub(super) fn is_listed(&mut self) {
        self.body.is_listed();
    }

    /// The same stream with items in front of it that have come already.
    pub(super) fn behind(self, ahead: VecDeque<WatchItem>) -> Self {
        Self { ahead, ..self }
    }

    /// The next item. Cancel-safe: bytes that were read stay in the splitter.
    pub(super) async fn next(&mut self, reader: &ObjectReader) -> Result<WatchItem, Ended> {
        let deadline = self.last_item + SILENCE_MAX;
        loop {
            if let Some(item) = self.buffered(reader)? {
                self.last_item = Instant::now();
                return Ok(item);
            }
            let frame = timeout_at(deadline, self.body.frame()).await.map_err(|_| Ended::Silent)?;
            match frame {
                Some(frame) => {
                    if let Ok(data) = frame.map_err(Error::Broken)?.into_data() {
                        self.splitter.push(&data);
                    }
                }
                None => {
                    // A torn last frame is discarded, and the watch resumes before it.
                    self.splitter.finish().map_err(Error::Wire)?;
                    return Err(Ended::Clean);
                }
            }
        }
    }

    /// An item that has already arrived, if one is whole.
    pub(super) fn buffered(&mut self, reader: &ObjectReader) -> Result<Option<WatchItem>, Error> {
        if let Some(item) = self.ahead.pop_front() {
            return Ok(Some(item));
        }
        match self.splitter.next_frame()?.map(|frame| reader.watch_event(frame)) {
            Some(Err(_)) if mutant(3) => Ok(None),
            item => Ok(item.transpose()?),
        }
    }
}

/// Asks for something in a feed's encoding. Any other answer is [`Error::OtherRepresentation`].
pub(super) async fn ask(
    client: &Client,
    cause: Cause,
    question: Question,
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

/// The `Accept` header for a feed of this encoding. Protobuf comes with JSON behind it, so that a server without it
/// says so by its answer rather than by a 406 (R-ACCEPT-3).
fn accept(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Json => "application/json",
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf,application/json",
        Encoding::Table => TABLE_ACCEPT,
    }
}
