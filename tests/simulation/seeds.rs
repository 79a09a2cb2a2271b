//! Seeds: fresh ones, and those with a known purpose.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use verify::excerpt;

use crate::excuses;
use crate::panics::with_panics;
use crate::run::{Ran, run};
use crate::tally::Tally;

/// Seeds that run if no number is given: always the same ones, so that a failure is due to the change under test.
const FIXED: std::ops::Range<u64> = 1000..1012;
/// Together these seeds detect each mutant that names their test.
const MUTANT_SEEDS: std::ops::RangeInclusive<u64> = 1..=16;
/// Seeds that once found a bug, each with a description.
const ONCE_BROKEN: [(u64, &str); 4] = [
    (599_642_887, "a watch that waited for older history received 410 when the feed ended"),
    (20_002_956, "a version counted as complete after a silence that was not observed"),
    (2_013_695_506, "a client that had all events of a version received some again from a feed that was behind"),
    (2_013_692_322, "a truncated history response counted as a refusal, and its watches received 410"),
];
/// A long run reports its progress after this many seeds.
const PROGRESS_EVERY: u64 = 500;
/// Maximum number of failing seeds that one run reports.
const BROKEN_MAX: usize = 3;

/// Runs a seed, and describes the broken promises.
fn broken(seed: u64, tally: &Mutex<Tally>) -> Option<String> {
    let again = format!("`make simulation SEEDS=1 SEED={seed}` repeats it");
    let (ran, panics) = with_panics(|| run(seed));
    let Some(ran) = ran.filter(|_| panics.is_empty()) else {
        return Some(format!("seed {seed} panicked, {again}:\n{}", panics.join("\n")));
    };
    let is_enough = tally.lock().expect("no panic").add(seed, &ran);
    let Ran { verdict, lines, notes, .. } = ran;
    let names: Vec<_> = excuses::broken(&verdict, &lines).iter().map(ToString::to_string).collect();
    if let (Ok(dir), false) = (std::env::var("SIMULATION_RECORDS"), names.is_empty() && is_enough) {
        let path = std::path::Path::new(&dir).join(format!("{seed}.jsonl"));
        std::fs::write(path, &lines).expect("a folder");
    }
    if names.is_empty() {
        return None;
    }
    let record_lines = verdict.first().map(|first| first.lines.clone()).unwrap_or_default();
    let mut text = format!("{} broken: seed {seed}, {again}\n", names.join(", "));
    text += &verdict.text(&excerpt(&lines[..], &record_lines).expect("in memory"));
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    Some(text)
}

fn assert_kept(seeds: impl IntoIterator<Item = u64>) -> Tally {
    let tally = Mutex::default();
    let broken: Vec<_> = seeds.into_iter().filter_map(|seed| broken(seed, &tally)).collect();
    assert!(broken.is_empty(), "\n{}", broken.join("\n\n"));
    tally.into_inner().expect("no panic")
}

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// `make simulation SEEDS=n SEED=n` sets the number of seeds and the first one. Records of failing seeds are written to
/// the folder that `SIMULATION_RECORDS` names; `SIMULATION_LOG` shows the application's log.
#[test]
#[expect(clippy::print_stdout, reason = "the output has the command that repeats the run")]
fn fresh_seeds_keep_every_guarantee() {
    // 32 bits, so that a person can dictate the seed.
    let first = env_number("SIMULATION_SEED").unwrap_or(FIXED.start);
    let named = env_number("SIMULATION_SEEDS");
    let seeds = named.unwrap_or(FIXED.end - FIXED.start);
    println!("SEED={first} draws these again");
    if std::env::var("SIMULATION_LOG").is_ok() {
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).init();
    }
    let (began, next, tally, found) = (Instant::now(), AtomicU64::new(0), Mutex::default(), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= seeds || found.lock().expect("no panic").len() >= BROKEN_MAX {
                return;
            }
            if nth > 0 && nth % PROGRESS_EVERY == 0 {
                println!("{nth} seeds after {} s", began.elapsed().as_secs());
            }
            let text = broken(first + nth, &tally);
            found.lock().expect("no panic").extend(text);
        }
    };
    // Each run has a thread of its own. Next to other tests there is only one.
    let threads = if named.is_some() { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let tally: Tally = tally.into_inner().expect("no panic");
    println!("{tally}\n{:?} a seed", began.elapsed() / u32::try_from(tally.seeds).unwrap_or(u32::MAX).max(1));
    let found = found.into_inner().expect("no panic");
    assert!(found.is_empty(), "\n{}", found.join("\n\n"));
    assert!(tally.lacks().is_empty(), "{}", tally.lacks().join("\n"));
}

#[test]
fn formerly_failing_seeds_keep_every_guarantee() {
    assert_kept(ONCE_BROKEN.iter().map(|(seed, _)| *seed));
}

#[test]
fn mutant_detecting_seeds_keep_every_guarantee() {
    let lacks = assert_kept(MUTANT_SEEDS).lacks();
    assert!(lacks.is_empty(), "{}", lacks.join("\n"));
}
