//! The memory of a request that waits.

use crate::auth::Permit;
use crate::listing::ListRead;
use crate::serve::frontend::Frontend;
use crate::serve::read::{ReadHandler, ReadRequest};
use crate::upstream::Resource;

fn bytes_of_answer<A, B, C, F>(_: impl FnOnce(A, B, C) -> F) -> usize {
    size_of::<F>()
}

fn bytes_of_list<'a, F>(
    _: impl FnOnce(&'a ReadHandler, &'a ReadRequest, &'a Permit, &'a Resource, ListRead) -> F,
) -> usize {
    size_of::<F>()
}

/// Thousands of them wait at a time.
#[test]
fn waiting_request_size_is_bounded() {
    let (answer, list) = (bytes_of_answer(Frontend::answer), bytes_of_list(ReadHandler::list));
    assert!(answer <= 2 << 10, "{answer} bytes of each request");
    assert!(list <= 2 << 10, "{list} bytes of each LIST");
}
