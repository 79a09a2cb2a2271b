//! One binary for all targets, so that the proxy is linked once: `FUZZ_TARGET` says which (`tests/fuzz/targets.rs`).

#![no_main]

#[path = "../tests/fuzz/targets.rs"]
mod targets;

use std::sync::LazyLock;

static NAME: LazyLock<String> = LazyLock::new(|| std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target"));

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::run(&NAME, input));
