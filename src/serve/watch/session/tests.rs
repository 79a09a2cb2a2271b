//! Tests of a single watch that is polled manually: its frames, their timing and its end. Time advances only when a
//! test advances it.

mod amid;
mod bookmarks;
mod compressed;
mod ends;
mod fixture;
mod parts;
mod state;
mod unread;
