//! Storms of requests. Storms of watches are part of the fleet.

pub(super) mod requests;
