//! A new replica gets its share of the watches at one address, and one that exits loses its own. Neither causes a herd
//! or a relist (O9).

mod balancer;
mod members;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::now_ns;
use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until};
use verify::ApiserverGuarantee;

use crate::direct::{self, App, CONFIGMAPS, Client, History, Place, configmap};
use balancer::Balancer;
use members::{Habits, member};

/// Watches on each connection.
const WATCHES_EACH: usize = 4;
/// A new replica of three has its share at this percentage of an even one.
const SHARE_PERCENT: u64 = 80;
const WRITE_EVERY: Duration = Duration::from_millis(100);

/// Size and duration of the scenario; `make rebalance` runs the long form.
#[derive(Clone, Copy)]
struct Scale {
    /// Age at which a connection is closed gracefully.
    age: Duration,
    members: usize,
    /// Duration of watches in seconds. With an age of an hour, it is client-go's five to ten minutes.
    lives: (u32, u32),
    drain: Duration,
}

impl Scale {
    fn read() -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u32>().expect("a number"));
        let seconds = number("REBALANCE_AGE_SECONDS").unwrap_or(3);
        let watches = number("REBALANCE_WATCHES").unwrap_or(200) as usize;
        Self {
            age: Duration::from_secs(seconds.into()),
            members: watches / WATCHES_EACH,
            lives: ((seconds / 12).max(1), (seconds / 6).max(1)),
            drain: Duration::from_secs(u64::from(seconds / 3).clamp(5, 20)),
        }
    }

    fn life_max(self) -> Duration {
        Duration::from_secs(self.lives.1.into())
    }

    /// The time in which each existing connection has been closed gracefully, and each watch on it has ended.
    fn replaced_within(self) -> Duration {
        self.age.mul_f64(1.1) + self.life_max()
    }
}

/// The largest number of moments within one window.
fn peak(moments: &[Instant], window: Duration) -> usize {
    let within = |first: &Instant| moments.iter().filter(|at| **at >= *first && **at < *first + window).count();
    moments.iter().map(within).max().unwrap_or(0)
}

/// Writes periodically while it is polled, and records when.
async fn write(up: &RunningDemoApiserver, period: Duration, written: &mut Vec<Instant>) {
    let mut ticks = interval(period);
    for number in 0_u64.. {
        ticks.tick().await;
        written.push(Instant::now());
        up.put("configmaps", configmap("default", &format!("c{}", number % 5), &number.to_string()));
    }
}

/// Replicas at one address.
struct Stage {
    scale: Scale,
    up: RunningDemoApiserver,
    balancer: Balancer,
    apps: Vec<App>,
}

/// Observations from outside.
struct Seen {
    /// From the readiness of the new replica until it had its share.
    shared_after: Duration,
    /// Number of watches of each replica after all old connections had been replaced.
    shares: Vec<u64>,
    /// When the first replica got the signal to stop, and how long it took.
    drained_at: Instant,
    drained_ns: u64,
    drained_within: Duration,
    /// Connections that arrived at it afterwards, because it still counted as ready.
    came_late: u64,
}

impl Stage {
    async fn begin(scale: Scale) -> Self {
        let up = demo::upstream().run().await;
        let balancer = Balancer::begin(scale.drain / 50).await;
        let mut stage = Self { scale, up, balancer, apps: Vec::new() };
        for _ in 0..2 {
            stage.add().await;
        }
        stage
    }

    async fn add(&mut self) {
        let plan = direct::app(&self.up).preload("configmaps").drain(self.scale.drain);
        let app = plan.with(|config| config.connections.connection_age_max = self.scale.age).run().await;
        self.balancer.add(&app);
        self.apps.push(app);
        let (balancer, newest) = (&self.balancer, self.apps.len() - 1);
        direct::eventually("the new one is ready", || async { balancer.is_ready(newest) }).await;
    }

    /// Number of watches of each replica.
    async fn shares(&self) -> Vec<u64> {
        let feeds = join_all(self.apps.iter().map(|app| app.feed("configmaps"))).await;
        feeds.into_iter().map(|feed| feed.and_then(|feed| feed["readers"].as_u64()).unwrap_or(0)).collect()
    }

    async fn add_one_and_drain_one(&mut self, begun: &AtomicUsize) -> Seen {
        let (scale, all) = (self.scale, self.scale.members * WATCHES_EACH);
        let have_begun = || async { begun.load(Ordering::Relaxed) >= all };
        direct::eventually_in_time(scale.life_max(), "all have begun", have_begun).await;
        self.add().await;
        let (this, ready) = (&*self, Instant::now());
        let has_its_share = || async move {
            let shares = this.shares().await;
            shares[2] * 300 >= shares.iter().sum::<u64>() * SHARE_PERCENT && shares[2] > 0
        };
        direct::eventually_in_time(scale.replaced_within(), "the third has its share", has_its_share).await;
        let shared_after = ready.elapsed();
        sleep_until(ready + scale.replaced_within()).await;
        let (shares, given, drained_at) = (self.shares().await, self.balancer.given(0), Instant::now());
        let (mut first, drained_ns) = (self.apps.remove(0), now_ns());
        first.begin_stop();
        direct::eventually("no more are sent to it", || async { !self.balancer.is_ready(0) }).await;
        first.stop().await;
        let (drained_within, came_late) = (drained_at.elapsed(), self.balancer.given(0) - given);
        Seen { shared_after, shares, drained_at, drained_ns, drained_within, came_late }
    }

    /// Number of states of the whole collection that proxies have requested.
    fn listed(&self) -> usize {
        let queries = direct::proxy_queries(&self.up, CONFIGMAPS);
        let is_whole = |query: &&String| !query.contains("fieldSelector");
        let is_list = |query: &&String| !query.contains("watch=true") || query.contains("sendInitialEvents=true");
        queries.iter().filter(is_whole).filter(is_list).count()
    }
}

/// Prints how soon replicas have even shares, and how many watches moved at once.
#[expect(clippy::print_stdout, reason = "a person reads the figures")]
fn print(scale: Scale, seen: &Seen, aged: &[Instant], drained: &[Instant]) {
    let all = scale.members * WATCHES_EACH;
    let part = |moved: &[Instant], window| 100.0 * peak(moved, window) as f64 / all as f64;
    println!("{all} watches on {} connections that live {:?}, watches {:?} s", scale.members, scale.age, scale.lives);
    println!("the new replica has its share after {:?}; then they are {:?}", seen.shared_after, seen.shares);
    for (why, moved) in [("age", aged), ("drain", drained)] {
        let [second, twentieth] = [Duration::from_secs(1), scale.age / 20].map(|window| part(moved, window));
        println!("by {why}: {} moved; {second:.1} % within a second, {twentieth:.1} % in age/20", moved.len());
    }
    println!("a drain of {:?} took {:?}, {} requests arrived late", scale.drain, seen.drained_within, seen.came_late);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_rebalance_to_new_replica_and_survive_drain() {
    let scale = Scale::read();
    let mut stage = Stage::begin(scale).await;
    let up = stage.up.beside();
    let mut history = History::begin(&up, CONFIGMAPS).await;
    let (leave, until) = watch::channel(None);
    let habits = Habits {
        client: Client::to(Place::Tcp(stage.balancer.address)),
        from: history.from,
        lives: scale.lives,
        begin_within: scale.life_max(),
        begun: Arc::default(),
        until,
    };
    let members: Vec<_> = (0..scale.members).map(|_| tokio::spawn(member(habits.clone(), WATCHES_EACH))).collect();
    let mut written = Vec::new();
    let seen = tokio::select! {
        seen = stage.add_one_and_drain_one(&habits.begun) => seen,
        () = write(&up, WRITE_EVERY.max(scale.age / 100), &mut written) => unreachable!("it continues"),
    };
    let last = up.put("configmaps", configmap("default", "last", "x"));
    leave.send_replace(Some(last));
    let chains = join_all(members).await.into_iter().flat_map(|chains| chains.expect("no panic"));
    let chains: Vec<_> = chains.collect();
    let moved = chains.iter().flat_map(|chain| chain.moved.iter().copied());
    let (aged, drained): (Vec<_>, Vec<_>) = moved.partition(|at| *at < seen.drained_at);
    print(scale, &seen, &aged, &drained);

    let failures: Vec<_> = chains.iter().filter_map(|chain| chain.failure.as_ref()).collect();
    assert!(failures.is_empty(), "{} of {}: {:?}", failures.len(), chains.len(), failures[0]);
    assert_eq!(stage.balancer.refused(), Vec::<String>::new());
    assert_eq!(stage.listed(), 3, "each proxy once, and none for a client");
    let mut evidence = history.read_to(last).await.evidence();
    for chain in &chains {
        chain.watches.iter().fold(None, |before, watch| Some(evidence.resumed(watch, before)));
    }
    // Its watches end before their timeout.
    evidence.broken("the first drains", seen.drained_ns, &[]);
    evidence.shows(&[
        ApiserverGuarantee::Ordered,
        ApiserverGuarantee::Unique,
        ApiserverGuarantee::Reliable,
        ApiserverGuarantee::Resumable,
    ]);
    let aging = written.windows(2).take_while(|pair| pair[0] < seen.drained_at);
    let pause = aging.map(|pair| pair[1] - pair[0]).max().unwrap_or(Duration::MAX);
    if pause < scale.age / 4 {
        // These connections had been opened at the same time.
        let (herd, most) = (peak(&aged, scale.age / 20), chains.len() / 2);
        assert!(herd <= most, "a herd by age: {herd} of {}", chains.len());
    } else {
        // Clients that the pause delayed moved together.
        direct::skipped(&format!("a herd by age is not judged: the machine did nothing for {pause:?}"));
    }
    assert!(seen.drained_within < scale.drain + direct::ALLOWANCE, "{:?}", seen.drained_within);
}
