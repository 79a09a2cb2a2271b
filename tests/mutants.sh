#!/usr/bin/env bash
# Enables each bug of docs/dev/PROMISES.md, "Mutants", and runs the tests that are named beside it: they must fail with
# the bug, those in tests/ by the judge that is named, and pass without it.
#
# tests/mutants.sh [NUMBER ...]: those bugs, or all. SAMPLE=n draws so many of all by SEED, which is drawn if it is not
# given, and runs the first test of each. All bugs are in one build, and KUBE_FANOUT_MUTANT says which one a process has
# (crates/base/src/mutant.rs).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Longer than a wait of tests/direct, which ends a hang after three minutes (PATIENCE) and says what is missing. A mutant
# that hangs for longer is not caught.
seconds_max=300

# rows: "NUMBER JUDGE FILE::TEST …" of each bug in the table.
rows() {
  awk '
    /^## / { inside = $0 == "## Mutants" }
    inside && /^\| [0-9]+ \|/ {
      cells = split($0, cell, / *\| */)
      row = $2 " " cell[cells - 1]
      while (match($0, /`[a-z0-9_\/]+\.rs::[a-z0-9_]+`/)) {
        row = row " " substr($0, RSTART + 1, RLENGTH - 2)
        $0 = substr($0, RSTART + RLENGTH)
      }
      print row
    }' docs/dev/PROMISES.md
}

chosen=("$@") tests_max=99
if [ ${#chosen[@]} = 0 ] && [ -n "${SAMPLE:-}" ]; then
  seed=${SEED:-$RANDOM}
  printf 'SEED=%s draws these again\n' "$seed"
  mapfile -t chosen < <(rows | awk -v seed="$seed" 'BEGIN { srand(seed) } { print rand(), $1 }' |
    sort | awk -v sample="$SAMPLE" 'NR <= sample { print $2 }')
  tests_max=1
fi

# A failed build says why.
if ! built=$(cargo test ${CI:+--locked} --no-run --lib --bin fanoutctl --test direct --test command --test simulation 2>&1); then
  printf '%s\n' "$built" >&2
  exit 1
fi
executable() { sed -nE "s|^ *Executable .*\((.*/$1-[0-9a-f]+)\)\$|\1|p" <<<"$built"; }
library=$(executable kube_fanout) direct=$(executable direct) simulation=$(executable simulation)
library_tests=$("$library" --list --format terse) direct_tests=$("$direct" --list --format terse)
simulation_tests=$("$simulation" --list --format terse)

# find FILE::TEST: sets `program` and `path`, by which the program knows the test.
find_test() {
  local file=${1%%::*} name=${1##*::} listed module
  case $file in
    crates/*)
      program=$(executable "$(cut -d / -f 2 <<<"$file")") module=${file#crates/*/src/}
      listed=$("$program" --list --format terse)
      ;;
    src/*) program=$library listed=$library_tests module=${file#src/} ;;
    tests/direct/*) program=$direct listed=$direct_tests module=${file#tests/direct/} ;;
    tests/simulation/*) program=$simulation listed=$simulation_tests module=${file#tests/simulation/} ;;
    *) printf 'no program has %s\n' "$1" >&2 && return 1 ;;
  esac
  module=${module%.rs}
  path=$(sed -nE "s/^(${module//\//::}::(.*::)?$name): test\$/\1/p" <<<"$listed")
  [ "$(wc -w <<<"$path")" = 1 ] || { printf 'not one test but "%s" is %s\n' "$path" "$1" >&2 && return 1; }
}

output=$(mktemp)
trap 'rm -f "$output"' EXIT

# run [NUMBER]: the test, with a bug or without; sets `outcome` and `took`.
run() {
  local began=$EPOCHREALTIME status=0
  KUBE_FANOUT_MUTANT=${1:-} timeout "$seconds_max" "$program" --exact "$path" >"$output" 2>&1 </dev/null || status=$?
  took=$(awk -v began="$began" -v ended="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", ended - began }')
  case $status in
    0) outcome=passed && grep -q '^test result: ok. 1 passed' "$output" || outcome="was not run" ;;
    101) outcome=failed && grep -q "^test $path .*FAILED" "$output" || outcome="broke" ;;
    124) outcome="hung for $took" ;;
    *) outcome="ended with $status" ;;
  esac
}

# Whether a failed test says that this promise is broken, as the judges of `verify` do.
is_judged() { grep -qE "^([A-Za-z]+, )*$1(, [A-Za-z]+)* broken: " "$output"; }

# What a failed test said first.
words() { awk '/ panicked at / { getline; print substr($0, 1, 100); exit }' "$output"; }

declare -A clean=()
count=0 caught=0 wrong=0
while read -r number judge tests; do
  [ ${#chosen[@]} = 0 ] || [[ " ${chosen[*]} " == *" $number "* ]] || continue
  count=$((count + 1)) survived=0
  [ -n "$tests" ] || { printf '%3d  NO TEST is named\n' "$number" && survived=1; }
  for name in $(cut -d ' ' -f "-$tests_max" <<<"$tests"); do
    find_test "$name"
    if [ -z "${clean[$name]:-}" ]; then
      run
      clean[$name]=$outcome
      if [ "$outcome" != passed ]; then
        printf '%3s  WITHOUT A BUG %s %s: %s\n' - "$path" "$outcome" "$(words)"
        wrong=1
      fi
    fi
    run "$number"
    # Tests of one module see no more of a promise than its part in it.
    if [ "$outcome" = failed ] && [[ $name == tests/* && $judge != none ]] && ! is_judged "$judge"; then
      printf '%3d  NOT CAUGHT by the judge of %s in %s: %s\n' "$number" "$judge" "$path" "$(words)"
      survived=1
    elif [ "$outcome" = failed ]; then
      printf '%3d  caught by %s after %s: %s\n' "$number" "$path" "$took" "$(words)"
    else
      printf '%3d  NOT CAUGHT by %s, which %s\n' "$number" "$path" "$outcome"
      survived=1
    fi
  done
  caught=$((caught + 1 - survived))
done < <(rows)

printf '%d of %d caught\n' "$caught" "$count"
[ "$count" -gt 0 ] && [ "$caught" = "$count" ] && [ "$wrong" = 0 ]
