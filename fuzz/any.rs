//! One target, which `FUZZ_TARGET` names where this is compiled (`tests/fuzz/targets.rs`). Nothing but what it reaches
//! is linked, for libFuzzer looks at every counter of the program behind each input.

#![no_main]

#[path = "../tests/fuzz/targets.rs"]
mod targets;

const TARGET: fn(&[u8]) = targets::named(env!("FUZZ_TARGET"));

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET(input));
