//! What is made of runs is made once, and not kept for ever.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, advance};

use super::fixture::Bell;
use crate::cache::single_flight::SingleFlight;
use crate::cache::{ChunkFormat, ChunkPart};
use crate::wire::{Encoding, Representation};

fn encoding(run: u128) -> ChunkFormat {
    ChunkFormat { run, representation: Representation::Object(Encoding::Json), release: 36, part: ChunkPart::Items }
}

/// What is on the shelf, or is put there: its name, which takes so many bytes.
fn get(shelf: &SingleFlight<u128>, run: u128, bytes: usize) -> Poll<u128> {
    let made = shelf.poll_get_or_make(encoding(run), &Context::from_waker(Waker::noop()), || Ok((run, bytes)));
    made.map(|made: Result<u128, Infallible>| made.unwrap_or_else(|never| match never {}))
}

fn is_kept(shelf: &SingleFlight<u128>, run: u128) -> bool {
    let made = shelf.poll_get_or_make(encoding(run), &Context::from_waker(Waker::noop()), || Err("not there"));
    made == Poll::Ready(Ok(run))
}

#[tokio::test(start_paused = true)]
async fn the_oldest_go_when_there_are_too_many_bytes() {
    let shelf = SingleFlight::new(100, None);
    for run in 1..=4 {
        assert_eq!(get(&shelf, run, 25), Poll::Ready(run));
    }
    assert_eq!(shelf.bytes(), 100);
    advance(Duration::from_secs(1)).await;
    assert!(is_kept(&shelf, 1));
    assert_eq!(get(&shelf, 5, 25), Poll::Ready(5));
    assert_eq!([1, 2, 3, 4, 5].map(|run| is_kept(&shelf, run)), [true, false, true, true, true]);
    assert_eq!(get(&shelf, 6, 101), Poll::Ready(6), "made, but too large to be kept");
    assert_eq!((is_kept(&shelf, 6), shelf.bytes()), (false, 100));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wants_any_more_goes() {
    let shelf = SingleFlight::new(100, Some(Duration::from_secs(10)));
    let _ = (get(&shelf, 1, 10), get(&shelf, 2, 10));
    advance(Duration::from_secs(8)).await;
    shelf.expire(Instant::now());
    assert_eq!((is_kept(&shelf, 1), shelf.bytes()), (true, 20));
    advance(Duration::from_secs(8)).await;
    shelf.expire(Instant::now());
    assert_eq!(shelf.bytes(), 10, "the other was wanted eight seconds ago");
    advance(Duration::from_secs(8)).await;
    shelf.expire(Instant::now());
    assert_eq!(shelf.bytes(), 0);
}

#[test]
fn whoever_comes_while_it_is_made_waits_for_it() {
    let (shelf, bell) = (SingleFlight::new(100, None), Arc::new(Bell::default()));
    let waker = bell.waker();
    let again = || -> Result<(u128, usize), Infallible> { panic!("it is made already") };
    let make = || {
        let waiting = shelf.poll_get_or_make(encoding(1), &Context::from_waker(&waker), again);
        assert_eq!((waiting, bell.rung()), (Poll::Pending, 0));
        Ok::<_, Infallible>((1, 10))
    };
    assert_eq!(shelf.poll_get_or_make(encoding(1), &Context::from_waker(Waker::noop()), make), Poll::Ready(Ok(1)));
    assert_eq!(bell.rung(), 1);
    assert_eq!(shelf.poll_get_or_make(encoding(1), &Context::from_waker(&waker), again), Poll::Ready(Ok(1)));
}

#[test]
fn whoever_waits_is_woken_when_it_comes_to_nothing() {
    let (shelf, bell) = (SingleFlight::<u128>::new(100, None), Arc::new(Bell::default()));
    let waker = bell.waker();
    let never = || -> Result<(u128, usize), &str> { panic!("somebody else makes it") };
    let wait = || assert!(shelf.poll_get_or_make(encoding(1), &Context::from_waker(&waker), never).is_pending());
    let fail = || {
        wait();
        Err("refused")
    };
    let failed = shelf.poll_get_or_make(encoding(1), &Context::from_waker(Waker::noop()), fail);
    assert_eq!((failed, bell.rung()), (Poll::Ready(Err("refused")), 1));
    // It is let go while it is made: those who wait try again, and it is not kept.
    let make = || {
        wait();
        shelf.clear();
        assert_eq!(bell.rung(), 2);
        Ok::<_, &str>((1, 10))
    };
    assert_eq!(shelf.poll_get_or_make(encoding(1), &Context::from_waker(Waker::noop()), make), Poll::Ready(Ok(1)));
    assert_eq!((is_kept(&shelf, 1), shelf.bytes()), (false, 0));
}
