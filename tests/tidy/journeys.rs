//! The modules and functions that CONTRIBUTING.md and docs/dev/JOURNEYS.md show to newcomers exist, and call each
//! other.

use crate::assert_none;
use crate::files;

/// The text between the heading `## name` and the next one.
fn section<'a>(document: &'a str, name: &str) -> &'a str {
    let (_, below) = document.split_once(&format!("## {name}\n")).expect("a heading of CONTRIBUTING.md");
    below.split_once("\n## ").map_or(below, |(section, _)| section)
}

fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether `serve::route` is a module of the daemon or of a crate. A word without `::` is an item in one.
fn is_module(path: &str) -> bool {
    let Some((room, module)) = path.split_once("::") else { return true };
    let module = module.replace("::", "/");
    [format!("src/{room}/{module}.rs"), format!("crates/{room}/src/{module}.rs")]
        .iter()
        .any(|file| files::root().join(file).exists())
}

/// Whether the file of `src/a.rs::b` has a function `b`.
fn is_function(path: &str) -> bool {
    let Some((file, function)) = path.split_once("::") else { return false };
    let text = std::fs::read_to_string(files::root().join(file)).unwrap_or_default();
    ["(", "<"].iter().any(|next| text.contains(&format!("fn {function}{next}")))
}

#[test]
fn modules_named_in_contributing_exist() {
    let document = files::text("CONTRIBUTING.md");
    let rows: Vec<_> = section(&document, "Where is what").lines().filter(|line| line.contains("::")).collect();
    assert!(rows.len() >= 10, "{} questions were found", rows.len());
    let modules = rows.iter().flat_map(|row| in_backticks(row));
    let missing: Vec<_> = modules.filter(|path| !is_module(path)).map(str::to_owned).collect();
    assert_none("modules that CONTRIBUTING.md names and that are not there", &missing);
}

/// A function of a journey: a line `file::function`, indented below its caller. `~` instead of two spaces of the
/// indentation marks a function that runs because the one above woke it or gave it a value.
#[derive(Debug)]
struct Hop<'a> {
    depth: usize,
    is_called: bool,
    file: &'a str,
    function: &'a str,
}

fn hops(block: &str) -> Vec<Hop<'_>> {
    let lines = block.lines().filter(|line| !line.trim().is_empty());
    let hop = |line| -> Option<Hop<'_>> {
        let text: &str = str::trim_start_matches(line, [' ', '~']);
        let indent = line.len() - text.len();
        let (file, function) = text.split_once("::")?;
        Some(Hop { depth: indent / 2, is_called: !line[..indent].contains('~'), file, function: function.trim() })
    };
    lines.map(|line| hop(line).unwrap_or_else(|| panic!("no file and function: {line}"))).collect()
}

/// The texts of all functions of this name in a file, with their signatures.
fn bodies<'a>(text: &'a str, function: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(&format!("fn {function}")) {
        let is_name = text[at..].chars().nth(3 + function.len()).is_some_and(|next| next == '(' || next == '<');
        let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let indent = text[line..].len() - text[line..].trim_start().len();
        let end = text[at..].find(&format!("\n{}}}", " ".repeat(indent)));
        if is_name {
            found.push(end.map_or(&text[at..], |end| &text[at..at + end]));
        }
    }
    found
}

/// The hops whose function is missing, or is not called by the function above it.
fn broken<'a>(hops: &'a [Hop<'a>], text_of: impl Fn(&str) -> String) -> Vec<String> {
    let mut found = Vec::new();
    for (at, hop) in hops.iter().enumerate() {
        let path = format!("{}::{}", hop.file, hop.function);
        if bodies(&text_of(hop.file), hop.function).is_empty() {
            found.push(format!("{path} does not exist"));
            continue;
        }
        let Some(caller) = hops[..at].iter().rev().find(|other| other.depth < hop.depth) else { continue };
        let text = text_of(caller.file);
        let calls = ["(", "::<", ")", ","].map(|next| format!("{}{next}", hop.function));
        let calls =
            |body: &&str| calls.iter().any(|call| body.match_indices(call).any(|(at, _)| !body[..at].ends_with("fn ")));
        if hop.is_called && !bodies(&text, caller.function).iter().any(calls) {
            found.push(format!("{}::{} does not call {path}", caller.file, caller.function));
        }
    }
    found
}

#[test]
fn functions_of_the_three_journeys_call_each_other() {
    let document = files::text("docs/dev/JOURNEYS.md");
    let blocks: Vec<_> = document.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 3, "the journeys were not found");
    let journeys: Vec<_> = blocks.into_iter().map(hops).collect();
    assert!(journeys.iter().all(|hops| hops.len() >= 10), "the functions of a journey were not found");
    let broken: Vec<_> = journeys.iter().flat_map(|hops| broken(hops, files::text)).collect();
    assert_none("functions of docs/dev/JOURNEYS.md that do not exist or do not call each other", &broken);
}

#[test]
fn missing_function_or_call_in_journey_is_reported() {
    let text =
        "impl A {\n    fn first(&self) {\n        self.second();\n    }\n    fn second(&self) {}\n}\nfn third() {}\n";
    let of = |block: &str| broken(&hops(block), |_| text.to_owned());
    assert!(of("a::first\n  a::second\n~ a::third\n").is_empty());
    assert_eq!(of("a::first\n  a::third\n"), ["a::first does not call a::third"]);
    assert_eq!(of("a::first\n  a::fourth\n"), ["a::fourth does not exist"]);
    assert_eq!(of("a::first\n  a::second\n    a::third\n").len(), 1);
}

#[test]
fn missing_module_or_function_is_reported() {
    assert!(is_module("serve::route") && is_module("kubeapi::status") && is_module("ForwardReason"));
    assert!(!is_module("serve::nowhere"));
    assert!(is_function("tests/tidy/journeys.rs::is_function"));
    assert!(!is_function("tests/tidy/journeys.rs::is_missing") && !is_function("tests/nowhere.rs::is_function"));
}
