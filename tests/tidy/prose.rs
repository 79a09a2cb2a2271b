//! Doc comments begin with what the item is or does. This finds unclear beginnings.

use crate::assert_none;
use crate::files::{self, File};

/// First words of a sentence without a subject, or with one after a preposition.
const RIDDLES: [&str; 9] =
    ["Of ", "Whom ", "Behind ", "Likewise", "From now on", "From here on", "So many ", "So much ", "So long "];

/// Lines on which a doc comment begins with one of these.
fn riddles(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    let mut before = None;
    for (at, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        let marker = ["///", "//!"].into_iter().find(|marker| line.starts_with(marker));
        let is_first = marker.is_some() && marker != before;
        before = marker;
        let Some(text) = marker.filter(|_| is_first).map(|marker| line[marker.len()..].trim_start()) else { continue };
        if RIDDLES.iter().any(|riddle| text.starts_with(riddle)) {
            found.push(format!("{}:{}: {text}", file.name, at + 1));
        }
    }
    found
}

#[test]
fn doc_comments_have_no_forbidden_opening() {
    let files = files::rust();
    let violations: Vec<_> = files.iter().flat_map(riddles).collect();
    assert_none("begin with what the thing is or does (CONTRIBUTING.md, \"Rules\")", &violations);
}

#[test]
fn doc_comment_with_forbidden_opening_is_reported() {
    let text = [
        "//! Of a module.",
        "",
        "/// The size of it.",
        "/// Of nothing else.",
        "const A: u8 = 0;",
        "    /// So many of them.",
        "// Of no doc.",
    ];
    let file = File { name: "src/a.rs".into(), text: text.join("\n") };
    assert_eq!(riddles(&file), ["src/a.rs:1: Of a module.", "src/a.rs:6: So many of them."]);
}
