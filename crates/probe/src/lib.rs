//! An independent client of a server: address, credentials, connections, frames and short requests. `bench` measures
//! with it and `verify` checks with it.
//!
//! **Invariant:** this crate does not depend on what kind of server it is connected to. It shares no code with the
//! proxy's upstream client.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod link;
mod progress;
mod protocol;
mod stream_frame_splitter;
mod target;
mod unary_client;

pub use link::{
    ConnectionDriverFuture, EstablishedConnection, FlowControlWindows, H1Sender, H2Sender, HttpRequestSender,
    PendingResponse, ProbeRequestError, ResponseStream, WebSocketMessages, WebSocketSender, open,
};
pub use progress::ProgressLine;
pub use protocol::WatchProtocol;
pub use stream_frame_splitter::{FrameTooLongError, StreamFrameSplitter, StreamFraming};
pub use target::{InMemoryConnectFn, RequestSpec, TargetCredentials, TargetError, TargetServer};
pub use unary_client::{UnaryClient, UnaryResponse};
