use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::{sleep, timeout};

use super::shared::WatchFleetState;
use super::watcher::{BenchWatcher, OpenWatchGuard, WatcherRole};
use base::random;
use probe::{
    self, ConnectionDriverFuture, EstablishedConnection, FlowControlWindows, HttpRequestSender, WatchProtocol,
};

/// The receive window of a stuck or slow reader: so small that its server notices at once.
const NARROW_BYTES: u32 = 16 << 10;

/// One connection with its watches, in one task. Each wakeup reads the socket and all its streams.
pub(super) struct WatchLoadConnection {
    shared: Arc<WatchFleetState>,
    watchers: Vec<BenchWatcher>,
    role: WatcherRole,
}

impl WatchLoadConnection {
    pub(super) fn new(shared: &Arc<WatchFleetState>, watchers: Vec<BenchWatcher>, role: WatcherRole) -> Self {
        Self { shared: shared.clone(), watchers, role }
    }

    /// Connects, follows the watches, and reconnects whenever the connection ends.
    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        let mut cut = shared.cut.subscribe();
        loop {
            tokio::select! {
                () = self.connection() => {}
                changed = cut.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// Runs one load connection with its watches until it ends.
    async fn connection(&mut self) {
        let shared = self.shared.clone();
        let opened = {
            let _permit = shared.opening.acquire().await;
            probe::open(&shared.target, shared.protocol, windows(&shared, self.role)).await
        };
        let EstablishedConnection { sender, mut driver, cipher } = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if let Some(watcher) = self.watchers.first() {
                    shared.tally.shard(watcher.lane()).counts.broken += 1;
                }
                shared.complain(&error.to_string());
                return sleep(Duration::from_millis(200).mul_f64(0.5 + random::f64())).await;
            }
        };
        if let Some(cipher) = cipher {
            shared.cipher.get_or_init(|| cipher);
        }
        if let Some(watcher) = self.watchers.first() {
            shared.tally.shard(watcher.lane()).counts.connected += 1;
        }
        if self.role == WatcherRole::Stuck {
            return hold(&mut self.watchers, &sender, driver).await;
        }
        if let [watcher] = &mut self.watchers[..] {
            tokio::select! {
                biased;
                () = &mut driver => {}
                () = watcher.follow(&sender) => {}
            }
            return;
        }
        let mut streams: FuturesUnordered<_> =
            self.watchers.iter_mut().map(|watcher| watcher.follow(&sender)).collect();
        let all = async { while streams.next().await.is_some() {} };
        tokio::select! {
            biased;
            () = &mut driver => {}
            () = all => {}
        }
    }
}

/// Opens the watches and never reads them. Over HTTP/2 the connection is driven, for its pings, and no stream's window
/// is ever refreshed. Over other protocols nothing is driven, and the socket is not read.
async fn hold(watchers: &mut [BenchWatcher], sender: &HttpRequestSender, mut driver: ConnectionDriverFuture) {
    let opening = join_all(watchers.iter_mut().map(|watcher| watcher.open(sender)));
    let opened = tokio::select! {
        biased;
        () = &mut driver => return,
        opened = opening => opened,
    };
    let of = |watcher: &BenchWatcher| OpenWatchGuard::new(watcher.shared(), watcher.lane());
    let permits: Vec<_> =
        watchers.iter().zip(opened).filter_map(|(watcher, answer)| Some((of(watcher), answer.ok()?))).collect();
    if permits.is_empty() {
        return sleep(Duration::from_millis(200)).await;
    }
    match sender {
        HttpRequestSender::H2(_) => driver.await,
        HttpRequestSender::H1(_) | HttpRequestSender::Ws(_) => pending().await,
    }
    drop(permits);
}

fn windows(shared: &WatchFleetState, role: WatcherRole) -> FlowControlWindows {
    match role {
        WatcherRole::Reads | WatcherRole::Raw => shared.windows,
        WatcherRole::Slow(_) | WatcherRole::Stuck => {
            // A connection's window cannot be smaller than HTTP/2's initial value.
            FlowControlWindows { stream: NARROW_BYTES, connection: 65_535, socket: Some(NARROW_BYTES), as_go: false }
        }
    }
}

/// Runs an additional, unmeasured watch on a connection of its own, and reconnects it at an interval.
pub(super) async fn companion(shared: Arc<WatchFleetState>, every: Option<Duration>, reads: bool) {
    // Version 0 lets the server choose where to begin.
    let mut version = shared.version.unwrap_or(0);
    loop {
        let once = companion_once(&shared, &mut version, reads);
        match every {
            Some(every) => drop(timeout(every, once).await),
            None => once.await,
        }
        if every.is_none() {
            sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn companion_once(shared: &WatchFleetState, version: &mut u64, reads: bool) {
    let role = if reads { WatcherRole::Reads } else { WatcherRole::Stuck };
    let Ok(EstablishedConnection { sender, mut driver, .. }) =
        probe::open(&shared.target, shared.protocol, windows(shared, role)).await
    else {
        return sleep(Duration::from_millis(100)).await;
    };
    let follow = shared.read_aside(&sender, version, reads);
    tokio::select! {
        biased;
        () = &mut driver => return,
        () = follow => {}
    }
    if !reads && shared.protocol == WatchProtocol::H2 {
        driver.await;
    }
}
