//! Clients that behave like client-go's informers. Each has several watches on one connection. An ended watch resumes
//! at its last version, on a new connection if the server has sent GOAWAY on the old one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};

use crate::direct::{CONFIGMAPS, Client, Ended, Watch};

/// Settings of all members.
#[derive(Clone)]
pub struct Habits {
    /// A client of the balancer.
    pub client: Client,
    /// The version from which all watches start.
    pub from: u64,
    /// Duration of a watch in seconds: minimum and maximum.
    pub lives: (u32, u32),
    /// The first watches start within this time.
    pub begin_within: Duration,
    /// Number of watches so far.
    pub begun: Arc<AtomicUsize>,
    /// Set to the version at which the members leave.
    pub until: watch::Receiver<Option<u64>>,
}

/// One client with its current connection.
struct Member {
    client: Client,
    dialled: Mutex<(u32, Client)>,
}

/// The watches of one informer, each of which resumed the one before it.
#[derive(Default)]
pub struct Chain {
    pub watches: Vec<Watch>,
    /// When a watch was opened on another connection than the one before it.
    pub moved: Vec<Instant>,
    /// An error that an informer would report; the chain ends there.
    pub failure: Option<String>,
}

/// Maximum number of watches in a chain.
const WATCHES_MAX: usize = 10_000;

/// Number of attempts to open a watch, because on a slow machine the next connection may have reached its age as well.
const ATTEMPTS_MAX: u32 = 8;

/// Runs a member with this many watches.
pub async fn member(habits: Habits, watches: usize) -> Vec<Chain> {
    let client = match habits.client.try_multiplexed().await {
        Ok(client) => client,
        Err(error) => return vec![Chain { failure: Some(error), ..Chain::default() }],
    };
    let member = Member { client: habits.client.clone(), dialled: Mutex::new((0, client)) };
    futures_util::future::join_all((0..watches).map(|_| member.follow(&habits))).await
}

impl Member {
    async fn follow(&self, habits: &Habits) -> Chain {
        let (mut chain, mut from, mut connection) = (Chain::default(), habits.from, None);
        sleep(habits.begin_within.mul_f64(fastrand::f64())).await;
        for _ in 0..WATCHES_MAX {
            let (opened, mut watch) = match self.watch(from, fastrand::u32(habits.lives.0..=habits.lives.1)).await {
                Ok(opened) => opened,
                Err(failure) => return Chain { failure: Some(failure), ..chain },
            };
            match connection.replace(opened) {
                None => _ = habits.begun.fetch_add(1, Ordering::Relaxed),
                Some(before) if before == opened => {}
                Some(_) => chain.moved.push(watch.opened),
            }
            tokio::select! {
                () = watch.more_than(usize::MAX) => {}
                () = reaches(&watch, habits.until.clone()) => {}
            }
            let (ended, last_version) = (watch.end(), watch.events().last().map(|event| event.rv));
            if ended.is_none() {
                watch.leave().await;
            }
            chain.watches.push(watch);
            from = from.max(last_version.unwrap_or(0));
            let is_over = habits.until.borrow().is_some_and(|until| from >= until);
            match ended {
                None => return chain,
                Some(Ended::Clean) if is_over => return chain,
                Some(Ended::Clean) => {}
                Some(ended) => return Chain { failure: Some(format!("{ended:?} after {from}")), ..chain },
            }
        }
        Chain { failure: Some("too many watches".to_owned()), ..chain }
    }

    /// Opens a watch, and returns the number of its connection. If a closing connection does not accept it, another one
    /// is opened.
    async fn watch(&self, from: u64, seconds: u32) -> Result<(u32, Watch), String> {
        let mut failed = String::new();
        for _ in 0..ATTEMPTS_MAX {
            let (times, client) = self.dialled.lock().await.clone();
            let plan = client.watch(CONFIGMAPS).from(from).bookmarks().timeout_seconds(seconds.into());
            match plan.try_open().await {
                Ok(Ok(watch)) => return Ok((times, watch)),
                Ok(Err(answer)) => return Err(format!("{}: {}", answer.status, answer.text())),
                Err(error) => failed = error,
            }
            let mut dialled = self.dialled.lock().await;
            if dialled.0 == times {
                *dialled = (times + 1, self.client.try_multiplexed().await?);
            }
        }
        Err(format!("no connection takes it: {failed}"))
    }
}

/// Completes when a watch has reached the version at which all members leave.
async fn reaches(watch: &Watch, mut until: watch::Receiver<Option<u64>>) {
    let until = until.wait_for(Option::is_some).await.ok().and_then(|until| *until);
    watch.reached_or_ended(until.unwrap_or(u64::MAX)).await;
}
