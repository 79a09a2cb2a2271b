#!/usr/bin/env bash
# Applies tests/mutants/NN.patch for each bug NN of docs/dev/PROMISES.md, "Mutants", to a copy of the checkout and runs
# the tests that are named beside the bug. They must fail with it, those in tests/ by the judge that is named, and pass
# without it. The copy has its own target directory, so that no build of the checkout has a bug.
#
# tests/mutants.sh [NUMBER ...]: these bugs, or all. SAMPLE=n draws n of all by SEED, which is drawn if it is not given,
# and runs the first test of each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Longer than a wait of tests/direct, which ends a hang after three minutes (PATIENCE) and says what is missing. A mutant
# that hangs for longer is not caught.
seconds_max=300

mkdir -p "${CARGO_TARGET_DIR:-target}/mutants/tree"
folder=$(cd "${CARGO_TARGET_DIR:-target}/mutants" && pwd)
tree=$folder/tree
# Each bug costs a build: without optimization, and incremental.
export CARGO_TARGET_DIR=$folder/target CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0
# The simulation seeds tokio's choices. One build has all programs, so that the daemon is compiled once.
export RUSTFLAGS="${RUSTFLAGS:-} --cfg tokio_unstable"

# table: "NUMBER JUDGE FILE::TEST …" of each bug.
table() {
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
  mapfile -t chosen < <(table | awk -v seed="$seed" 'BEGIN { srand(seed) } { print rand(), $1 }' |
    sort | awk -v sample="$SAMPLE" 'NR <= sample { print $2 }')
  tests_max=1
fi

# The chosen rows, each with the tests that are run.
mapfile -t rows < <(table | while read -r number judge tests; do
  [ ${#chosen[@]} = 0 ] || [[ " ${chosen[*]} " == *" $number "* ]] || continue
  printf '%s %s %s\n' "$number" "$judge" "$(cut -d ' ' -f "-$tests_max" <<<"$tests")"
done)
read -ra all_tests <<<"$(printf '%s\n' "${rows[@]}" | cut -d ' ' -f 3- | tr '\n' ' ')"
if [ ${#all_tests[@]} = 0 ]; then
  printf '0 of %d caught\n' ${#rows[@]}
  exit 1
fi

output=$(mktemp)
trap 'rm -f "$output"' EXIT

# git over the copy, which has an index of its own. It writes a file only if its content is another one, so cargo builds
# no more than what has changed.
in_tree() { GIT_DIR=$git_dir GIT_WORK_TREE=$tree GIT_INDEX_FILE=$folder/index git -C "$tree" "$@"; }
restore() { in_tree read-tree --reset -u "$checkout"; }

# The checkout as it lies on the disk, committed or not.
git_dir=$(git rev-parse --absolute-git-dir)
checkout=$(export GIT_INDEX_FILE=$folder/checkout.index && git add --all && git write-tree)
restore

# program_of FILE::TEST: the program that has the test.
program_of() {
  case $1 in
    src/*) printf 'kube_fanout\n' ;;
    tests/direct/*) printf 'direct\n' ;;
    tests/simulation/*) printf 'simulation\n' ;;
    *) printf 'no program has %s\n' "$1" >&2 && return 1 ;;
  esac
}

programs_of() { for name in "$@"; do program_of "$name"; done | sort -u; }

# build FILE::TEST …: the programs that have these tests, in the copy. What cargo says is in `output`.
build() {
  local programs=()
  mapfile -t programs < <(programs_of "$@" | sed 's/^/--test=/; s/.*=kube_fanout/--lib/')
  (cd "$tree" && cargo test ${CI:+--locked} --package kube-fanout --no-run "${programs[@]}") >"$output" 2>&1
}

# A failed build says why.
if ! build "${all_tests[@]}"; then
  cat "$output" >&2
  exit 1
fi
declare -A executables=() listed=()
for name in $(programs_of "${all_tests[@]}"); do
  executables[$name]=$(sed -nE "s|^ *Executable .*\((.*/$name-[0-9a-f]+)\)\$|\1|p" "$output")
  listed[$name]=$("${executables[$name]}" --list --format terse)
done

# find FILE::TEST: sets `program` and `path`, by which the program knows the test.
find_test() {
  local file=${1%%::*} name=${1##*::} built module
  built=$(program_of "$1")
  program=${executables[$built]} module=${file#src/}
  module=${module#"tests/$built/"} module=${module%.rs}
  path=$(sed -nE "s/^(${module//\//::}::(.*::)?$name): test\$/\1/p" <<<"${listed[$built]}")
  [ "$(wc -w <<<"$path")" = 1 ] || { printf 'not one test but "%s" is %s\n' "$path" "$1" >&2 && return 1; }
}

# run: the test, as the programs are built; sets `outcome` and `took`.
run() {
  local began=$EPOCHREALTIME status=0
  (cd "$tree" && exec timeout "$seconds_max" "$program" --exact "$path") >"$output" 2>&1 </dev/null || status=$?
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

# The first message of a failed test.
first_message() { awk '/ panicked at / { getline; print substr($0, 1, 100); exit }' "$output"; }

# put_back NUMBER FILE::TEST …: the bug, in the copy and in the programs that have these tests.
put_back() {
  local number=$1 patch
  shift
  patch=$(printf '%s/tests/mutants/%02d.patch' "$tree" "$number")
  restore
  if ! in_tree apply "$patch" >"$output" 2>&1; then
    printf '%3d  DOES NOT APPLY: %s\n' "$number" "$(head -1 "$output")"
    return 1
  fi
  if ! build "$@"; then
    printf '%3d  DOES NOT COMPILE: %s\n' "$number" "$(grep -m 1 -A 1 '^error' "$output" | tr '\n' ' ')"
    return 1
  fi
}

# Every test passes without a bug, before the first one is put back.
wrong=0
for name in $(printf '%s\n' "${all_tests[@]}" | sort -u); do
  find_test "$name"
  run
  if [ "$outcome" != passed ]; then
    printf '%3s  WITHOUT A BUG %s %s: %s\n' - "$path" "$outcome" "$(first_message)"
    wrong=1
  fi
done

count=0 caught=0
for row in "${rows[@]}"; do
  read -r number judge tests <<<"$row"
  count=$((count + 1))
  [ -n "$tests" ] || { printf '%3d  NO TEST is named\n' "$number" && continue; }
  read -ra tests <<<"$tests"
  put_back "$number" "${tests[@]}" || continue
  survived=0
  for name in "${tests[@]}"; do
    find_test "$name"
    run
    # Tests of one module see no more of a promise than its part in it.
    if [ "$outcome" = failed ] && [[ $name == tests/* && $judge != – ]] && ! is_judged "$judge"; then
      printf '%3d  NOT CAUGHT by the judge of %s in %s: %s\n' "$number" "$judge" "$path" "$(first_message)"
      survived=1
    elif [ "$outcome" = failed ]; then
      printf '%3d  caught by %s after %s: %s\n' "$number" "$path" "$took" "$(first_message)"
    else
      printf '%3d  NOT CAUGHT by %s, which %s\n' "$number" "$path" "$outcome"
      survived=1
    fi
  done
  caught=$((caught + 1 - survived))
done

printf '%d of %d caught\n' "$caught" "$count"
[ "$count" -gt 0 ] && [ "$caught" = "$count" ] && [ "$wrong" = 0 ]
