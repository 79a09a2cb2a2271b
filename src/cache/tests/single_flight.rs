//! Values are made once, and not kept forever.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, advance};

use super::fixture::WakeCounter;
use crate::cache::chunk_cache::SingleFlightCache;
use crate::cache::{ChunkObjectEncoding, EncodedChunkKey};
use crate::wire::{FeedEncoding, Representation};

fn format(chunk: u128) -> EncodedChunkKey {
    EncodedChunkKey {
        chunk,
        representation: Representation::Object(FeedEncoding::Json),
        release: 36,
        part: ChunkObjectEncoding::Items,
    }
}

/// Returns the cached or new value: its name, with a size of `bytes`.
fn get(flight: &SingleFlightCache<EncodedChunkKey, u128>, chunk: u128, bytes: usize) -> Poll<u128> {
    let made = flight.poll_get_or_make(format(chunk), &Context::from_waker(Waker::noop()), || Ok((chunk, bytes)));
    made.map(|made: Result<u128, Infallible>| made.unwrap_or_else(|never| match never {}))
}

fn is_kept(flight: &SingleFlightCache<EncodedChunkKey, u128>, chunk: u128) -> bool {
    let made = flight.poll_get_or_make(format(chunk), &Context::from_waker(Waker::noop()), || Err("not there"));
    made == Poll::Ready(Ok(chunk))
}

#[tokio::test(start_paused = true)]
async fn least_recently_used_values_are_evicted_above_byte_limit() {
    let flight = SingleFlightCache::new(100, None);
    for chunk in 1..=4 {
        assert_eq!(get(&flight, chunk, 25), Poll::Ready(chunk));
    }
    assert_eq!(flight.bytes(), 100);
    advance(Duration::from_secs(1)).await;
    assert!(is_kept(&flight, 1));
    assert_eq!(get(&flight, 5, 25), Poll::Ready(5));
    assert_eq!([1, 2, 3, 4, 5].map(|chunk| is_kept(&flight, chunk)), [true, false, true, true, true]);
    assert_eq!(get(&flight, 6, 101), Poll::Ready(6), "made, but too large to be kept");
    assert_eq!((is_kept(&flight, 6), flight.bytes()), (false, 100));
}

#[tokio::test(start_paused = true)]
async fn unused_values_expire() {
    let flight = SingleFlightCache::new(100, Some(Duration::from_secs(10)));
    let _ = (get(&flight, 1, 10), get(&flight, 2, 10));
    advance(Duration::from_secs(8)).await;
    flight.expire(Instant::now());
    assert_eq!((is_kept(&flight, 1), flight.bytes()), (true, 20));
    advance(Duration::from_secs(8)).await;
    flight.expire(Instant::now());
    assert_eq!(flight.bytes(), 10, "the other was used eight seconds ago");
    advance(Duration::from_secs(8)).await;
    flight.expire(Instant::now());
    assert_eq!(flight.bytes(), 0);
}

#[test]
fn concurrent_caller_waits_for_the_value_in_flight() {
    let (flight, wakes) = (SingleFlightCache::new(100, None), Arc::new(WakeCounter::default()));
    let waker = wakes.waker();
    let again = || -> Result<(u128, usize), Infallible> { panic!("it is made already") };
    let make = || {
        let waiting = flight.poll_get_or_make(format(1), &Context::from_waker(&waker), again);
        assert_eq!((waiting, wakes.woken()), (Poll::Pending, 0));
        Ok::<_, Infallible>((1, 10))
    };
    assert_eq!(flight.poll_get_or_make(format(1), &Context::from_waker(Waker::noop()), make), Poll::Ready(Ok(1)));
    assert_eq!(wakes.woken(), 1);
    assert_eq!(flight.poll_get_or_make(format(1), &Context::from_waker(&waker), again), Poll::Ready(Ok(1)));
}

#[test]
fn waiting_caller_is_woken_when_the_computation_fails() {
    let (flight, wakes) = (SingleFlightCache::<_, u128>::new(100, None), Arc::new(WakeCounter::default()));
    let waker = wakes.waker();
    let never = || -> Result<(u128, usize), &str> { panic!("another task makes it") };
    let wait = || assert!(flight.poll_get_or_make(format(1), &Context::from_waker(&waker), never).is_pending());
    let fail = || {
        wait();
        Err("refused")
    };
    let failed = flight.poll_get_or_make(format(1), &Context::from_waker(Waker::noop()), fail);
    assert_eq!((failed, wakes.woken()), (Poll::Ready(Err("refused")), 1));
    // Cleared while it is being made: waiting tasks retry, and the value is not stored.
    let make = || {
        wait();
        flight.clear();
        assert_eq!(wakes.woken(), 2);
        Ok::<_, &str>((1, 10))
    };
    assert_eq!(flight.poll_get_or_make(format(1), &Context::from_waker(Waker::noop()), make), Poll::Ready(Ok(1)));
    assert_eq!((is_kept(&flight, 1), flight.bytes()), (false, 0));
}
