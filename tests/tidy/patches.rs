//! The patches of `tests/mutants`, each of which restores a known bug, apply to the current code.

use std::collections::BTreeSet;
use std::fs;

use crate::assert_none;
use crate::files::{self, File};

const FOLDER: &str = "tests/mutants/";

/// Numbers of the bugs that have a patch.
pub(crate) fn numbers() -> BTreeSet<String> {
    let number = |patch: &File| {
        let name = patch.name.strip_prefix(FOLDER)?.strip_suffix(".patch")?;
        Some(name.trim_start_matches('0').to_owned())
    };
    patches().iter().filter_map(number).collect()
}

fn patches() -> Vec<File> {
    files::of_kind("patch").into_iter().filter(|file| file.name.starts_with(FOLDER)).collect()
}

#[test]
fn mutant_patches_apply_to_the_code() {
    let text = |file: &str| fs::read_to_string(files::root().join(file)).unwrap_or_default();
    let of = |patch: File| misfits(&patch.text, text).into_iter().map(move |why| format!("{}: {why}", patch.name));
    let violations: Vec<_> = patches().into_iter().flat_map(of).collect();
    assert_none("patches that do not fit the code", &violations);
}

/// Why a patch does not apply, or could apply at a wrong place: the lines that a hunk removes or keeps must occur
/// exactly once in its file, at any line.
fn misfits(patch: &str, text: impl Fn(&str) -> String) -> Vec<String> {
    let hunks = hunks(patch);
    if hunks.is_empty() {
        return vec!["it has no hunk".to_owned()];
    }
    let misfit = |(file, before): (&str, String)| {
        let text = text(file);
        let is_line = |at: usize| at == 0 || text[..at].ends_with('\n');
        let found = text.match_indices(&before).filter(|(at, _)| is_line(*at)).count();
        (found != 1).then(|| format!("{file} has these lines {found} times:\n{before}"))
    };
    hunks.into_iter().filter_map(misfit).collect()
}

/// The file of each hunk, and the lines that it removes or keeps.
fn hunks(patch: &str) -> Vec<(&str, String)> {
    let mut file = "";
    let mut hunks: Vec<(&str, String)> = Vec::new();
    for line in patch.lines() {
        if let Some(name) = line.strip_prefix("--- a/") {
            file = name;
        } else if line.starts_with("@@ ") {
            hunks.push((file, String::new()));
        } else if let Some(line) = line.strip_prefix(['-', ' '])
            && let Some((_, before)) = hunks.last_mut()
        {
            before.push_str(line);
            before.push('\n');
        }
    }
    hunks
}

#[test]
fn mutant_patch_that_does_not_apply_is_reported() {
    let patch = "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -7,2 +7,2 @@\n one\n-two\n+three\n";
    let with = |text: &'static str| misfits(patch, move |_| text.to_owned());
    assert_eq!(with("zero\none\ntwo\n"), [""; 0]);
    assert_eq!(with("one\nzero\ntwo\n"), ["src/a.rs has these lines 0 times:\none\ntwo\n"]);
    assert_eq!(with("one\ntwo\none\ntwo\n"), ["src/a.rs has these lines 2 times:\none\ntwo\n"]);
    assert_eq!(misfits("--- a/src/a.rs\n", |_| String::new()), ["it has no hunk"]);
}
