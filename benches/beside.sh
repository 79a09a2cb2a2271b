#!/usr/bin/env bash
# Scenarios of `kube-fanout bench` against a real kube-apiserver and the proxy in front of it, in turn, on this machine.
#
#   benches/beside.sh [SCENARIO]...      all of $SCENARIOS when none is named
#
# ROUNDS=3        how often each side is measured
# OUT=DIR         where SCENARIO.json, SCENARIO.txt and SCENARIO.html go [default: target/figures]
# BINARY=FILE     the proxy to measure [default: target/release/kube-fanout, built]
# LOAD=FILE       whose `bench` makes the load [default: BINARY]
set -euo pipefail
cd "$(dirname "$0")/.."

SCENARIOS="gentle fifty-thousand saturated-own saturated-shared idle-own idle-shared idle-15000 list-json list-protobuf
  list-storm join-storm resume-storm nonmatching-node nonmatching-namespace nonmatching-name nonmatching-label stuck
  slow-watcher-tax pass-through kubelets-5000"
rounds=${ROUNDS:-3} out=${OUT:-target/figures}
binary=${BINARY:-target/release/kube-fanout}
load=${LOAD:-$binary}

tests/kube/build.sh
[ -n "${BINARY:-}" ] || cargo build --release
mkdir -p "$out"
bed=$(mktemp -d)
proxy=""
control_plane=""

finish() {
  [ -z "$proxy" ] || kill "$proxy" 2>/dev/null || true
  [ -z "$control_plane" ] || { kill "$control_plane" 2>/dev/null && wait "$control_plane" 2>/dev/null; } || true
  rm -rf "$bed"
}
trap finish EXIT

# Waits until `$2...` succeeds, for at most a minute; `$1` says what for.
await() {
  local what=$1 tries
  shift
  for tries in $(seq 600); do "$@" && return; sleep 0.1; done
  echo "$what: not after a minute ($tries tries)" >&2
  exit 1
}

target/testbed/kube-testbed up --dir "$bed" >"$bed/up.log" 2>&1 &
control_plane=$!
await "the control plane is not ready" test -e "$bed/ready"

# A process of its own for each scenario, so that its memory is that of the scenario.
start_proxy() {
  "$binary" serve --kubeconfig "$bed/admin.kubeconfig" --listen 127.0.0.1:0 --admin off \
    --tls-self-signed --tls-self-signed-out "$bed/proxy.crt" --allow-core-dumps >"$bed/proxy.out" 2>"$bed/proxy.log" &
  proxy=$!
  await "the proxy does not listen" grep -q '^serving on' "$bed/proxy.out"
  url=$(sed -n 's/^serving on //p' "$bed/proxy.out")
}

failed=""
for scenario in ${*:-$SCENARIOS}; do
  echo "== $scenario"
  start_proxy
  "$load" bench --compare "$(cat "$bed/url")" "$url" --names apiserver,proxy \
    --pids "$(cat "$bed/apiserver.pid"),$proxy" --ca "$bed/proxy.crt" --kubeconfig "$bed/admin.kubeconfig" \
    --scenario "$scenario" --rounds "$rounds" --json "$out/$scenario.json" --report "$out/$scenario.html" \
    | tee "$out/$scenario.txt" || failed="$failed $scenario"
  kill "$proxy" && wait "$proxy" || true
  proxy=""
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
