#!/usr/bin/env bash
# The tests of what is written in Go: the driver, by which the conformance tests judge, and the comparison of e2e runs.
# After build.sh, with its toolchain and flags, so that nothing is compiled that it has compiled: seconds then, and
# minutes when Go's build cache has been emptied meanwhile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

go=$PWD/tests/kube/go.sh
# Without vet, which would read two thousand packages for it.
flags=(-p 2 -vet=off -mod=readonly -trimpath -buildvcs=false)

unformatted=$("$("$go" env GOROOT)/bin/gofmt" -l tests)
if [ -n "$unformatted" ]; then
  printf 'not formatted (gofmt -w):\n%s\n' "$unformatted"
  exit 1
fi
(cd tests/e2e && "$go" test "${flags[@]}" ./compared)
(cd tests/kube && "$go" test "${flags[@]}" -tags=selinux,notest,grpcnotrace .)
