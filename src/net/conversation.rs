use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::caller_turns::ConnectionTurns;
use super::wake_set::{WakePart, WakeSet};

/// What a connection speaks, and all that is asked and answered on it, as one task.
pub(super) trait Conversation {
    /// Polls the parts that were woken, and is ready when the connection is over.
    fn go_on(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>>;

    /// Says that nothing more is to be asked. What runs goes on, and so does what was asked before the client knew.
    fn say_goodbye(&mut self);

    fn wake_set(&self) -> &Arc<WakeSet>;

    /// Goes on, so that no wake-up is lost: its parts may wake each other meanwhile, and others may wake them.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.wake_set().begin_polling(cx);
        let ended = self.go_on(cx);
        self.wake_set().end_polling();
        if ended.is_pending() && !self.wake_set().is_quiet() {
            cx.waker().wake_by_ref();
        }
        ended
    }
}

pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Which of two futures was first.
pub(super) enum First<O> {
    /// The connection ended.
    Ended(Result<(), Failure>),
    Aside(O),
}

/// Runs a connection until it is over, or until `aside` is. The connection goes on when it is its caller's turn; what
/// is aside needs none, and is looked at when it was woken.
pub(super) async fn until<O>(
    conversation: &mut impl Conversation,
    turns: &mut ConnectionTurns,
    mut aside: Pin<&mut impl Future<Output = O>>,
) -> First<O> {
    let wake_set = conversation.wake_set().clone();
    let waker = wake_set.waker(WakePart::Aside);
    // `aside` may not have been polled yet, so it is polled at once.
    wake_set.put(WakePart::Aside);
    poll_fn(|cx| {
        if let Poll::Ready(turn) = turns.poll_turn(cx) {
            let polled = conversation.poll(cx);
            drop(turn);
            if let Poll::Ready(ended) = polled {
                return Poll::Ready(First::Ended(ended));
            }
        }
        if !wake_set.take(WakePart::Aside) {
            return Poll::Pending;
        }
        aside.as_mut().poll(&mut Context::from_waker(&waker)).map(First::Aside)
    })
    .await
}
