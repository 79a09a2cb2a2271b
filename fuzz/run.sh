#!/usr/bin/env bash
# run.sh SECONDS [TARGET..]: fuzzes each target for so long, on the stable toolchain: without sanitizers, for there is
# no unsafe code here. What is found interesting is kept in target/fuzz. At the end it says how many inputs were run.
# Without cargo-fuzz, random changes instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=$1
shift
targets=("$@")
[ ${#targets[@]} != 0 ] || targets=(tests/fuzz/corpus/*)

export PATH="$PWD/target/tools/bin:$PATH"
if ! cargo fuzz --version >/dev/null 2>&1; then
  echo "cargo-fuzz is not installed (cargo install --root target/tools cargo-fuzz): random changes instead" >&2
  FUZZ_SECONDS=$seconds FUZZ_SEED=${FUZZ_SEED:-$RANDOM} cargo test --test fuzz -- --nocapture mutated_corpus_inputs_are_parsed_or_rejected
  exit
fi

# Each target is a program of its own, without what it does not reach: the fewer counters, the faster.
total=0
for target in "${targets[@]}"; do
  name=${target##*/}
  kept=target/fuzz/$name log=target/fuzz/$name.log
  mkdir -p "$kept"
  printf '\n==> %s\n' "$name"
  FUZZ_TARGET=$name cargo fuzz run -s none any "$kept" "tests/fuzz/corpus/$name" -- \
    -max_total_time="$seconds" -max_len=8192 -timeout=25 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
    2>&1 | tee "$log"
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '%s: %d inputs\n' "$name" "$runs"
  total=$((total + runs))
done
printf '\n%d inputs of %d targets, and nothing found\n' "$total" "${#targets[@]}"
