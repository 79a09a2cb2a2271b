//! The API's own fixtures: `testdata` of the module k8s.io/api, one directory per release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::ProtobufJsonTranscoder;
use super::super::go_json::put_compact;
use super::{Tally, report};
use crate::wire::proto_reader::ProtobufDocument;

/// Directories of the testdata with their minors.
const RELEASES: [(&str, u32); 5] = [("v1.33.0", 33), ("v1.34.0", 34), ("v1.35.0", 35), ("v1.36.0", 36), ("HEAD", 37)];

#[test]
fn api_fixtures_render_like_go() {
    let Some(testdata) = testdata() else {
        let why = "no fixtures (go mod download k8s.io/api in tests/kube, or name its testdata in KUBE_API_TESTDATA)";
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{why}");
        return report(&format!("SKIPPED: {why}"));
    };
    for (release, minor) in RELEASES {
        let (mut tally, mut other) = (Tally::default(), 0);
        for file in fixtures(&testdata.join(release)) {
            other += usize::from(!judge(&mut tally, minor, &file));
        }
        report(&format!("fixtures of {release}: {} exact, {other} of kinds that no one lists or watches", tally.exact));
        tally.assert_none_different();
        assert!(tally.exact > 100 && tally.reduced > 100 && tally.refused() == 0, "{release}: {tally:?}");
    }
}

/// Compares the fixture. Returns whether its kind is in the table.
fn judge(tally: &mut Tally, minor: u32, file: &Path) -> bool {
    let (json, document) = (fs::read(file.with_extension("json")).unwrap(), fs::read(file).unwrap());
    let ProtobufDocument { api_version, kind, raw } = ProtobufDocument::split(&document).unwrap();
    let Some(transcoder) = ProtobufJsonTranscoder::for_server(minor, api_version, kind) else { return false };
    let mut compact = Vec::new();
    put_compact(&mut compact, &json).unwrap();
    let mut want = String::from_utf8(compact).unwrap();
    want.drain(..format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","#).len());
    if kind == "StatefulSet" {
        // Fixtures have not passed through the apiserver's conversion.
        want = want.replace(
            r#""volumeClaimTemplates":[{"#,
            r#""volumeClaimTemplates":[{"kind":"PersistentVolumeClaim","apiVersion":"v1","#,
        );
    }
    tally.judge(&file.display().to_string(), transcoder, raw, want.as_bytes());
    true
}

/// Returns protobuf objects. Objects that passed through a later release differ from their own release's output.
fn fixtures(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let wanted = |file: &PathBuf| {
        let name = file.to_string_lossy();
        name.ends_with(".pb") && !name.contains("after_roundtrip")
    };
    files.filter(wanted).collect()
}

/// Returns the testdata of the k8s.io/api module of the test bed, as found by `make test` or in Go's module cache.
fn testdata() -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os("KUBE_API_TESTDATA") {
        return Some(directory.into());
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kube/go.mod");
    let module = fs::read_to_string(module).ok()?;
    let version = module.lines().find_map(|line| line.trim().strip_prefix("k8s.io/api "))?;
    let output = Command::new("go").args(["env", "GOMODCACHE"]).output().ok()?;
    let modules = Path::new(String::from_utf8(output.stdout).ok()?.trim()).join("k8s.io");
    let directory = modules.join(format!("api@{version}/testdata"));
    directory.is_dir().then_some(directory)
}
