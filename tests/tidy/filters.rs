//! The Makefile and scripts run tests by parts of their names. A part that matches no test runs nothing and passes.

use std::collections::BTreeSet;

use crate::assert_none;
use crate::files;

#[test]
fn test_filters_match_a_test() {
    let tests: Vec<_> = files::rust().iter().flat_map(|file| tests_of(&file.name, &file.text)).collect();
    let scripts = files::of_kind("sh").into_iter().map(|script| script.text);
    let filters: BTreeSet<_> = scripts.chain([files::text("Makefile")]).flat_map(|text| filters(&text)).collect();
    assert!(filters.len() > 15, "filters were not recognized: {filters:?}");
    let matches_none = |filter: &String| !tests.iter().any(|test| test.contains(filter.as_str()));
    assert_none("filters that match no test", &filters.into_iter().filter(matches_none).collect::<Vec<_>>());
}

/// The stages of `make nightly` are targets.
#[test]
fn nightly_stages_are_targets_of_the_makefile() {
    let makefile = files::text("Makefile");
    let is_target = |name: &str| makefile.lines().any(|line| line.starts_with(&format!("{name}:")));
    let nightly = files::text("tests/nightly.py");
    let (_, table) = nightly.split_once("\nSTAGES = [\n").expect("tests/nightly.py has no table of stages");
    let stages = table.lines().take_while(|line| *line != "]").map_while(|line| line.split('"').nth(3));
    let missing: Vec<_> = stages.filter(|name| !is_target(name)).map(str::to_owned).collect();
    assert_none("stages without a target", &missing);
}

/// `make matrix` exits if a module has no test.
#[test]
fn modules_of_the_matrix_are_conformance_tests() {
    let roots = ["main", "nightly"].map(|root| files::text(&format!("tests/conformance/{root}.rs"))).concat();
    let matrix = files::text("tests/matrix.py");
    let (_, list) = matrix.split_once("\nMODULES = [\n").expect("tests/matrix.py has no list of modules");
    let names = list.split(']').next().unwrap_or_default().split('"').skip(1).step_by(2);
    let is_missing = |name: &&str| !roots.lines().any(|line| line == format!("mod {name};"));
    assert_none("modules without a test", &names.filter(is_missing).map(str::to_owned).collect::<Vec<_>>());
}

/// `module::name` of each function of a file in the folder of a test program or in a crate.
fn tests_of(file: &str, text: &str) -> Vec<String> {
    let path = file.trim_start_matches("tests/").trim_start_matches("src/").trim_end_matches(".rs");
    // The first folder of an integration test is its program.
    let module = if file.starts_with("tests/") { path.split_once('/').map_or("", |(_, module)| module) } else { path };
    let name = |line: &str| {
        let line = line.trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
        Some(format!("{}::{}", module.replace('/', "::"), line.split(['(', '<']).next()?))
    };
    text.lines().filter_map(name).collect()
}

/// The test filters of `cargo test`: the arguments after ` -- ` that are not options, and the value of `SMOKE`.
fn filters(text: &str) -> BTreeSet<String> {
    let joined = text.replace("\\\n", " ");
    let arguments = |text: &str| {
        let mut arguments = Vec::new();
        let mut parts = text.split_whitespace();
        while let Some(part) = parts.next() {
            match part {
                "--test-threads" => drop(parts.next()),
                option if option.starts_with("--") => {}
                // What stands before a variable is the same for all its values.
                word => arguments.extend(word.split('$').next().filter(|word| !word.is_empty()).map(str::to_owned)),
            }
        }
        arguments
    };
    let of = |line: &str| match line.strip_prefix("SMOKE := ") {
        Some(names) => arguments(names),
        None if line.contains("cargo test ") || line.contains("$(CARGO) test ") => {
            line.split_once(" -- ").map(|(_, names)| arguments(names)).unwrap_or_default()
        }
        None => Vec::new(),
    };
    joined.lines().flat_map(of).collect()
}

#[test]
fn filters_are_read_from_recipes() {
    let makefile = "SMOKE := fanout:: lists::\n\tcargo test \\\n  --test a -- --nocapture --test-threads 1 b::$(C)\n";
    assert_eq!(filters(makefile), ["b::", "fanout::", "lists::"].map(str::to_owned).into());
    assert_eq!(tests_of("tests/direct/a/b.rs", "    async fn c() {"), ["a::b::c"]);
}
