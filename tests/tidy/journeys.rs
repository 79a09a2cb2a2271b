//! The modules and functions that CONTRIBUTING.md shows to newcomers exist.

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

#[test]
fn functions_named_in_contributing_exist() {
    let document = files::text("CONTRIBUTING.md");
    let journeys: Vec<_> = section(&document, "Three journeys").split("\n- **").skip(1).collect();
    assert_eq!(journeys.len(), 3, "the journeys were not found");
    let mut missing = Vec::new();
    for journey in journeys {
        let (journey, _) = journey.split_once("\n\n").unwrap_or((journey, ""));
        let functions: Vec<_> = in_backticks(journey).collect();
        assert!(functions.len() >= 5, "the functions of a journey were not found: {functions:?}");
        missing.extend(functions.into_iter().filter(|path| !is_function(path)).map(str::to_owned));
    }
    assert_none("functions that CONTRIBUTING.md names and that are not there", &missing);
}

#[test]
fn missing_module_or_function_is_reported() {
    assert!(is_module("serve::route") && is_module("kubeapi::status") && is_module("ForwardReason"));
    assert!(!is_module("serve::nowhere"));
    assert!(is_function("tests/tidy/journeys.rs::is_function"));
    assert!(!is_function("tests/tidy/journeys.rs::is_missing") && !is_function("tests/nowhere.rs::is_function"));
}
