//! Sequences of outages, drawn from a seed: the apiserver, the proxy and both are killed and restarted. They are killed
//! separately and also during the recovery from the previous outage. No watch ends while upstream still has its
//! history, and the checkers of `fanoutctl verify` find no broken promise. etcd is the reference. `make outages` runs
//! more of them.

mod drawn;
mod stage;
mod stored;
mod tally;
mod writer;

use std::time::Instant;

use crate::bed::{self, Seed, log_line};
use stage::Stage;

/// etcd stores objects as JSON and is not compacted, so that its whole history is readable.
const FLAGS: [&str; 2] = ["--storage-media-type=application/json", "--etcd-compaction-interval=0"];
/// In a run with at least this many sequences, some outage must begin during the recovery from another one; otherwise
/// the run is void.
const MANY: u64 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_survive_random_outages_while_upstream_has_history() {
    let sequences = bed::number("OUTAGES_SEQUENCES", 2);
    let seed = Seed::new("OUTAGES_SEED", |seed| format!("make outages SEQUENCES={sequences} SEED={seed}"));
    let Some(bed) = bed::own_with("outages", &FLAGS).await else { return };
    let mut stage = Stage::set(&bed).await;
    let count = usize::try_from(sequences).expect("a small number");
    for seed in seed.rounds().take(count) {
        let (mut rng, began) = (fastrand::Rng::with_seed(seed), Instant::now());
        let outages = drawn::sequence(&mut rng);
        log_line(&format!("make outages SEQUENCES=1 SEED={seed}: {outages:?}"));
        stage.play(&outages, &mut rng).await;
        log_line(&format!("it took {:.0} s; so far: {}", began.elapsed().as_secs_f64(), stage.tally));
    }
    assert!(sequences < MANY || stage.tally.overlapping() > 0, "the run is void: no outage met a recovery");
}
