//! An independent client of a server: address, credentials, connections, frames and short requests. `bench` measures
//! with it and `verify` checks with it.
//!
//! **Invariant:** this crate does not depend on what kind of server it is connected to. It shares no code with the
//! proxy's upstream client.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod frames;
mod link;
mod progress;
mod protocol;
mod target;
mod unary_client;

pub use frames::{FrameTooLong, Frames, Framing};
pub use link::{
    Driver, EstablishedConnection, H1Sender, H2Sender, LinkError, PendingResponse, ResponseStream, Sender,
    WebSocketMessages, WebSocketSender, Windows, open,
};
pub use progress::ProgressLine;
pub use protocol::WatchProtocol;
pub use target::{InMemoryConnect, RequestSpec, Target, TargetCredentials, TargetError};
pub use unary_client::{UnaryClient, UnaryResponse};
