//! Comparison with Go on random objects and the API's own fixtures, and tests with arbitrary bytes.

mod fixtures;
mod hostile;
mod metadata;
mod pairs;
mod rules;

use std::io::Write as _;

use bytes::Bytes;
use serde_json::Value;

use crate::wire::without_managed_fields;

/// Prints a message even if the test's output is captured: a skipped test, or a count.
fn report(text: &str) {
    writeln!(std::io::stderr(), "{text}").unwrap();
}

/// Returns the first difference of two texts with its surroundings.
fn difference(got: &[u8], want: &[u8]) -> String {
    let at = got.iter().zip(want).take_while(|(got, want)| got == want).count();
    let around = |text: &[u8]| {
        let from = at.saturating_sub(60).min(text.len());
        String::from_utf8_lossy(&text[from..text.len().min(at + 60)]).into_owned()
    };
    format!("at {at}\n  got  …{}…\n  want …{}…", around(got), around(want))
}

/// Counts of results by kind. Differences fail the test.
#[derive(Default, Debug)]
struct Tally {
    exact: usize,
    /// The number of exact results that have managed fields, and were also compared without them.
    reduced: usize,
    refused: std::collections::BTreeMap<String, usize>,
    different: Vec<String>,
}

impl Tally {
    /// Transcodes `body` and compares.
    fn judge(&mut self, name: &str, transcoder: super::ProtobufJsonTranscoder, body: &[u8], want: &[u8]) {
        let mut got = Vec::new();
        match transcoder.json(body, &mut got) {
            Ok(()) if got == want => {
                self.exact += 1;
                self.judge_reduced(name, transcoder, body, want);
            }
            Ok(()) => self.different.push(format!("{name} {}", difference(&got, want))),
            Err(refused) => *self.refused.entry(format!("{name}: {refused}")).or_default() += 1,
        }
    }

    /// Compares both encodings without their managed fields, and the JSON with that of an independent parser.
    fn judge_reduced(&mut self, name: &str, transcoder: super::ProtobufJsonTranscoder, body: &[u8], want: &[u8]) {
        let parsed = |json: &[u8]| -> Value { serde_json::from_slice(&[b"{", json].concat()).expect(name) };
        let mut value = parsed(want);
        let metadata = value.pointer_mut("/metadata").and_then(Value::as_object_mut);
        if metadata.and_then(|metadata| metadata.remove("managedFields")).is_none() {
            return;
        }
        let (body, want) = (Bytes::copy_from_slice(body), Bytes::copy_from_slice(want));
        let (body, want) = (without_managed_fields(&body), without_managed_fields(&want));
        let mut got = Vec::new();
        transcoder.json(&body, &mut got).expect(name);
        assert_eq!(parsed(&want), value, "{name}");
        assert!(got == **want, "{name} {}", difference(&got, &want));
        self.reduced += 1;
    }

    fn refused(&self) -> usize {
        self.refused.values().sum()
    }

    fn assert_none_different(&self) {
        let first: Vec<_> = self.different.iter().take(5).map(String::as_str).collect();
        assert!(self.different.is_empty(), "{} differ:\n{}", self.different.len(), first.join("\n"));
    }
}
