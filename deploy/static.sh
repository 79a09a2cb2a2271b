# Sourced by image.sh and release.sh: how a static binary is built, and that the same sources make the same files.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
revision=$(git -C "$top" rev-parse HEAD 2>/dev/null || echo unknown)
# The time of everything that is written is that of the commit.
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct 2>/dev/null || echo 0)}

# static_path TARGET: where static_build puts the binary.
static_path() { printf '%s' "${CARGO_TARGET_DIR:-$top/target}/$1/release/kube-fanout"; }

# static_build TARGET [FLAG]...: builds a static binary, with cargo's flags.
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
