#!/usr/bin/env bash
# Makes src/wire/derive/facts/facts.json: builds this program once per minor, against that minor's published modules, and
# merges what they say. Needs Go and, for modules that are not cached, the module proxy.
#
#   generate.sh                           the table
#   generate.sh pairs MINOR COUNT SEED    random objects of one minor, on stdout (see main.go)
#   generate.sh check [COUNT [SEED]]      so many random objects of every kind and minor, put to the transcoder
#   generate.sh corpus                    src/wire/derive/tests/pairs.txt: a few small ones of every minor
set -euo pipefail

# The last patch release of every minor, oldest first and without gaps.
versions=(v0.33.13 v0.34.13 v0.35.10 v0.36.6 v0.37.2)

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo_dir=$(cd "$source_dir/../.." && pwd)
build_dir=${KUBE_FACTS_BUILD:-$repo_dir/target/facts}
out=$repo_dir/src/wire/derive/facts/facts.json

export GOTOOLCHAIN=local GOWORK=off GOFLAGS='' CGO_ENABLED=0

minor_of() { cut -d . -f 2 <<<"$1"; }

# build VERSION: the program against that version of the modules, in $build_dir/MINOR.
build() {
  local version=$1 dir module
  dir=$build_dir/$(minor_of "$version")
  mkdir -p "$dir"
  cp "$source_dir"/*.go "$source_dir/go.mod" "$dir/"
  (
    cd "$dir"
    for module in api apimachinery apiextensions-apiserver client-go kube-aggregator; do
      go mod edit -require="k8s.io/$module@$version"
    done
    go mod tidy >&2
    go build -p 2 -trimpath -o kube-facts .
  )
}

# pairs MINOR COUNT SEED
pairs() {
  local version
  for version in "${versions[@]}"; do
    if [ "$(minor_of "$version")" = "$1" ]; then
      build "$version"
      "$build_dir/$1/kube-facts" pairs "$@"
      return
    fi
  done
  echo "facts: no minor $1; there are: ${versions[*]}" >&2
  exit 1
}

# corpus MINOR LENGTH: of each kind that is no list, the longest of some lines up to LENGTH.
corpus() {
  pairs "$1" 40 "$1" | LC_ALL=C awk -F '\t' -v max="$2" '
    $3 !~ /List$/ && length($0) <= max && length($0) > longest[$2 $3] { longest[$2 $3] = length($0); line[$2 $3] = $0 }
    END { for (kind in line) print line[kind] }' | LC_ALL=C sort
}

case "${1:-}" in
  pairs)
    pairs "${@:2}"
    exit
    ;;
  corpus)
    # All kinds of the newest, and what older ones have of the shortest.
    for version in "${versions[@]:0:${#versions[@]}-1}"; do corpus "$(minor_of "$version")" 400; done >"$build_dir/pairs.txt"
    corpus "$(minor_of "${versions[-1]}")" 1600 >>"$build_dir/pairs.txt"
    mv "$build_dir/pairs.txt" "$repo_dir/src/wire/derive/tests/pairs.txt"
    exit
    ;;
  check)
    # What Go's encoders make of random objects, in both forms, is what ours must make of them, or refuse.
    mkdir -p "$build_dir"
    files=()
    count=${2:-100} seed=${3:-$RANDOM}
    echo "facts: drawn with seed $seed; the same again: make transcoder COUNT=$count SEED=$seed" >&2
    for version in "${versions[@]}"; do
      minor=$(minor_of "$version")
      echo "facts: random objects of 1.$minor" >&2
      pairs "$minor" "$count" "$seed" >"$build_dir/random-$minor.txt"
      files+=("$build_dir/random-$minor.txt")
    done
    cd "$repo_dir"
    KUBE_FACTS_PAIRS=$(IFS=:; echo "${files[*]}") cargo test --lib derive -- --nocapture
    exit
    ;;
  '') ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac

files=()
for version in "${versions[@]}"; do
  minor=$(minor_of "$version")
  echo "facts: $version" >&2
  build "$version"
  "$build_dir/$minor/kube-facts" facts >"$build_dir/$minor.txt"
  files+=("$minor=$build_dir/$minor.txt")
done
mkdir -p "$(dirname "$out")"
"$build_dir/$minor/kube-facts" merge "${files[@]}" >"$out.new"
mv "$out.new" "$out"
wc "$out" >&2
