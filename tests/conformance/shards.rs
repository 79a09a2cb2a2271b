//! The members of a sharded controller: each reads one range of the hashes of UIDs, from an apiserver that does not know
//! shards. Their number changes, and the proxy and the apiserver are killed.

use std::sync::Arc;

use base::now_ns;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use verify::{ApiserverGuarantee, RecordedEventType};

use crate::bed::{self, Plan, Plane, Protocol, RequestSpec, Target, Watch, log_line, version_of, within};
use crate::follower::Follower;
use crate::ledger::Ledger;
use crate::records;

const MAPS: &str = "/api/v1/configmaps";

/// The server that is killed while some members watch.
#[derive(Debug, PartialEq)]
enum Killed {
    None,
    Proxy,
    Apiserver,
}

/// The members that share the hashes, and how far each has to read.
struct Members {
    ranges: Vec<(u128, u128)>,
    goals: Vec<watch::Sender<Option<u64>>>,
    followers: Vec<JoinHandle<Follower>>,
}

impl Members {
    /// Starts members with equal ranges, and waits until all watch.
    async fn start(count: u128, target: &Target, ledger: &Arc<Ledger>) -> Self {
        let (begin, mut begun) = watch::channel(0);
        let bound = |n| (n << 64) / count;
        let ranges: Vec<_> = (0..count).map(|n| (bound(n), bound(n + 1))).collect();
        let (goals, followers): (Vec<_>, Vec<_>) = ranges
            .iter()
            .map(|(from, to)| {
                let shard = format!("shardRange(object.metadata.uid,'{from:#018x}','{to:#018x}')");
                let follower = Follower::new(target.clone(), Protocol::H1, ledger, &begin);
                let (goal, goals) = watch::channel(None);
                (goal, tokio::spawn(follower.selecting(format!("shardSelector={shard}")).follow(goals)))
            })
            .unzip();
        within("all members watch", begun.wait_for(|begun| *begun == followers.len())).await.expect("they tell it");
        Self { ranges, goals, followers }
    }

    /// Creates objects until each member has one, and waits until each has read its last.
    async fn finish(self, plane: &Plane) -> (Vec<Follower>, u64) {
        let mut versions = vec![None; self.ranges.len()];
        let mut last = 0;
        while versions.contains(&None) {
            let map = json!({"metadata": {"generateName": "last-"}});
            let created = plane.direct().create("/api/v1/namespaces/default/configmaps", map).await;
            let hash = u128::from(fnv_1a(created["metadata"]["uid"].as_str().expect("a UID")));
            let owner = self.ranges.iter().position(|(from, to)| (*from..*to).contains(&hash)).expect("all have one");
            last = version_of(&created);
            versions[owner] = Some(last);
        }
        self.goals.iter().zip(versions).for_each(|(goal, version)| goal.send(version).expect("the member follows"));
        let followers = within("the members are there", join_all(self.followers)).await;
        (followers.into_iter().map(|done| done.expect("no panic")).collect(), last)
    }
}

/// The hash of KEP-5866, independently of the product.
fn fnv_1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// Reads the apiserver's own events up to a version.
async fn read_to(last: u64, watch: &mut Watch, changes: &mut Vec<(RecordedEventType, Value)>) {
    let mut at = 0;
    while at < last {
        let event = watch.change().await;
        at = event.version();
        changes.push((records::kind(&event.kind), event.object));
    }
}

async fn truth_from(plane: &Plane, version: u64) -> Watch {
    plane.direct().watch(RequestSpec::get(&format!("{MAPS}?watch=true&resourceVersion={version}"))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_are_the_whole_across_resharding_and_kills() {
    let Some(bed) = bed::own("shards").await else { return };
    let address = bed::free_address();
    let mut proxy = Plan::plain().listen(&address).start(&bed).await;
    let ledger = Arc::new(Ledger::begin(&bed, MAPS).await);
    let (mut changes, mut truth) = (Vec::new(), truth_from(&bed, ledger.from()).await);
    let mut last = 0;
    for (count, killed) in [(2, Killed::None), (3, Killed::Proxy), (4, Killed::Apiserver), (10, Killed::None)] {
        let members = Members::start(count, &proxy.target(), &ledger).await;
        let churn = bed.drive("churn").args(["--resource", "configmaps", "--namespace", "sharded", "--ops", "600"]);
        let churn = churn.args(["--rate", "150", "--objects", "60"]).start();
        churn.wrote(200).await;
        if killed == Killed::Proxy {
            proxy.kill();
            proxy = Plan::plain().listen(&address).start(&bed).await;
        }
        read_to(*churn.finish().await.versions().last().expect("it wrote"), &mut truth, &mut changes).await;
        if killed == Killed::Apiserver {
            let from_ns = now_ns();
            bed.kill_apiserver().await;
            bed.start_apiserver().await;
            // The apiserver has lost its history, and nothing was written in between.
            truth = truth_from(&bed, version_of(&bed.direct().json(MAPS).await)).await;
            ledger.disturbed(from_ns);
        }
        let followers;
        (followers, last) = members.finish(&bed).await;
        read_to(last, &mut truth, &mut changes).await;
        let sum = |of: fn(&Follower) -> u32| followers.iter().map(of).sum::<u32>();
        let (resumed, lists) = (sum(|f| f.resumed), sum(|f| f.lists));
        log_line(&format!(
            "{count} members, {killed:?} killed: {resumed} resumes, {lists} lists, {} events",
            changes.len()
        ));
        assert_eq!(u128::from(lists), count, "no member lists again");
        assert!(resumed >= u32::from(killed == Killed::Proxy), "the kill was noticed");
        let passed: Vec<_> = followers.iter().flat_map(|follower| &follower.passed).collect();
        assert!(passed.is_empty(), "{passed:?}");
        assert_eq!(proxy.streams("configmaps.v1").await, 1, "one for all shards");
    }
    let promises = [
        ApiserverGuarantee::Continuity,
        ApiserverGuarantee::Reliable,
        ApiserverGuarantee::Unique,
        ApiserverGuarantee::Filtered,
        ApiserverGuarantee::Typed,
        ApiserverGuarantee::Consistent,
    ];
    ledger.judge(&changes, last, &promises);
}
