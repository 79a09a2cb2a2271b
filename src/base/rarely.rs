use std::pin::Pin;
use std::task::{Context, Poll};

use super::Bell;

/// A future that is polled when it was woken, and not whenever its task is: for what a task waits for besides its work,
/// such as the end of it. A timer or a signal looks at memory that others write to each time that it is polled.
#[derive(Debug)]
pub struct Rarely<F> {
    future: Pin<Box<F>>,
    bell: Bell,
}

impl<F> Rarely<F> {
    pub fn new(future: F) -> Self {
        Self { future: Box::pin(future), bell: Bell::rung() }
    }

    /// The future. What is done to it may change when it completes, so it is polled next time.
    pub fn inner(&mut self) -> Pin<&mut F> {
        self.bell.look_again();
        self.future.as_mut()
    }
}

impl<F: Future> Future for Rarely<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        if !this.bell.has_rung(cx) {
            return Poll::Pending;
        }
        this.future.as_mut().poll(&mut Context::from_waker(this.bell.waker()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::{Waker, ready};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn it_is_polled_when_it_was_woken() {
        let (tx, mut rx) = oneshot::channel();
        let mut polls = 0;
        let mut rarely = Rarely::new(poll_fn(|cx| {
            polls += 1;
            Poll::Ready(ready!(Pin::new(&mut rx).poll(cx)))
        }));
        for _ in 0..10 {
            assert!(Pin::new(&mut rarely).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        tx.send(7).expect("it listens");
        assert_eq!(rarely.await, Ok(7));
        assert_eq!(polls, 2);
    }
}
