//! A server as whoever stands outside of it sees it: where it is, who asks, connections, frames, short requests. What
//! the bench measures with and `verify` judges with.
//!
//! **Invariant:** it knows nothing of what it is connected to, and shares nothing with how the proxy talks upstream.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod caller;
mod frames;
mod link;
mod progress;
mod protocol;
mod target;

pub use caller::{ShortClient, ShortReply};
pub use frames::{FrameTooLong, Frames, Framing};
pub use link::{
    AnswerBody, Driver, H1Sender, H2Sender, LinkError, OpenedLink, PendingAnswer, Sender, WebSocketMessages,
    WebSocketSender, Windows, open,
};
pub use progress::ProgressLine;
pub use protocol::WatchProtocol;
pub use target::{Ask, MemoryConnect, Target, TargetCredentials, TargetError};
