//! One watch, polled by hand: what it says, when, and how it ends. Time stands still but for what a test lets pass.

mod amid;
mod bookmarks;
mod ends;
mod fixture;
mod parts;
mod state;
mod unread;
