//! The commands of `fanoutctl`. Each connects parsed arguments to the crate or module that does the work.

pub(crate) mod bench;
pub(crate) mod demo;
pub(crate) mod estimate;
pub(crate) mod fanout;
pub(crate) mod try_command;
pub(crate) mod verify;
