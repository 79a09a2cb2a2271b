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

/// A hunk of a patch.
struct Hunk<'a> {
    file: &'a str,
    header: &'a str,
    /// The lines that it removes or keeps.
    before: String,
    /// The number of lines that it adds or keeps.
    after: usize,
}

/// Why a patch does not apply, or could apply at a wrong place: the lines that a hunk removes or keeps must occur
/// exactly once in its file. `git apply` finds them at any line, unless the header names line 1, and requires that the
/// header counts the lines correctly.
fn misfits(patch: &str, text: impl Fn(&str) -> String) -> Vec<String> {
    let hunks = hunks(patch);
    if hunks.is_empty() {
        return vec!["it has no hunk".to_owned()];
    }
    let misfit = |Hunk { file, header, before, after }: Hunk<'_>| {
        let text = text(file);
        let is_line = |at: usize| at == 0 || text[..at].ends_with('\n');
        let found = text.match_indices(&before).filter(|(at, _)| is_line(*at)).count();
        if found != 1 {
            return Some(format!("{file} has these lines {found} times:\n{before}"));
        }
        let is_first = text.starts_with(&before);
        let fits = numbers_of(header).is_some_and(|[line, lines, _, lines_after]| {
            (line != 1 || is_first) && (lines, lines_after) == (before.lines().count(), after)
        });
        (!fits).then(|| format!("{file}: `git apply` refuses this header: {header}"))
    };
    hunks.into_iter().filter_map(misfit).collect()
}

/// The four numbers of a header such as `@@ -7,2 +7,3 @@`.
fn numbers_of(header: &str) -> Option<[usize; 4]> {
    let mut parts = header.split(' ').skip(1);
    let (before, after) = (parts.next()?.strip_prefix('-')?, parts.next()?.strip_prefix('+')?);
    let ((line, lines), (line_after, lines_after)) = (before.split_once(',')?, after.split_once(',')?);
    Some([line.parse().ok()?, lines.parse().ok()?, line_after.parse().ok()?, lines_after.parse().ok()?])
}

fn hunks(patch: &str) -> Vec<Hunk<'_>> {
    let mut file = "";
    let mut hunks: Vec<Hunk<'_>> = Vec::new();
    for line in patch.lines() {
        if line.starts_with("+++ b/") {
            continue;
        }
        if let Some(name) = line.strip_prefix("--- a/") {
            file = name;
        } else if line.starts_with("@@ ") {
            hunks.push(Hunk { file, header: line, before: String::new(), after: 0 });
        } else if let Some(hunk) = hunks.last_mut() {
            hunk.after += usize::from(line.starts_with(['+', ' ']));
            if let Some(line) = line.strip_prefix(['-', ' ']) {
                hunk.before.push_str(line);
                hunk.before.push('\n');
            }
        }
    }
    hunks
}

#[test]
fn mutant_patch_that_does_not_apply_is_reported() {
    let patch = "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -7,2 +7,2 @@\n one\n-two\n+three\n";
    let with = |text: &'static str| misfits(patch, move |_| text.to_owned());
    assert_eq!(with("zero\none\ntwo\n"), [""; 0]);
    for header in ["@@ -1,2 +1,2 @@", "@@ -7,3 +7,2 @@", "@@ -7,2 +7,1 @@", "@@ fn one"] {
        let refused = misfits(&patch.replace("@@ -7,2 +7,2 @@", header), |_| "zero\none\ntwo\n".to_owned());
        assert_eq!(refused, [format!("src/a.rs: `git apply` refuses this header: {header}")]);
    }
    assert_eq!(with("one\nzero\ntwo\n"), ["src/a.rs has these lines 0 times:\none\ntwo\n"]);
    assert_eq!(with("one\ntwo\none\ntwo\n"), ["src/a.rs has these lines 2 times:\none\ntwo\n"]);
    assert_eq!(misfits("--- a/src/a.rs\n", |_| String::new()), ["it has no hunk"]);
}
