#!/usr/bin/env bash
# Scenarios of `fanoutctl bench` against a real kube-apiserver and the proxy in front of it, in turn, on this machine.
# Where events are delivered, so are servers that do nothing else (benches/floor): hyper, the h2 crate, and TLS on a
# socket where each watch has a connection of its own; and where requests pass through, one that hands bytes on. They are
# the limit, in columns beside the others'.
#
#   benches/beside.sh [SCENARIO]...      all of $SCENARIOS when none is named
#
# ROUNDS=3        how often each side is measured
# OUT=DIR         where SCENARIO.json, SCENARIO.txt and SCENARIO.html go [default: target/figures]
# BINARY=FILE     the proxy to measure [default: target/release/kube-fanout, built]
# FLAGS=TEXT      flags of the load, which override the scenarios'
# LOAD=FILE       the fanoutctl whose `bench` makes the load [default: beside BINARY]
# FLOOR=FILE      the servers of benches/floor [default: built]
set -euo pipefail
cd "$(dirname "$0")/.."

SCENARIOS="gentle gentle-go gentle-h1 fifty-thousand saturated-own saturated-own-go saturated-shared saturated-shared-go idle-own idle-shared idle-15000 gzip gzip-watch-list list-json list-protobuf
  list-storm join-storm resume-storm nonmatching-node nonmatching-namespace nonmatching-name nonmatching-label stuck
  slow-watcher-tax pass-through kubelets-5000"
rounds=${ROUNDS:-3} out=${OUT:-target/figures}
binary=${BINARY:-target/release/kube-fanout}
load=${LOAD:-$(dirname "$binary")/fanoutctl}

tests/kube/build.sh
[ -n "${BINARY:-}" ] || cargo build --release
floor=${FLOOR:-$(cargo bench --no-run --bench floor 2>&1 | sed -n 's/.*Executable benches\/floor.* (\(.*\))$/\1/p')}
mkdir -p "$out"
bed=$(mktemp -d)
servers=()
control_plane=""

finish() {
  stop_servers
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

# started NAME PROTOCOL COMMAND...: a server more to measure. It is a process of its own for each scenario, so that its
# memory is that of the scenario.
started() {
  local name=$1 protocol=$2
  shift 2
  "$@" >"$bed/$name.out" 2>"$bed/$name.log" &
  servers+=($!)
  await "$name does not listen" grep -q '^serving on' "$bed/$name.out"
  urls+=("$(sed -n 's/^serving on //p' "$bed/$name.out")") names+=,$name pids+=,$! protocols+=,$protocol
}

floor_of() {
  started "$1" "$2" "$floor" "$1" --kubeconfig "$bed/admin.kubeconfig" --certificate-out "$bed/$1.crt"
}

start_servers() {
  local all=h2
  [ "$1" != gentle-h1 ] || all=h1
  urls=("$(cat "$bed/url")") names=apiserver pids=$(cat "$bed/apiserver.pid") protocols=$all
  started proxy "$all" "$binary" serve --kubeconfig "$bed/admin.kubeconfig" --listen 127.0.0.1:0 --admin 127.0.0.1:0 \
    --tls-self-signed --tls-self-signed-out "$bed/proxy.crt" --allow-core-dumps
  rm -f "$bed"/{hyper,h2,socket,forward}.crt
  case $1 in
    gentle-h1) floor_of hyper h1 && floor_of socket h1 ;;
    gentle* | saturated-own* | idle-own) floor_of hyper h2 && floor_of h2 h2 && floor_of socket h1 ;;
    fifty-thousand | saturated-shared* | idle-shared) floor_of hyper h2 && floor_of h2 h2 ;;
    pass-through) floor_of forward h2 ;;
  esac
  cat "$bed"/{proxy,hyper,h2,socket,forward}.crt >"$bed/all.crt" 2>/dev/null || true
}

stop_servers() {
  local server
  for server in "${servers[@]}"; do
    { kill "$server" && wait "$server"; } 2>/dev/null || true
  done
  servers=()
}

failed=""
for scenario in ${*:-$SCENARIOS}; do
  echo "== $scenario"
  start_servers "$scenario"
  # What each speaks is said where that is not what the scenario says for all.
  [[ $protocols == *h1* ]] && speaking=(--protocols "$protocols") || speaking=()
  "$load" bench --compare "${urls[@]}" --names "$names" "${speaking[@]}" \
    --pids "$pids" --ca "$bed/all.crt" --kubeconfig "$bed/admin.kubeconfig" \
    --scenario "$scenario" ${FLAGS:-} --rounds "$rounds" --json "$out/$scenario.json" --report "$out/$scenario.html" \
    | tee "$out/$scenario.txt" || failed="$failed $scenario"
  stop_servers
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
