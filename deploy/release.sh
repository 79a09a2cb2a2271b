#!/usr/bin/env bash
# The files of a release, in target/dist:
#
#   kube-fanout-VERSION-TARGET.tar.gz  for each target: the static binaries kube-fanout and fanoutctl, the manual,
#                                      completions, licences, config/ and what deploy/ installs
#   kube-fanout-VERSION-TARGET.cdx.json  what the binaries are made of (CycloneDX)
#   kube-fanout_VERSION_ARCH.deb, kube-fanout-VERSION-1.ARCH.rpm
#   kube-fanout-VERSION.image.tar      the image for all targets, as an OCI archive
#   kube-fanout-VERSION.tgz            the Helm chart
#   kube-fanout-VERSION.krew.yaml, .notes, .intoto.json  see release_documents.py
#   SHA256SUMS, SHA256SUMS.minisig     sums of all others, and their signature
#
# The same sources make the same bytes, if the compilers are the same.
#
#   deploy/release.sh
#
#   KEY      a secret key of minisign, which signs SHA256SUMS; without one there is no signature
#   TARGETS  Rust's targets [x86_64 and aarch64 with musl]. For each rustup's target, and for the parts in C musl-gcc
#            (Debian's musl-tools), or for another architecture than this machine's ARCH-linux-musl-gcc (Debian's
#            gcc-ARCH-linux-gnu, and musl-dev of that architecture)
#   BUILD    no: takes the binaries that the last run has built
#   DIST     where it is written [target/dist]
#
# What cannot be built here is named, last of all. It is no failure where another one could be built, unless TARGETS or
# CI is set.
set -euo pipefail
# shellcheck source=deploy/static.sh
source "$(dirname "${BASH_SOURCE[0]}")/static.sh"
cd "$top"

dist=${DIST:-$top/target/dist}
# The image lists them in this order, whatever the order of TARGETS.
mapfile -t targets < <(tr -s ' ' '\n' <<< "${TARGETS:-x86_64-unknown-linux-musl aarch64-unknown-linux-musl}" | sort)
tools=$top/target/tools/bin
export PATH=$tools:$PATH SOURCE_DATE_EPOCH=$epoch

fail() {
  printf 'deploy/release.sh: %s\n' "$*" >&2
  exit 1
}

# build TARGET: cc links for this machine's own architecture, as for the image; for another one its C compiler does.
build() {
  local name=${1//-/_}
  [ "$1" = "$(own)" ] || export "CARGO_TARGET_${name^^}_LINKER=$(compiler "$1")"
  static_build "$1"
}

# made_of TARGET FILE: writes what is linked, crate by crate, in CycloneDX. fanoutctl links all that the daemon does.
made_of() {
  # It writes beside the Cargo.toml of each package, and nowhere else.
  cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$1" --no-build-deps \
    --override-filename "${beside%.json}"
  # A crate that is not from a registry is named by its folder, which is not the same everywhere.
  sed -e "s|path+file://$top|path+file:///kube-fanout|g" -e 's|?download_url=file://\.||g' "crates/fanoutctl/$beside" > "$2"
  rm -f "$beside" crates/*/"$beside"
}

programs=(kube-fanout fanoutctl)
# The folders of deploy/ that people install from.
installed=(systemd monitoring kustomize manifests static-pod.yaml)

# manual_and_completions TARGET FOLDER
manual_and_completions() {
  local name binary
  mkdir -p "$2/completions"
  for name in "${programs[@]}"; do
    binary=$(static_path "$1" "$name")
    "$binary" man "$2/man/man1"
    "$binary" completions bash > "$2/completions/$name.bash"
    "$binary" completions zsh > "$2/completions/_$name"
    "$binary" completions fish > "$2/completions/$name.fish"
  done
}

# pack TARGET: writes the archive and what it is made of.
pack() {
  local name=kube-fanout-$version-$1 program binary
  mkdir -p "$work/$name"
  for program in "${programs[@]}"; do
    binary=$(static_path "$1" "$program")
    [ -x "$binary" ] || fail "$binary is not there"
    is_static "$binary" || fail "$binary is not static"
    install -m 755 "$binary" "$work/$name/$program"
  done
  cp LICENSE README.md CHANGELOG.md "$work/$name/"
  mkdir "$work/$name/deploy"
  cp -r config "$work/$name/"
  cp -r "${installed[@]/#/deploy/}" "$work/$name/deploy/"
  deploy/licences.py "$1" > "$work/$name/LICENSES-OF-DEPENDENCIES.txt"
  cp -r "$work/pages/." "$work/$name/"
  made_of "$1" "$dist/$name.cdx.json"
  archive "$work" "$name" | gzip --no-name --best > "$dist/$name.tar.gz"
  packages "$1" "$work/$name"
}

# packages TARGET TREE: writes the .deb and the .rpm of an unpacked archive.
packages() {
  local format
  sed -e "s|@ARCH@|$(debian_name "$1")|; s|@VERSION@|$version|; s|@TREE@|$2|" deploy/packages.yaml > "$work/packages.yaml"
  # Packages install to /usr, and the units in the repository are for /usr/local.
  mkdir "$2/systemd"
  sed 's|/usr/local/bin/|/usr/bin/|' deploy/systemd/kube-fanout.service > "$2/systemd/kube-fanout.service"
  for format in deb rpm; do nfpm package --config "$work/packages.yaml" --packager "$format" --target "$dist" >/dev/null; done
}

# chart: the chart as Helm packages it, but for the times of its files.
chart() { archive "$work" kube-fanout | gzip --no-name --best > "$dist/kube-fanout-$version.tgz"; }

# sums: sums of all files, and their signature.
sums() {
  (cd "$dist" && sha256sum -- * > SHA256SUMS)
  [ -z "${KEY:-}" ] || minisign -S -s "$KEY" -m "$dist/SHA256SUMS" -t "kube-fanout $version, $revision"
}

cargo cyclonedx --version >/dev/null 2>&1 || fail "cargo-cyclonedx is not installed (make release-tools)"
nfpm --version >/dev/null 2>&1 || fail "nfpm is not installed (make release-tools)"
[ -z "${KEY:-}" ] || command -v minisign >/dev/null || fail "minisign is not installed (Debian: minisign), and KEY is set"
work=$(mktemp -d)
beside=.kube-fanout-sbom.json
trap 'rm -rf "$work" "$top/$beside" "$top"/crates/*/"$beside"' EXIT

built=() missing=()
for target in "${targets[@]}"; do
  if [ "${BUILD:-yes}" = no ]; then
    if [ -x "$(static_path "$target" fanoutctl)" ]; then built+=("$target"); else missing+=("$target: no run has built it"); fi
  elif why=$(lacks "$target"); then
    missing+=("$target: $why")
  else
    build "$target"
    built+=("$target")
  fi
done

if [ ${#built[@]} != 0 ]; then
  rm -rf "$dist"
  mkdir -p "$dist"
  # They are the same for every target, so one that runs here prints them.
  runs=
  for target in "${built[@]}"; do
    if [ -z "$runs" ] && "$(static_path "$target" kube-fanout)" --version >/dev/null 2>&1; then runs=$target; fi
  done
  [ -n "$runs" ] || fail "none of ${built[*]} runs here, to print the manual"
  manual_and_completions "$runs" "$work/pages"
  for target in "${built[@]}"; do pack "$target"; done
  TARGETS=${built[*]} BUILD=no TAG=$version OUT=$work/image deploy/image.sh >/dev/null
  archive "$work/image" . > "$dist/kube-fanout-$version.image.tar"
  cp -r deploy/chart "$work/kube-fanout"
  chart
  deploy/release_documents.py "$dist" "$version" "$revision" "$epoch"
  sums
  printf 'target/dist: kube-fanout %s, of commit %s\n' "$version" "$revision"
  (cd "$dist" && stat --format '  %n, %s bytes' -- *)
fi
for line in "${missing[@]}"; do printf 'NOT BUILT: %s\n' "$line"; done
[ ${#built[@]} != 0 ] || fail "nothing could be built"
[ ${#missing[@]} = 0 ] || [ -z "${TARGETS:-}${CI:-}" ]
