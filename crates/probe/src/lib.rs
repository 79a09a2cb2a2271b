//! An independent client of a server: address, credentials, connections, frames and short requests. `bench` measures
//! with it and `verify` checks with it.
//!
//! **Invariant:** this crate does not depend on what kind of server it is connected to. It shares no code with the
//! proxy's upstream client.

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
