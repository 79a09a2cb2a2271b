//! Lists as they go out: pages, encodings, compression, and what bounds them.

mod lists;
