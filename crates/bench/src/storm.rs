//! Storms that are made of requests. Those that are made of watches are a fleet's.

pub(super) mod requests;
