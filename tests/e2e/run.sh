#!/usr/bin/env bash
# Kubernetes' own end-to-end specs, those of specs.txt: against an apiserver itself, and
# through the proxy. Ends with 0 if the same ones passed, and enough of them. See README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kube_fanout=${KUBE_FANOUT_BINARY:-target/debug/kube-fanout}
kube_testbed=$PWD/target/testbed/kube-testbed
kube_e2e=target/testbed/kube-e2e
scratch=$PWD/target/tmp/e2e
specs=${SPECS:-tests/e2e/specs.txt}
# The number of specs that must pass on both sides: 19 of 20, because some fail occasionally. With MATCH, at least one.
least=$(($(grep -c '^[^#]' "$specs") * 19 / 20))
[ -z "${MATCH:-}" ] || least=1
# Specs mostly wait, so more run at the same time than there are processors.
shards=10 parallel_limit=6m serial_limit=2m
started=() # what stop_all ends

say() { printf '\n==> %s\n' "$*"; }

# start NAME PATTERN COMMAND...: starts a process that stop_all ends, and waits until its output matches PATTERN.
start() {
  local name=$1 pattern=$2 log=$dir/$1.log
  shift 2
  : >"$log"
  "$@" >"$log" 2>&1 &
  started+=($!)
  # The reader ends with what it reads.
  if ! timeout 180 grep -q -m 1 -- "$pattern" <(exec tail -n +1 -s 0.1 -f --pid=$! "$log"); then
    printf '%s did not print %q:\n' "$name" "$pattern" >&2
    tail -n 20 "$log" >&2
    exit 1
  fi
}

# The last one first: nothing is left without what it talks to.
stop_all() {
  local at
  for ((at = ${#started[@]} - 1; at >= 0; at--)); do
    kill "${started[at]}" 2>/dev/null || continue
    wait "${started[at]}" 2>/dev/null || true
  done
  started=()
}
trap stop_all EXIT
trap 'exit 1' INT TERM

# control_plane: what the specs need of a cluster.
control_plane() {
  # One spec waits until a version is compacted away.
  start up '^ready after' "$kube_testbed" up --dir "$dir" --apiserver-flag=--etcd-compaction-interval=30s
  # Without the controller that would notice that the node's lease is not renewed. One spec waits for a quota's resync.
  start controllers 'Caches are synced' "$kube_e2e" controllers \
    --kubeconfig="$dir/admin.kubeconfig" --leader-elect=false --secure-port=0 --profiling=false \
    --root-ca-file="$dir/ca.crt" --service-account-private-key-file="$dir/service-account.key" \
    --controllers='*,-node-lifecycle-controller' --resource-quota-sync-period=20s
  start pods '^ready' "$kube_e2e" pods --kubeconfig="$dir/admin.kubeconfig"
}

# specs KUBECONFIG: every spec, most of them beside others; results in $dir/results.*.
specs() {
  local shard pids=()
  for ((shard = 1; shard <= shards; shard++)); do
    run_shard "$1" "$shard/$shards" "$shard" "$parallel_limit"
    pids+=($!)
  done
  # One of these lets no informer list, not even to check what it has.
  KUBE_WATCHLIST_INCONSISTENCY_DETECTOR=false run_shard "$1" streaming streaming "$parallel_limit"
  pids+=($!)
  wait "${pids[@]}" || true
  run_shard "$1" serial serial "$serial_limit"
  wait $! || true
}

# run_shard KUBECONFIG SHARD NAME LIMIT: in the background. How its specs went is in its results; that it ended badly
# shows in what is missing there.
run_shard() {
  "$kube_e2e" run --kubeconfig="$1" --shard="$2" --limit="$4" --specs="$specs" ${MATCH:+--match="$MATCH"} \
    --kubectl-path="$scratch/kubectl" --e2e-output-dir="$dir" \
    --results="$dir/results.$3" >"$dir/specs.$3.log" 2>&1 &
  started+=($!)
}

direct() {
  dir=$scratch/direct
  mkdir "$dir"
  control_plane
  specs "$dir/admin.kubeconfig"
  stop_all
}

proxied() {
  dir=$scratch/proxy
  mkdir "$dir"
  control_plane
  # As short as the apiserver's compaction above, which is what ends a token there.
  printf 'feeds:\n  heldSnapshotAge: 30s\n' >"$dir/proxy.yaml"
  start proxy '^serving on' env RUST_LOG=info,kube_fanout=debug "$kube_fanout" serve \
    --config="$dir/proxy.yaml" --kubeconfig="$dir/admin.kubeconfig" --listen=127.0.0.1:0 --admin=127.0.0.1:0
  # No credentials: the proxy's own are all there are.
  cat >"$dir/proxy.kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: proxy, cluster: {server: "$(sed -n 's/^serving on //p' "$dir/proxy.log")"}}]
contexts: [{name: proxy, context: {cluster: proxy, user: nobody}}]
users: [{name: nobody, user: {}}]
current-context: proxy
YAML
  specs "$dir/proxy.kubeconfig"
  stop_all
}

if [ -z "${KUBE_FANOUT_BINARY:-}" ]; then
  cargo build --quiet
fi
tests/kube/build.sh
tests/e2e/build.sh

rm -rf "$scratch"
mkdir -p "$scratch"
printf '#!/bin/sh\nexec %q kubectl "$@"\n' "$kube_testbed" >"$scratch/kubectl"
chmod +x "$scratch/kubectl"

# client-go compares what it has with what the server says, and panics when they differ.
export KUBE_WATCHLIST_INCONSISTENCY_DETECTOR=true
export KUBE_LIST_FROM_CACHE_INCONSISTENCY_DETECTOR=true
export KUBE_CACHE_MUTATION_DETECTOR=true

# compare ONE OTHER: the runs of these names.
compare() {
  say "compared"
  "$kube_e2e" compare --direct="$scratch/$1/results.*" --proxy="$scratch/$2/results.*" --least="$least" \
    --markdown="$scratch/specs.md"
}

say "directly"
direct
if [ "${1:-}" = direct ]; then
  compare direct direct
  exit
fi
say "through the proxy"
proxied
compare direct proxy
