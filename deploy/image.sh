#!/usr/bin/env bash
# The image, as an OCI layout in target/image: one static binary and the certificates of public authorities. No shell,
# no libraries, not root; the daemon alone, without fanoutctl. It is written by tar and sha256sum:
# no daemon is needed, and nothing is fetched but the crates of Cargo.lock.
#
#   deploy/image.sh
#   skopeo copy --all oci:target/image:latest docker://registry.example/kube-fanout:latest
#
#   TARGETS  Rust's targets [this machine's with musl]: rustup's target, and musl-gcc for the parts in C (Debian's
#            musl-tools). With x86_64-unknown-linux-gnu, glibc is linked statically. Of several, the image is an index
#   TAG      the name of the image in the layout [latest]
#   BUILD    no: takes the binaries that the last run has built
#   OUT      where it is written [target/image]
#   CA_BUNDLE  authorities in PEM [those of this machine's distribution, Debian's package ca-certificates: Mozilla's]
set -euo pipefail
# shellcheck source=deploy/static.sh
source "$(dirname "${BASH_SOURCE[0]}")/static.sh"

read -r -a targets <<< "${TARGETS:-$(own)}"
tag=${TAG:-latest}
out=${OUT:-$top/target/image}

fail() {
  printf 'deploy/image.sh: %s\n' "$*" >&2
  exit 1
}

ca_bundle=${CA_BUNDLE:-}
for file in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
  [ -n "$ca_bundle" ] || [ ! -s "$file" ] || ca_bundle=$file
done
[ -s "$ca_bundle" ] || fail "no authorities in PEM: install ca-certificates, or name a file as CA_BUNDLE"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# layer NAME: a layer of the folder $work/NAME; prints the digests of what is compressed and of what is not.
layer() {
  archive "$work/$1" . > "$work/$1.tar"
  gzip --no-name --best < "$work/$1.tar" > "$work/$1.tar.gz"
  printf '%s %s\n' "$(blob "$work/$1.tar.gz")" "$(sha256sum < "$work/$1.tar" | cut -d ' ' -f 1)"
}

# blob FILE: puts it into the layout and prints its digest.
blob() {
  local digest
  digest=$(sha256sum < "$1" | cut -d ' ' -f 1)
  cp "$1" "$out/blobs/sha256/$digest"
  printf '%s' "$digest"
}

size() { stat --format %s "$1"; }

rm -rf "$out"
mkdir -p "$out/blobs/sha256"

# What changes rarely comes first: a new version is one new layer.
mkdir -p "$work/system/etc/ssl/certs" "$work/program/usr/local/bin"
cp "$ca_bundle" "$work/system/etc/ssl/certs/ca-certificates.crt"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' > "$work/system/etc/passwd"
echo 'nonroot:x:65532:' > "$work/system/etc/group"
echo 'hosts: files dns' > "$work/system/etc/nsswitch.conf"

read -r system system_plain < <(layer system)
created=$(date --utc --date "@$epoch" +%Y-%m-%dT%H:%M:%SZ)

# image TARGET: writes the image of a target, and prints its descriptor.
image() {
  local architecture binary program program_plain config gzipped=application/vnd.oci.image.layer.v1.tar+gzip
  architecture=$(debian_name "$1")
  binary=$(static_path "$1" kube-fanout)
  is_static "$binary" || fail "$binary is not static: a dynamic linker is not in the image"
  install -m 755 "$binary" "$work/program/usr/local/bin/kube-fanout"
  read -r program program_plain < <(layer program)
  cat > "$work/config.json" <<JSON
{
  "created": "$created",
  "architecture": "$architecture",
  "os": "linux",
  "config": {
    "User": "65532:65532",
    "Env": ["PATH=/usr/local/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
    "Entrypoint": ["/usr/local/bin/kube-fanout"],
    "Cmd": ["serve"],
    "WorkingDir": "/",
    "Labels": {
      "org.opencontainers.image.title": "kube-fanout",
      "org.opencontainers.image.description": "One upstream Kubernetes watch, thousands of unmodified clients",
      "org.opencontainers.image.source": "https://github.com/kube-fanout/kube-fanout",
      "org.opencontainers.image.licenses": "Apache-2.0",
      "org.opencontainers.image.version": "$version",
      "org.opencontainers.image.revision": "$revision",
      "org.opencontainers.image.created": "$created"
    }
  },
  "rootfs": {"type": "layers", "diff_ids": ["sha256:$system_plain", "sha256:$program_plain"]},
  "history": [
    {"created": "$created", "created_by": "deploy/image.sh: authorities and names"},
    {"created": "$created", "created_by": "deploy/image.sh: kube-fanout $version"}
  ]
}
JSON
  config=$(blob "$work/config.json")

  cat > "$work/manifest.json" <<JSON
{
  "schemaVersion": 2,
  "mediaType": "application/vnd.oci.image.manifest.v1+json",
  "config": {
    "mediaType": "application/vnd.oci.image.config.v1+json",
    "digest": "sha256:$config",
    "size": $(size "$work/config.json")
  },
  "layers": [
    {"mediaType": "$gzipped", "digest": "sha256:$system", "size": $(size "$work/system.tar.gz")},
    {"mediaType": "$gzipped", "digest": "sha256:$program", "size": $(size "$work/program.tar.gz")}
  ]
}
JSON
  descriptor application/vnd.oci.image.manifest.v1+json "$work/manifest.json" \
    "\"platform\": {\"architecture\": \"$architecture\", \"os\": \"linux\"}"
}

# descriptor TYPE FILE MEMBER: describes a blob, with one member more.
descriptor() {
  printf '{"mediaType": "%s", "digest": "sha256:%s", "size": %s, %s}\n' "$1" "$(blob "$2")" "$(size "$2")" "$3"
}

# index DESCRIPTOR...
index() {
  local IFS=,
  printf '{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [%s]}\n' "$*"
}

for target in "${targets[@]}"; do
  case $target in
    x86_64-*-linux-* | aarch64-*-linux-*) ;;
    *) fail "$target: the image is for Linux, x86_64 or aarch64" ;;
  esac
  if [ "${BUILD:-yes}" != no ]; then
    ! why=$(lacks "$target") || fail "$target cannot be built: $why"
    static_build "$target" --package kube-fanout
  fi
done

images=()
for target in "${targets[@]}"; do
  described=$(image "$target")
  images+=("$described")
done
named="\"annotations\": {\"org.opencontainers.image.ref.name\": \"$tag\"}"
if [ ${#images[@]} = 1 ]; then
  index "${images[0]%\}}, $named}" > "$out/index.json"
else
  index "${images[@]}" > "$work/index.json"
  index "$(descriptor application/vnd.oci.image.index.v1+json "$work/index.json" "$named")" > "$out/index.json"
fi
echo '{"imageLayoutVersion": "1.0.0"}' > "$out/oci-layout"
printf '%s: kube-fanout:%s for %s, %s KiB\n' "${out#"$top/"}" "$tag" "${targets[*]}" "$(du -sk "$out" | cut -f 1)"
