//! Tests that no wake-up is lost, whenever it occurs: with every order of calls on the code, and with every order of
//! single steps on a model.

mod model;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use http::Response;
use http_body_util::Empty;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::connection::{Http2Connection, Http2Limits};
use super::super::head_budget::RequestHeadBudget;
use super::super::tests::known;
use super::*;
use base::AbortSignal;

/// The parts that wait for something: two streams and the reader.
const PARTS: usize = 3;
const READER: usize = 2;
const WAKES: usize = 3;
/// The points at which a wake-up may occur: those passed while everything is polled for the first time, and some more.
const PLACES: usize = 14;

/// The number of occurrences for each part, and how many of them the part has seen.
#[derive(Debug, Default)]
struct World {
    happened: [usize; PARTS],
    seen: [usize; PARTS],
    polls: [usize; PARTS],
    wakers: [Option<Waker>; PARTS],
    /// The number of points passed.
    passed: usize,
    /// The pending occurrences: the point and the part.
    plan: Vec<(usize, usize)>,
}

type Shared = Arc<Mutex<World>>;

/// The executor's side of the task.
#[derive(Default)]
struct TaskFlag(AtomicBool);

impl Wake for TaskFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A point at which another thread may act: the occurrences planned for it happen now.
fn place(world: &Shared) {
    let here = {
        let mut world = world.lock();
        world.passed += 1;
        world.passed
    };
    while let Some(waker) = happens(&mut world.lock(), |place| place == here) {
        waker.wake();
    }
}

/// Takes the next planned occurrence for such a point. An occurrence before the part has registered a waker needs no
/// wake-up.
fn happens(world: &mut World, is_due: impl Fn(usize) -> bool) -> Option<Waker> {
    loop {
        let at = world.plan.iter().position(|(place, _)| is_due(*place))?;
        let (_, part) = world.plan.remove(at);
        world.happened[part] += 1;
        if let Some(waker) = world.wakers[part].clone() {
            return Some(waker);
        }
    }
}

/// The behaviour of every future: registers its waker, then looks.
fn listen(world: &Shared, part: usize, cx: &Context<'_>) {
    place(world);
    {
        let mut world = world.lock();
        world.wakers[part] = Some(cx.waker().clone());
        world.polls[part] += 1;
    }
    place(world);
    {
        let mut world = world.lock();
        world.seen[part] = world.happened[part];
    }
    place(world);
}

/// The client's end of the connection: it sends two requests and takes everything the server writes.
struct Socket(Shared, &'static [u8]);

/// SETTINGS, and a GET of `/` on each of two streams.
const ASKED: &[u8] =
    b"\0\0\0\x04\0\0\0\0\0\0\0\x03\x01\x05\0\0\0\x01\x82\x86\x84\0\0\x03\x01\x05\0\0\0\x03\x82\x86\x84";

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let bytes = std::mem::take(&mut self.1);
        if bytes.is_empty() {
            listen(&self.0, READER, cx);
            return Poll::Pending;
        }
        into.put_slice(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        place(&self.0);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Runs a connection until nothing more happens and no part is woken.
fn run(plan: Vec<(usize, usize)>) -> World {
    let world = Shared::new(Mutex::new(World { plan, ..World::default() }));
    let hour = Duration::from_secs(3_600);
    let limits = Http2Limits { streams_max: 2, header_bytes_max: 1_000, header_max: hour, ping_after: hour };
    let (shared, mut stream) = (world.clone(), 0);
    let service = known(move |_| {
        let (world, this) = (shared.clone(), stream);
        stream += 1;
        let answer = poll_fn(move |cx| {
            listen(&world, this, cx);
            Poll::<Response<Empty<bytes::Bytes>>>::Pending
        });
        Some((answer, AbortSignal::default()))
    });
    let heads = Arc::<RequestHeadBudget>::default().connection();
    let mut connection = Http2Connection::new(Socket(world.clone(), ASKED), limits, heads, service);
    let flag = Arc::new(TaskFlag::default());
    let waker = Waker::from(flag.clone());
    flag.0.store(true, Ordering::SeqCst);
    loop {
        while flag.0.swap(false, Ordering::SeqCst) {
            place(&world);
            assert!(connection.poll(&mut Context::from_waker(&waker)).is_pending());
            place(&world);
        }
        // Everything is idle, so occurrences without a point happen now.
        let Some(waker) = happens(&mut world.lock(), |_| true) else { break };
        waker.wake();
    }
    drop(connection);
    std::mem::take(&mut *world.lock())
}

/// Every selection of `count` elements, with repetition.
fn chosen(of: &[(usize, usize)], count: usize) -> Vec<Vec<(usize, usize)>> {
    let Some(fewer) = count.checked_sub(1) else { return vec![Vec::new()] };
    let with = |at: usize| chosen(&of[at..], fewer).into_iter().map(move |rest| [vec![of[at]], rest].concat());
    (0..of.len()).flat_map(with).collect()
}

#[tokio::test]
async fn only_woken_parts_are_polled_and_no_wake_is_lost() {
    let choices: Vec<_> = (1..=PLACES).flat_map(|place| (0..PARTS).map(move |part| (place, part))).collect();
    let mut passed = 0;
    for plan in chosen(&choices, WAKES) {
        let world = run(plan.clone());
        assert_eq!(world.seen, world.happened, "{plan:?}: a task was not woken");
        for part in 0..PARTS {
            let (polls, wakes) = (world.polls[part], world.happened[part]);
            assert!(polls <= 1 + wakes, "{plan:?}: part {part} was polled {polls} times for {wakes} wakes");
        }
        passed = passed.max(world.passed);
    }
    assert!(passed > PLACES, "every place was passed: {passed}");
}
