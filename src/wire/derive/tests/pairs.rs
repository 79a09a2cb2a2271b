use std::fs;

use super::super::ProtobufJsonTranscoder;
use super::{Tally, report};

/// A few small objects of every kind and minor (`tests/facts/generate.sh corpus`).
const CORPUS: &[u8] = include_bytes!("pairs.txt");

/// Tests the corpus, and the files named in `KUBE_FACTS_PAIRS`, written by `tests/facts/generate.sh pairs`.
#[test]
fn random_objects_render_like_go() {
    let tally = judge(CORPUS);
    assert!(tally.exact > 250 && tally.reduced > 0, "{tally:?}");
    assert!(tally.refused.keys().all(|refused| refused.contains("an empty list cannot be told apart")), "{tally:#?}");
    let files = std::env::var("KUBE_FACTS_PAIRS").unwrap_or_default();
    for file in files.split(':').filter(|file| !file.is_empty()) {
        let tally = judge(&fs::read(file).unwrap());
        report(&format!("{file}: {} exact, {} refused: {:#?}", tally.exact, tally.refused(), tally.refused));
    }
}

/// Compares lines of minor, apiVersion, kind, body in hexadecimal, JSON body.
fn judge(lines: &[u8]) -> Tally {
    let mut tally = Tally::default();
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let mut columns = line.splitn(5, |byte| *byte == b'\t');
        let mut text = || std::str::from_utf8(columns.next().unwrap()).unwrap();
        let (minor, api_version, kind, body) = (text(), text(), text(), unhex(text()));
        let transcoder = ProtobufJsonTranscoder::for_server(minor.parse().unwrap(), api_version, kind).expect(kind);
        tally.judge(&format!("{minor} {api_version} {kind}"), transcoder, &body, columns.next().unwrap());
    }
    tally.assert_none_different();
    tally
}

pub(super) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}
