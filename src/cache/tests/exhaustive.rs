//! Every interleaving of one writer and two readers within small bounds, for cases that random choice may miss.

use super::fixture::{POD, Pod};
use super::want::Want;
use super::world::World;

/// One step of the writer. `P` is created and deleted, and enters and leaves a selector and a node; `Q` is another
/// object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Enter,
    Leave,
    Delete,
    Other,
    /// `Q` is deleted at the version of the previous event: one revocation deletes several objects.
    SiblingGone,
}

#[derive(Debug, Clone, Copy)]
enum Begin {
    /// From the oldest version available.
    Oldest,
    Current,
}

const P: Pod = POD;
const Q: Pod = Pod { name: "q", ..POD };
const BASE: u64 = 10;

impl Step {
    const ALL: [Self; 5] = [Self::Enter, Self::Leave, Self::Delete, Self::Other, Self::SiblingGone];

    /// Returns whether the step is possible in this world.
    fn fits(self, world: &World) -> bool {
        match self {
            Self::Enter | Self::Leave | Self::Other => true,
            Self::Delete => world.model.now.contains_key(&P.key()),
            Self::SiblingGone => world.model.now.contains_key(&Q.key()) && !world.model.facts.is_empty(),
        }
    }

    fn take(self, world: &mut World) {
        let next = world.model.progress + 1;
        match self {
            Self::Enter => world.put(P, next),
            Self::Leave => world.put(Pod { app: "y", node: "n2", ..P }, next),
            Self::Delete => world.delete(P, next),
            Self::Other => world.put(Q, next),
            Self::SiblingGone => world.delete(Q, next - 1),
        }
    }
}

/// Calls `visit` with every valid script of `steps` of these steps.
fn scripts(alphabet: &[Step], steps: usize, visit: &mut impl FnMut(&[Step])) {
    fn grow(alphabet: &[Step], steps: usize, script: &mut Vec<Step>, visit: &mut impl FnMut(&[Step])) {
        if script.len() == steps {
            return visit(script);
        }
        for step in alphabet {
            let mut world = World::light(steps, BASE);
            script.iter().for_each(|step| step.take(&mut world));
            if step.fits(&world) {
                script.push(*step);
                grow(alphabet, steps, script, visit);
                script.pop();
            }
        }
    }
    grow(alphabet, steps, &mut Vec::new(), visit);
}

/// Returns every interleaving of three actors with this many moves each.
fn interleavings(mut moves: [usize; 3]) -> Vec<Vec<usize>> {
    fn grow(moves: &mut [usize; 3], order: &mut Vec<usize>, orders: &mut Vec<Vec<usize>>) {
        if moves.iter().all(|left| *left == 0) {
            return orders.push(order.clone());
        }
        for hand in 0..moves.len() {
            if moves[hand] > 0 {
                moves[hand] -= 1;
                order.push(hand);
                grow(moves, order, orders);
                order.pop();
                moves[hand] += 1;
            }
        }
    }
    let mut orders = Vec::new();
    grow(&mut moves, &mut Vec::new(), &mut orders);
    orders
}

/// Runs one interleaving: actor 0 writes; the others open a watch at their first move and pull one frame at each later
/// one. At the end both read all that is left.
fn run(script: &[Step], order: &[usize], ring: usize, readers: [(Want, Begin); 2]) {
    let mut world = World::light(ring, BASE);
    let mut script = script.iter();
    let mut places = [None, None];
    for hand in order {
        let Some(reader) = hand.checked_sub(1) else {
            script.next().expect("a step for every move").take(&mut world);
            continue;
        };
        match (places[reader], readers[reader]) {
            (Some(place), _) => world.pull(place, 1),
            (None, (want, Begin::Current)) => places[reader] = Some(world.open_current(want)),
            (None, (want, Begin::Oldest)) => places[reader] = world.open_after(want, world.model.floor()),
        }
    }
    world.finish();
}

/// The space that one test explores.
struct Bounds {
    alphabet: &'static [Step],
    events: usize,
    rings: &'static [usize],
    readers: [(Want, Begin); 2],
    /// Moves of each reader: one to open the watch, the others to pull a frame.
    moves: [usize; 2],
}

impl Bounds {
    /// Returns the number of runs, so that a test that explores nothing is noticed.
    fn run_all(self) -> usize {
        let Self { alphabet, events, rings, readers, moves } = self;
        let orders = interleavings([events, moves[0], moves[1]]);
        let mut runs = 0;
        scripts(alphabet, events, &mut |script| {
            for ring in rings {
                orders.iter().for_each(|order| run(script, order, *ring, readers));
                runs += orders.len();
            }
        });
        runs
    }
}

/// A selector on the whole ring together with the lane of one object.
#[test]
fn selector_and_object_watches_match_model_for_any_four_events() {
    let readers = [(Want::AppX, Begin::Oldest), (Want::TheOneInA, Begin::Current)];
    let bounds = Bounds { alphabet: &Step::ALL, events: 4, rings: &[1, 2, 3], readers, moves: [2, 2] };
    assert!(bounds.run_all() > 250_000);
}

/// Two readers that share a narrow lane: one may create it, the other extend it backwards or find it evicted.
#[test]
fn shared_lane_readers_match_model_for_any_five_events() {
    let readers = [(Want::NodeOne, Begin::Current), (Want::NodeOne, Begin::Oldest)];
    let alphabet = &[Step::Enter, Step::Leave, Step::Other];
    let bounds = Bounds { alphabet, events: 5, rings: &[2], readers, moves: [2, 2] };
    assert!(bounds.run_all() > 150_000);
}

/// A reader that pulls event by event with the smallest possible ring.
#[test]
fn single_frame_pulls_match_model_for_any_three_events() {
    let readers = [(Want::Everything, Begin::Oldest), (Want::NotAppX, Begin::Current)];
    let bounds = Bounds { alphabet: &Step::ALL, events: 3, rings: &[1, 2], readers, moves: [3, 3] };
    assert!(bounds.run_all() > 50_000);
}
