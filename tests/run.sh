#!/usr/bin/env bash
# Every test. Arguments go to `cargo test`.
#
# Some need more than Rust: a control plane (target/testbed/kube-testbed, built by tests/kube/build.sh with Go), the
# Python client (target/venv, by pip), the JavaScript client (target/node, by npm), and curl, jq and openssl. What cannot
# be had is skipped with a warning; with CI set it is an error. The last lines say how many seconds each stage took.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing=()
stage='' since=0 spent=()

# begin STAGE: ends the one before it, and notes its seconds.
begin() {
  [ -z "$stage" ] || spent+=("$(printf '%6d s  %s' $((SECONDS - since)) "$stage")")
  stage=$1 since=$SECONDS
  [ -z "$stage" ] || printf '\n==> %s\n' "$stage"
}

# However it ends, also in the middle of a stage.
report() {
  begin ''
  printf '\n==> seconds of each stage\n'
  printf '%s\n' "${spent[@]}" "$(printf '%6d s  in all' "$SECONDS")"
}
trap report EXIT

# as_root PACKAGE: installs a package of the distribution, if that is possible here.
as_root() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  printf 'installing %s\n' "$1"
  apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y "$1" >/dev/null
}

# The Python client, in a virtual environment of the checkout; nothing to do when the requirements have not changed.
python_client() {
  local requirements=tests/python/requirements.txt stamp=target/venv/requirements.txt
  cmp -s "$requirements" "$stamp" && return
  command -v python3 >/dev/null || as_root python3 || return 1
  python3 -m venv target/venv >/dev/null 2>&1 || { as_root python3-venv && python3 -m venv target/venv; } || return 1
  target/venv/bin/pip install --quiet --disable-pip-version-check -r "$requirements" || return 1
  cp "$requirements" "$stamp"
}

# The JavaScript client, likewise.
javascript_client() {
  local wanted=tests/node/package.json installed=target/node/package.json
  cmp -s "$wanted" "$installed" && return
  command -v node >/dev/null || as_root nodejs || return 1
  command -v npm >/dev/null || as_root npm || return 1
  rm -rf target/node
  mkdir -p target/node.new
  cp "$wanted" target/node.new/
  npm install --prefix target/node.new --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error ||
    return 1
  mv target/node.new target/node
}

# Java clients, where there is a JDK with Maven; the JDK's own HTTP client is tested beside them.
java_clients() {
  local wanted=tests/java/pom.xml installed=target/java/pom.xml
  cmp -s "$wanted" "$installed" && return
  command -v java >/dev/null && command -v mvn >/dev/null || return 0
  rm -rf target/java target/java.new
  local copy=(mvn -q -f "$wanted" dependency:copy-dependencies -DoutputDirectory="$PWD/target/java.new")
  # Some 90 files: the second try downloads what the first one could not.
  "${copy[@]}" || "${copy[@]}" || return 1
  cp "$wanted" target/java.new/
  mv target/java.new target/java
}

# The fixtures of the API's module: where they are, downloaded if they are not there yet.
api_fixtures() (
  cd tests/kube
  ./go.sh mod download k8s.io/api && ./go.sh list -m -f '{{.Dir}}/testdata' k8s.io/api
)

# tests_in FOLDER: the names of its tests.
tests_in() {
  grep -rhA2 -E '#\[(tokio::)?test' "$1" 2>/dev/null | grep -oE 'fn [a-z0-9_]+' | sed 's/^fn /  /' || true
}

begin "programs that documents name"
for program in curl jq openssl; do
  command -v "$program" >/dev/null || as_root "$program" ||
    missing+=("no $program: some of the tests in install.rs, which skip themselves")
done

begin "Python client"
python_client || missing+=("no Python with pip: the tests of the Python client")

begin "JavaScript client"
javascript_client || missing+=("no Node.js with npm: the test of the JavaScript client")

begin "Java clients"
java_clients || missing+=("no clients from Maven: the Java clients of the test of compressed watches")

begin "h2spec"
status=0
tests/kube/build.sh tests/h2spec target/testbed/h2spec || status=$?
case $status in
  0) ;;
  3) missing+=("no Go toolchain, so no h2spec: the test of it in tests/direct/http2") ;;
  *) exit "$status" ;;
esac

begin "control plane"
status=0 failed=0
tests/kube/build.sh || status=$?
case $status in
  0)
    begin "tests in Go"
    tests/kube/test.sh || failed=$?
    if fixtures=$(api_fixtures); then
      export KUBE_API_TESTDATA=$fixtures
    else
      missing+=("no module k8s.io/api: the test of its fixtures")
    fi
    ;;
  3) missing+=("no Go toolchain, so no control plane: the tests in tests/conformance") ;;
  *) exit "$status" ;;
esac

warn() {
  if [ ${#missing[@]} = 0 ]; then return; fi
  printf '\n'
  printf '!!! SKIPPED: %s\n' "${missing[@]}"
  tests_in tests/conformance
  printf '!!! The rest ran; this was not a complete test.\n'
}

if [ ${#missing[@]} != 0 ] && [ -n "${CI:-}" ]; then
  printf '!!! CI is set, and this is missing: %s\n' "${missing[@]}" >&2
  exit 1
fi

# What stands before `--`: the rest is for the tests themselves.
builds=()
for argument in "$@"; do
  [ "$argument" != -- ] || break
  builds+=("$argument")
done

begin "building the tests"
cargo test --no-run "${builds[@]}"

# Tests wait for most of their time, for servers that start and clocks that go round.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
begin "running the tests"
log=target/tests.log
cargo test --no-fail-fast "$@" 2>&1 | tee "$log" || { begin "a second chance" && tests/second_chance.py "$log"; } ||
  failed=1
warn
exit "$failed"
