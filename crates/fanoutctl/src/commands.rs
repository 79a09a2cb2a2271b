//! What each command of `fanoutctl` does, above the crates that do the work.

pub(crate) mod bench;
mod credentials;
pub(crate) mod demo;
pub(crate) mod estimate;
pub(crate) mod fanout;
pub(crate) mod trial;
pub(crate) mod verify;
