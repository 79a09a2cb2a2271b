#!/usr/bin/env bash
# Runs Go as build.sh does, and with the toolchain that it has found or installed. After build.sh.
#
#   go.sh COMMAND...
set -euo pipefail

# There is one if that on PATH is not new enough.
PATH=$(dirname "${BASH_SOURCE[0]}")/../../target/toolchain/go/bin:$PATH
export PATH GOTOOLCHAIN=local GOWORK=off GOFLAGS='' CGO_ENABLED=0
exec go "$@"
