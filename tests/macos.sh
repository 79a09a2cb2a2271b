#!/usr/bin/env bash
# Does the crate compile for macOS? Arguments go to `cargo check`.
#
# Types and borrows are checked, nothing is linked or run. So what build scripts want of a C compiler and of Apple's SDK
# may be empty files. Rust's own library for macOS comes by rustup; where it cannot be had, tests/tidy/systems.rs is
# what there is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=aarch64-apple-darwin
tools=$PWD/target/macos-tools

if ! command -v rustup >/dev/null || ! timeout 300 rustup --quiet target add "$target" 2>/dev/null; then
  echo "SKIPPED: rustup has no $target here"
  exit 0
fi

mkdir -p "$tools"
# A compiler and an archiver that only create an empty output file.
cat >"$tools/cc" <<'EOF'
#!/usr/bin/env bash
while [ $# -gt 0 ]; do
  [ "$1" != -o ] || : >"$2"
  shift
done
EOF
cat >"$tools/ar" <<'EOF'
#!/usr/bin/env bash
for argument in "$@"; do
  case $argument in *.a) : >"$argument" ;; esac
done
EOF
chmod +x "$tools/cc" "$tools/ar"

export SDKROOT=$tools CC_aarch64_apple_darwin=$tools/cc AR_aarch64_apple_darwin=$tools/ar
"${CARGO:-cargo}" check --target "$target" --lib --bins "$@"
