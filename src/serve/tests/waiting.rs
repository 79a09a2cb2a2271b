//! The memory of a request that waits.

use crate::auth::ReadPermission;
use crate::listing::ListPageRequest;
use crate::serve::frontend::HttpFrontend;
use crate::serve::read::{ReadHandler, ReadRequest};
use crate::upstream::UpstreamResource;

fn bytes_of_answer<A, B, C, F>(_: impl FnOnce(A, B, C) -> F) -> usize {
    size_of::<F>()
}

fn bytes_of_list<'a, F>(
    _: impl FnOnce(&'a ReadHandler, &'a ReadRequest, &'a ReadPermission, &'a UpstreamResource, ListPageRequest) -> F,
) -> usize {
    size_of::<F>()
}

/// Thousands of them wait at a time.
#[test]
fn waiting_request_size_is_bounded() {
    let (answer, list) = (bytes_of_answer(HttpFrontend::answer), bytes_of_list(ReadHandler::list));
    assert!(answer <= 2 << 10, "{answer} bytes of each request");
    assert!(list <= 2 << 10, "{list} bytes of each LIST");
}
