//! The memory of a request that waits.

use http::Request;

use crate::listing::ListPageRequest;
use crate::net::{ListenAddress, RequestBody};
use crate::serve::frontend::HttpFrontend;
use crate::serve::read::{AuthorizedRead, ReadHandler};

fn future_bytes<'a, A, B, F>(_: impl FnOnce(A, B, &'a ListenAddress, Request<RequestBody>) -> F) -> usize {
    size_of::<F>()
}

fn list_future_bytes<'a, F>(_: impl FnOnce(&'a ReadHandler, AuthorizedRead<'a>, ListPageRequest) -> F) -> usize {
    size_of::<F>()
}

/// Thousands of them wait at a time.
#[test]
fn waiting_request_size_is_bounded() {
    let (request, list) = (future_bytes(HttpFrontend::handle), list_future_bytes(ReadHandler::list));
    assert!(request <= 2 << 10, "{request} bytes of each request");
    assert!(list <= 2 << 10, "{list} bytes of each LIST");
}
