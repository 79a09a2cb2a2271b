//! Random histories and readers, shrunk if a reader's events differ from the model's.

use proptest::prelude::*;

use super::fixture::Pod;
use super::model::State;
use super::want::Want;
use super::world::World;
use kubeapi::EventType::{self, Added, Deleted, Modified};

#[derive(Debug, Clone)]
enum Op {
    /// Creates or changes an object, some versions ahead.
    Put {
        pod: Pod,
        gap: u64,
    },
    /// Deletes an object, known or not.
    Delete {
        pod: Pod,
        gap: u64,
    },
    /// Another deletion at the version of the last event: a lease revocation deletes several objects (R-VERSION-2).
    Sibling {
        pod: Pod,
    },
    /// Upstream's event type differs from the one that the store implies.
    Misnamed {
        event_type: EventType,
        pod: Pod,
        gap: u64,
    },
    /// Repeats an earlier change.
    Repeat {
        back: usize,
    },
    /// A new change at a version that has already passed.
    Regress {
        back: u64,
    },
    Advance {
        gap: u64,
        announce: bool,
    },
    /// Upstream's history is lost: a new list, mostly at a later version, sometimes of an older storage state.
    Replace {
        forward: u64,
        back: u64,
        pods: Vec<Pod>,
    },
    OpenAfter {
        want: usize,
        back: u64,
        ahead: u64,
    },
    OpenCurrent {
        want: usize,
    },
    OpenAtEnd {
        want: usize,
    },
    Pull {
        reader: usize,
        room: usize,
    },
    Drop {
        reader: usize,
    },
    ReadAt {
        back: u64,
        ahead: u64,
    },
}

/// Few objects, so that changes collide often.
fn pod() -> impl Strategy<Value = Pod> {
    let parts = (prop::sample::select(vec![("a", "p"), ("a", "q"), ("b", "p"), ("b", "r")]), 0..3_usize, 0..3_usize);
    parts.prop_map(|((namespace, name), app, node)| {
        let (app, node) = (["x", "y", ""][app], ["n1", "n2", ""][node]);
        Pod { namespace, name, app, node, note: 0 }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let gap = || 1..4_u64;
    let want = || 0..Want::ALL.len();
    let room = prop::sample::select(vec![0, 1, 300, 600, 100_000]);
    prop_oneof![
        12 => (pod(), gap()).prop_map(|(pod, gap)| Op::Put { pod, gap }),
        5 => (pod(), gap()).prop_map(|(pod, gap)| Op::Delete { pod, gap }),
        4 => pod().prop_map(|pod| Op::Sibling { pod }),
        2 => (prop::sample::select(vec![Added, Modified]), pod(), gap())
            .prop_map(|(event_type, pod, gap)| Op::Misnamed { event_type, pod, gap }),
        2 => (0..8_usize).prop_map(|back| Op::Repeat { back }),
        2 => (1..8_u64).prop_map(|back| Op::Regress { back }),
        2 => (0..4_u64, any::<bool>()).prop_map(|(gap, announce)| Op::Advance { gap, announce }),
        1 => (0..4_u64, 0..6_u64, prop::collection::vec(pod(), 0..4))
            .prop_map(|(forward, back, pods)| Op::Replace { forward, back, pods }),
        5 => (want(), 0..10_u64, 0..3_u64).prop_map(|(want, back, ahead)| Op::OpenAfter { want, back, ahead }),
        4 => want().prop_map(|want| Op::OpenCurrent { want }),
        1 => want().prop_map(|want| Op::OpenAtEnd { want }),
        14 => (0..8_usize, room).prop_map(|(reader, room)| Op::Pull { reader, room }),
        2 => (0..8_usize).prop_map(|reader| Op::Drop { reader }),
        2 => (0..6_u64, 0..2_u64).prop_map(|(back, ahead)| Op::ReadAt { back, ahead }),
    ]
}

fn take(world: &mut World, op: Op) {
    let progress = world.model.progress;
    match op {
        Op::Put { pod, gap } => world.put(pod, progress + gap),
        Op::Delete { pod, gap } => {
            let pod = world.noted(pod);
            world.delete(pod, progress + gap);
        }
        Op::Sibling { pod } => {
            let last = world.model.facts.last().map(|fact| fact.rv);
            if last == Some(progress) && world.model.now.contains_key(&pod.key()) {
                world.delete(pod, progress);
            }
        }
        Op::Misnamed { event_type, pod, gap } => {
            let pod = world.noted(pod);
            world.apply(event_type, pod, progress + gap);
        }
        Op::Repeat { back } => {
            let facts = &world.model.facts;
            if let Some(fact) = facts.len().checked_sub(back + 1).map(|index| facts[index]) {
                let event_type = if fact.after.is_some() { Modified } else { Deleted };
                world.apply(event_type, fact.pod(), fact.rv);
            }
        }
        Op::Regress { back } => {
            let never_seen = world.noted(Pod { namespace: "c", name: "s", app: "", node: "", note: 0 });
            // Not at the last event's own version, where it would be a sibling.
            if let Some(rv) = progress.checked_sub(back).filter(|rv| *rv > 0) {
                world.apply(Added, never_seen, rv);
            }
        }
        Op::Advance { gap, announce } => world.advance(progress + gap, announce),
        Op::Replace { forward, back, pods } => {
            let at = (progress + forward).saturating_sub(back).max(1);
            let list: State = pods.into_iter().map(|pod| (pod.key(), (world.noted(pod), at))).collect();
            world.replace(at, list);
        }
        Op::OpenAfter { want, back, ahead } => {
            world.open_after(Want::ALL[want], (progress + ahead).saturating_sub(back));
        }
        Op::OpenCurrent { want } => {
            world.open_current(Want::ALL[want]);
        }
        Op::OpenAtEnd { want } => {
            world.open_at_end(Want::ALL[want]);
        }
        Op::Pull { reader, room } => world.pull(reader, room),
        Op::Drop { reader } if reader < world.followers.len() => world.drop_follower(reader),
        Op::Drop { .. } => {}
        Op::ReadAt { back, ahead } => world.read_at((progress + ahead).saturating_sub(back)),
    }
}

/// A thousand cases take a second; `PROPTEST_CASES` sets a higher number.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: config.cases.max(1_000), ..config }
}

proptest! {
    #![proptest_config(config())]

    /// W1–W9, W11, L1, F6 at once: every reader gets exp(w, a, b) of R-EVENT-3, or expires.
    #[test]
    fn random_readers_match_the_model_or_expire(events in 1..7_usize, ops in prop::collection::vec(op(), 1..80)) {
        let mut world = World::new(events, 10);
        for op in ops {
            take(&mut world, op);
        }
        world.finish();
    }

    /// The same without evictions: no reader may expire, so all of them get everything.
    #[test]
    fn random_readers_never_expire_without_eviction(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new(1_000, 10);
        for op in ops.into_iter().filter(|op| !matches!(op, Op::Replace { .. })) {
            take(&mut world, op);
        }
        world.finish();
        prop_assert!(world.followers.iter().flatten().all(super::world::Follower::has_all));
    }
}
