# Sourced by image.sh and release.sh: what a static binary needs, how it is built, and that the same sources make the
# same files.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
revision=$(git -C "$top" rev-parse HEAD 2>/dev/null || echo unknown)
# The time of everything that is written is that of the commit.
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || echo 0)}

# own: this machine's own target for static binaries.
own() { printf '%s-unknown-linux-musl' "$(uname -m)"; }

# compiler TARGET: the C compiler that build scripts look for by themselves.
compiler() {
  case $1 in
    "$(rustc -vV | sed -n 's/^host: //p')") printf cc ;;
    "$(own)") printf musl-gcc ;;
    *) printf '%s-linux-musl-gcc' "${1%%-*}" ;;
  esac
}

# has_library TARGET: whether this machine's Rust can build for it.
has_library() {
  local library
  library=$(rustc --print target-libdir --target "$1" 2>/dev/null) && [ -d "$library" ]
}

# lacks TARGET: says what a build for it needs and this machine does not have; false where it has all, or gets it from
# rustup.
lacks() {
  local compiler
  compiler=$(compiler "$1")
  if ! has_library "$1" && ! command -v rustup >/dev/null; then
    printf 'there is no rustup to get the target with'
  elif ! has_library "$1" && ! rustup --quiet target add "$1" >/dev/null 2>&1; then
    printf 'rustup has no target %s' "$1"
  elif ! command -v "$compiler" >/dev/null; then
    printf 'there is no %s (Debian: ' "$compiler"
    if [ "$1" = "$(own)" ]; then printf 'apt-get install musl-tools)'; else
      printf 'dpkg --add-architecture %s, and apt-get install musl-dev:%s gcc-%s-linux-gnu)' \
        "$(debian_name "$1")" "$(debian_name "$1")" "${1%%-*}"
    fi
  elif ! "$compiler" -E -x c /dev/null >/dev/null 2>&1; then
    printf '%s does not run: it needs gcc-%s-linux-gnu' "$compiler" "${1%%-*}"
  else
    return 1
  fi
}

# debian_name TARGET: what Debian calls its architecture.
debian_name() { case $1 in x86_64-*) echo amd64 ;; aarch64-*) echo arm64 ;; *) echo "${1%%-*}" ;; esac; }

# static_path TARGET NAME: where static_build puts a binary.
static_path() { printf '%s' "${CARGO_TARGET_DIR:-$top/target}/$1/release/$2"; }

# static_build TARGET [FLAG]...: builds static binaries, with cargo's flags.
static_build() {
  # From elsewhere, so that .cargo/config.toml of the checkout is not read: here everything is optimized. Names of
  # functions stay in the binary, for backtraces; the folders of this machine do not.
  (
    cd /
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$top/target} CARGO_PROFILE_RELEASE_STRIP=debuginfo
    export KUBE_FANOUT_REVISION=$revision
    RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=$top=/kube-fanout"
    export RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
    cargo build --manifest-path "$top/Cargo.toml" --release --locked --target "$@"
  )
}

# is_static BINARY: an interpreter in the program's head would be a dynamic linker.
is_static() {
  local headers
  headers=$(readelf --program-headers "$1") && [[ $headers != *INTERP* ]]
}

# archive FOLDER MEMBER: a tar of a part of a folder, to the standard output; the same files make the same bytes.
archive() {
  tar --create --directory "$1" --format gnu --sort name --mtime "@$epoch" --owner 0 --group 0 --numeric-owner \
    --mode u=rwX,go=rX "$2"
}
