//! A server as whoever stands outside of it sees it: where it is, who asks, connections, frames, short requests. What
//! the bench measures with and `verify` judges with.
//!
//! **Invariant:** it knows nothing of what it is connected to, and shares nothing with how the proxy talks upstream.

mod caller;
mod frames;
mod link;
mod progress;
mod protocol;
mod target;

pub(crate) use caller::{ShortClient, ShortReply};
pub(crate) use frames::{Frames, Framing};
pub(crate) use link::{AnswerBody, Driver, LinkError, OpenedLink, PendingAnswer, Sender, Windows, open};
pub use progress::ProgressLine;
pub use protocol::WatchProtocol;
pub(crate) use target::Ask;
pub use target::{MemoryConnect, Target, TargetCredentials, TargetError};
