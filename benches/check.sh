#!/usr/bin/env bash
# Benchmarks of two commits in one run: is this one slower? And the committed baseline.
#
#   benches/check.sh             BASE against what is checked out, as it is; benches/baseline.json for information
#   benches/check.sh baseline    writes benches/baseline.json
#
# BASE is a commit: by default where this branch left origin/main, or the commit before this one. It is built in a work
# tree of its own, target/bench-base. Both sides are measured in turns, and of each benchmark the fastest sample counts:
# what else runs on the machine only ever adds. What looks slower is measured again, alone, before it is said to be.
#
# Exits with 0 when nothing is slower, 1 when something is, and 2 when it could not be told.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# `sort` and `join` must agree.
export LC_ALL=C

CARGO=${CARGO:-cargo}
# Slower: by more than this factor, and by more than so many nanoseconds.
RATIO_MAX=${RATIO_MAX:-1.15}
NANOSECONDS_MAX=${NANOSECONDS_MAX:-20}
# Turns of everything, and how many more for what looks slower.
ROUNDS=${ROUNDS:-3}
ROUNDS_AGAIN=${ROUNDS_AGAIN:-6}

tree=target/bench-base
results=$PWD/target/bench-check
baseline=benches/baseline.json

say() { printf '==> %s\n' "$*" >&2; }

# For what ends the check without a verdict.
give_up() {
  printf '!!! %s\n' "$*" >&2
  exit 2
}

base_commit() {
  local head base
  head=$(git rev-parse HEAD)
  base=${BASE:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
  # On origin/main itself that is this commit.
  if [ -z "${BASE:-}" ] && [ "${base:-$head}" = "$head" ]; then base=HEAD~1; fi
  git rev-parse --verify --quiet "$base^{commit}" || give_up "there is no commit $base"
}

# check_out COMMIT: the work tree of the base.
check_out() {
  if [ -e "$tree/.git" ]; then
    git -C "$tree" checkout --quiet --force --detach "$1"
    return
  fi
  git worktree add --quiet --force --detach "$tree" "$1"
  # The dependencies are mostly the same: what is built of them serves here too. Of our own crate nothing does.
  if [ -d target/release ]; then
    mkdir -p "$tree/target/release"
    cp -a target/release/{.fingerprint,build,deps} "$tree/target/release/"
    rm -rf "$tree"/target/release/.fingerprint/{kube-fanout,base,bench,demo,fanoutctl,kubeapi,probe,verify}-*
  fi
}

# build FOLDER: builds its benchmarks and prints the executables.
build() {
  local names=("$1"/benches/*.rs) wanted=() log=$results/build.log
  names=("${names[@]##*/}")
  for name in "${names[@]%.rs}"; do wanted+=(--bench "$name"); done
  mkdir -p "$results"
  (cd "$1" && CARGO_TARGET_DIR=target "$CARGO" bench ${CI:+--locked} --no-run "${wanted[@]}") >"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    give_up "the benchmarks of $1 do not build"
  }
  sed -n 's/^ *Executable benches\/.*(\(.*\))$/\1/p' "$log"
}

# measure SIDE FOLDER FILTER EXECUTABLE...: one turn. Short samples: one that nobody disturbed is enough.
measure() {
  local side=$1 folder=$2 filter=$3 turn
  shift 3
  mkdir -p "$results/$side"
  turn=$(($(find "$results/$side" -mindepth 1 -maxdepth 1 | wc -l) + 1))
  mkdir -p "$results/$side/$turn"
  for executable in "$@"; do
    (cd "$folder" && CRITERION_HOME=$results/$side/$turn "$executable" --bench --noplot --nresamples 1000 \
      --warm-up-time 0.1 --measurement-time 0.3 "$filter") >"$results/$side.log" 2>&1 || {
      tail -n 20 "$results/$side.log" >&2
      give_up "$executable failed"
    }
  done
}

# fastest SIDE: lines of name, tab, nanoseconds of its fastest sample in all turns.
fastest() {
  find "$results/$1" -path '*/new/sample.json' | while IFS= read -r sample; do
    printf '%s\t%s\n' \
      "$(sed -n 's/.*"full_id":"\([^"]*\)".*/\1/p' "${sample%/*}/benchmark.json")" "$(cat "$sample")"
  done | awk -F '\t' '
    function numbers(name, into,   rest) {
      rest = $2
      sub(".*\"" name "\":\\[", "", rest)
      sub("\\].*", "", rest)
      return split(rest, into, ",")
    }
    {
      count = numbers("iters", iterations)
      numbers("times", times)
      for (i = 1; i <= count; i++) {
        each = times[i] / iterations[i]
        if (!($1 in best) || each < best[$1]) best[$1] = each
      }
    }
    END { for (name in best) printf "%s\t%.2f\n", name, best[name] }
  ' | sort
}

# slower: names that are, by what has been measured so far.
slower() {
  join -t $'\t' <(fastest base) <(fastest head) |
    awk -F '\t' -v ratio="$RATIO_MAX" -v least="$NANOSECONDS_MAX" '$3 > $2 * ratio && $3 - $2 > least { print $1 }'
}

# pattern: lines of names as one regular expression.
pattern() { sed 's/[][().*+?^$|{}\\]/\\&/g' | paste -sd '|' | sed 's/.*/^(&)$/'; }

# of_baseline: the baseline as lines like those of `fastest`.
of_baseline() { sed -n 's/^    "\(.*\)": \([0-9.]*\),\{0,1\}$/\1\t\2/p' "$baseline" 2>/dev/null | sort; }

# report: every benchmark of both; the last column is head beside the baseline, both in units of their machine.
report() {
  join -t $'\t' -a 2 -e - -o 0,1.2,2.2 <(fastest base) <(fastest head) |
    join -t $'\t' -a 1 -e - -o 0,1.2,1.3,2.2 - <(of_baseline) |
    awk -F '\t' '
      { name[NR] = $1; base[NR] = $2; head[NR] = $3; known[NR] = $4 }
      $1 == "reference" && $4 != "-" { unit = $3 / $4 }
      END {
        printf "%-46s %12s %12s %7s %9s\n", "nanoseconds", "base", "head", "ratio", "baseline"
        for (i = 1; i <= NR; i++) {
          ratio = base[i] == "-" ? "new" : sprintf("%.2f", head[i] / base[i])
          beside = known[i] == "-" || !unit ? "-" : sprintf("%.2f", head[i] / known[i] / unit)
          printf "%-46s %12s %12s %7s %9s\n", name[i], base[i], head[i], ratio, beside
        }
      }
    '
}

check() {
  local commit suspects head_executables base_executables
  commit=$(base_commit)
  say "building head"
  head_executables=$(build .)
  say "building base, $(git log -1 --format='%h %s' "$commit")"
  check_out "$commit"
  base_executables=$(build "$tree")
  rm -rf "$results"/{base,head}
  # Paths without blanks: cargo's own.
  for round in $(seq "$ROUNDS"); do
    say "round $round of $ROUNDS"
    measure base "$tree" '' $base_executables
    measure head . '' $head_executables
  done
  suspects=$(slower)
  for round in $(seq "$ROUNDS_AGAIN"); do
    if [ -z "$suspects" ]; then break; fi
    say "again, $(wc -l <<<"$suspects") that look slower ($round of at most $ROUNDS_AGAIN)"
    measure base "$tree" "$(pattern <<<"$suspects")" $base_executables
    measure head . "$(pattern <<<"$suspects")" $head_executables
    suspects=$(slower)
  done
  report
  verdict "$suspects"
}

# verdict NAMES: what is slower.
verdict() {
  local gone compared
  gone=$(join -t $'\t' -v 1 -o 1.1 <(fastest base) <(fastest head))
  compared=$(join -t $'\t' -o 1.1 <(fastest base) <(fastest head) | wc -l)
  echo
  if [ -n "$gone" ]; then printf 'at base only, not compared: %s\n' "$gone"; fi
  if [ "$compared" = 0 ]; then give_up "the two have no benchmark in common"; fi
  if grep -qx reference <<<"$1"; then give_up "the reference is slower, which is none of our code: try again"; fi
  if [ -n "$1" ]; then
    printf 'slower by more than %s and %s ns: %s\n' "$RATIO_MAX" "$NANOSECONDS_MAX" "${1//$'\n'/, }"
    return 1
  fi
  printf 'none of %s is slower by more than %s and %s ns\n' "$compared" "$RATIO_MAX" "$NANOSECONDS_MAX"
}

write_baseline() {
  local executables cpu
  say "building"
  executables=$(build .)
  rm -rf "$results/head"
  for round in $(seq "$ROUNDS"); do
    say "round $round of $ROUNDS"
    measure head . '' $executables
  done
  cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
  {
    printf '{\n  "machine": {"cpu": "%s", "cores": %s, "rustc": "%s"},\n' \
      "${cpu:-$(uname -m)}" "$(getconf _NPROCESSORS_ONLN)" "$(rustc --version)"
    printf '  "nanoseconds": {\n'
    fastest head | awk -F '\t' '{ printf "%s    \"%s\": %s", (NR > 1 ? ",\n" : ""), $1, $2 } END { print "" }'
    printf '  }\n}\n'
  } >"$results/baseline.json"
  mv "$results/baseline.json" "$baseline"
  say "wrote $baseline"
}

case ${1:-} in
  '') check ;;
  baseline) write_baseline ;;
  *) give_up "usage: benches/check.sh [baseline]" ;;
esac
