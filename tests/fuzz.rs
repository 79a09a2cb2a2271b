//! Every parser of peers' input, on invalid bytes: the corpus, and mutations of it.
//!
//! Mutations are drawn from a fixed seed, so that this test fails only because of a change of the code. `make fuzz`
//! explores further with coverage guidance (`fuzz/`), or, without cargo-fuzz, with other seeds and for longer
//! (`FUZZ_SECONDS`, `FUZZ_SEED`).

#[path = "fuzz/changes.rs"]
mod changes;
#[path = "fuzz/targets.rs"]
mod targets;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use changes::Changes;
use targets::{TARGETS, Target};

/// Number of mutations for each target, if no time is set.
const CHANGES: u64 = 4_000;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus")
}

/// Corpus of a target, ordered by file name.
fn inputs(target: &str) -> Vec<Vec<u8>> {
    let folder = std::fs::read_dir(corpus().join(target)).unwrap_or_else(|error| panic!("{target}: {error}"));
    let mut files: Vec<_> = folder.map(|file| file.expect("a file").path()).collect();
    files.sort();
    files.into_iter().map(|file| std::fs::read(file).expect("a file")).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs a target on an input. A failing input is saved, and the message says how to repeat it.
fn run((name, target): Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
        let _ = std::fs::write(&kept, input);
        let _ = writeln!(std::io::stderr(), "{name}: {} bytes, kept in {}", input.len(), kept.display());
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn corpus_inputs_are_parsed_or_rejected() {
    for target in TARGETS {
        let inputs = inputs(target.0);
        assert!(inputs.len() > 2, "{}: a corpus that says something", target.0);
        inputs.iter().for_each(|input| run(target, input));
    }
}

#[test]
fn mutated_corpus_inputs_are_parsed_or_rejected() {
    let (seconds, seed) = (number("FUZZ_SECONDS"), number("FUZZ_SEED").unwrap_or(1));
    let only = std::env::var("FUZZ_TARGET").ok();
    for target in TARGETS.into_iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name)) {
        let (mut changes, began) = (Changes::new(inputs(target.0), seed), Instant::now());
        let mut runs = 0_u64;
        while seconds.map_or(runs < CHANGES, |seconds| began.elapsed() < Duration::from_secs(seconds)) {
            run(target, &changes.next());
            runs += 1;
        }
        let per_second = runs as f64 / began.elapsed().as_secs_f64();
        let _ = writeln!(std::io::stderr(), "{}: {runs} inputs, {per_second:.0} a second, seed {seed}", target.0);
    }
}

#[test]
fn corpus_is_small_and_each_directory_has_a_target() {
    let mut bytes = 0;
    for folder in std::fs::read_dir(corpus()).expect("a corpus") {
        let folder = folder.expect("a folder");
        let name = folder.file_name().into_string().expect("text");
        assert!(TARGETS.iter().any(|(target, _)| *target == name), "{name} belongs to no target");
        bytes += inputs(&name).iter().map(Vec::len).sum::<usize>();
    }
    assert!(bytes < 200_000, "{bytes} bytes");
}
