#!/usr/bin/env bash
# Builds target/testbed/kube-e2e, as tests/kube/build.sh does the test bed: same flags,
# same exit codes. A cold build adds some 1,000 packages to those of the test bed.
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo_dir=$(cd "$source_dir/../.." && pwd)

exec "$source_dir/../kube/build.sh" "$source_dir" "$repo_dir/target/testbed/kube-e2e"
