#!/usr/bin/env bash
# Renders deploy/chart into the bases and components of deploy/kustomize: the chart is where they are changed, and
# config/ where the configurations are. With `check` as argument nothing is written, and what differs is an error.
#
#   HELM   Helm, version 4 [helm]
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
helm=${HELM:-helm}

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# Helm reads and writes nothing of its user's.
export HELM_CACHE_HOME=$made/cache HELM_CONFIG_HOME=$made/config HELM_DATA_HOME=$made/data
out=$made/kustomize

# Leaves out what says which template a document is of, and empty lines at a document's end.
tidied() {
  awk '/^# Source: / { next }
    /^$/ { empty = empty "\n"; next }
    /^---$/ { empty = ""; if (!begun) next }
    { printf "%s%s\n", empty, $0; empty = ""; begun = 1 }'
}

# render TEMPLATE FILE VALUE...: one template. Kustomize puts the hash of the configuration into a name, so that pods
# need none.
render() {
  local template=$1 file=$out/$2
  shift 2
  mkdir -p "$(dirname "$file")"
  "$helm" template kube-fanout "$made/chart" --namespace kube-fanout --set rollOnChange=false "${@/#/--set=}" \
    --show-only "templates/$template.yaml" | tidied > "$file"
}

cp -r "$top/deploy/chart" "$made/chart"
for form in central zone node; do
  # A chart cannot name files outside of it.
  cp "$top/config/$form.yaml" "$made/chart/files/"
  parts=(rbac deployment service disruption network)
  [ "$form" != node ] || parts=(rbac daemonset service network)
  for part in "${parts[@]}"; do render "$part" "$form/$part.yaml" "form=$form"; done
  cp "$top/config/$form.yaml" "$out/$form/config.yaml"
done
render impersonator components/certificate-holders/impersonator.yaml certificateHolders.enabled=true
render metrics components/service-monitor/metrics.yaml serviceMonitor.enabled=true
render scrape components/metrics-auth/scrape.yaml metrics.auth=delegated
render use components/use/use.yaml use.enabled=true

if [ "${1:-}" = check ]; then
  status=0
  diff -r "$top/deploy/chart/files" "$made/chart/files" || status=1
  # What is not rendered, kustomizations and patches, is nobody's but Kustomize's.
  while IFS= read -r file; do
    diff -u "$top/deploy/kustomize/$file" "$out/$file" || status=1
  done < <(cd "$out" && find . -type f | sort)
  [ "$status" = 0 ] || echo 'deploy/kustomize differs from deploy/chart and config/: run `make manifests`' >&2
  exit "$status"
fi
cp "$made"/chart/files/*.yaml "$top/deploy/chart/files/"
cp -r "$out/." "$top/deploy/kustomize/"
