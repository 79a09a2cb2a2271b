//! The documents list what the code has: metrics, configuration keys, flags and reasons. Their links, and the tests
//! that they name, exist.

use std::collections::BTreeSet;

use crate::assert_none;
use crate::files::{self, File};
use crate::patches;
use crate::source::{Kind, Source, Token, is};

type Names = BTreeSet<String>;

/// Files with metrics that are rendered directly, and not recorded.
const SERIES: [&str; 2] = ["src/admin/series.rs", "src/admin/process.rs"];

#[test]
fn metrics_are_described_and_documented() {
    let (mut used, mut described) = (Names::new(), Names::new());
    for file in shipped() {
        let source = Source::parse(&file.name, &file.text);
        for (at, token) in source.tokens.iter().enumerate().filter(|(_, token)| !token.test && is_metric(token)) {
            // Matches `describe_counter!("name", …`.
            let describes = at >= 3 && source.tokens[at - 3].text.starts_with("describe_");
            // Metrics that are computed from feeds have their description next to the name: ("name", "what it means", …
            let has_words = SERIES.contains(&file.name.as_str())
                && source.tokens.get(at + 2).is_some_and(|next| next.kind == Kind::Text);
            if has_words {
                described.insert(token.text.clone());
            }
            if describes { &mut described } else { &mut used }.insert(token.text.clone());
        }
    }
    assert!(!described.is_empty(), "the descriptions were not found");
    let quoted = in_backticks(&files::text("docs/METRICS.md")).filter(|word| word.starts_with("kube_fanout_"));
    let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let name = |word: String| word.split(|c: char| !of_name(c)).next().unwrap_or_default().to_owned();
    let documented: Names = quoted.map(name).collect();
    assert_same("recorded", &used, "described in describe()", &described);
    assert_same("described in describe()", &described, "documented in docs/METRICS.md", &documented);
}

fn is_metric(token: &Token) -> bool {
    token.kind == Kind::Text
        && token.text.starts_with("kube_fanout_")
        && token.text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[test]
fn reason_labels_are_documented() {
    let metrics = files::text("docs/METRICS.md");
    let reasons = labels("src/serve/route.rs", "ForwardReason");
    assert!(reasons.len() > 10, "the reasons were not found: {reasons:?}");
    let table = section(&metrics, "Why a request is passed through");
    let rows: Names = table.lines().filter_map(first_cell).collect();
    assert_same("a ForwardReason of src/serve/route.rs", &reasons, "in the table of docs/METRICS.md", &rows);
    let quoted: Names = in_backticks(&metrics).collect();
    for (file, of) in [
        ("src/serve/activity.rs", "WatchEndReason"),
        ("src/reflect/metrics.rs", "FeedRequestPurpose"),
        ("src/reflect/failure.rs", "ReflectorStepError"),
    ] {
        let labels = labels(file, of);
        assert!(!labels.is_empty(), "the labels of {of} were not found");
        let missing: Vec<_> = labels.difference(&quoted).cloned().collect();
        assert_none(&format!("labels of {of} ({file}) that docs/METRICS.md does not have"), &missing);
    }
}

/// Label values of an enum: the literals of its `impl` block, which contains `as_str`, or else of its definition.
fn labels(file: &str, of: &str) -> Names {
    let source = Source::parse(file, &files::text(file));
    let literals = |item| source.block(&[item, of]).iter().filter(|token| token.kind == Kind::Text);
    let item = if literals("impl").next().is_some() { "impl" } else { "enum" };
    literals(item).map(|token| token.text.clone()).collect()
}

#[test]
fn command_line_flags_are_documented() {
    let (file, document_name) = ("src/config/serve_arguments.rs", "docs/CONFIG.md");
    let document: Names = in_backticks(&files::text(document_name)).flat_map(|code| quoted_of(&code)).collect();
    let mut missing = Vec::new();
    let mut found = 0;
    let source = Source::parse(file, &files::text(file));
    for at in (0..source.tokens.len()).filter(|at| source.reads(*at, &["arg", "(", "long"])) {
        let ends_attribute = |i: usize| is(&source.tokens[i], "]");
        let names_field =
            |i: &usize| ends_attribute(i - 2) || is(&source.tokens[i - 2], "pub") && ends_attribute(i - 3);
        let colon = (at..source.tokens.len()).find(|i| is(&source.tokens[*i], ":") && names_field(i));
        let Some(colon) = colon else { continue };
        found += 1;
        let flag = format!("--{}", source.tokens[colon - 1].text.replace('_', "-"));
        missing.extend((!document.contains(&flag)).then_some(flag));
        let variable = source.tokens[at..colon].windows(3).find(|three| is(&three[0], "env") && is(&three[1], "="));
        missing.extend(variable.map(|three| three[2].text.clone()).filter(|name| !document.contains(name)));
    }
    assert!(found > 10, "the flags were not found");
    assert_none(&format!("flags and variables of {file} that {document_name} does not have"), &missing);
}

fn quoted_of(code: &str) -> Vec<String> {
    code.split([' ', '=', '[', ']', '|', ',']).map(str::to_owned).collect()
}

#[test]
fn relative_links_in_documents_resolve() {
    let mut broken = Vec::new();
    for file in files::of_kind("md") {
        let folder = file.name.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in file.text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.is_empty() && !path.contains("://") && !files::root().join(folder).join(path).exists() {
                broken.push(format!("{}: {link}", file.name));
            }
        }
    }
    assert_none("links to files that are not there", &broken);
}

#[test]
fn functions_named_in_documents_exist() {
    let mut missing = Vec::new();
    for (document, at_least) in [
        ("docs/dev/PROMISES.md", 300),
        ("docs/dev/COMPARED.md", 10),
        ("docs/dev/FAULTS.md", 100),
        ("docs/dev/THREATS.md", 100),
        ("docs/GUIDES.md", 5),
    ] {
        let text = files::text(document);
        let mut named = 0;
        for code in in_backticks(&text) {
            let Some((path, test)) = code.split_once("::").filter(|(path, _)| path.contains(".rs")) else { continue };
            named += 1;
            let text = std::fs::read_to_string(files::root().join(path)).unwrap_or_default();
            let is_there = ["(", "<"].iter().any(|next| text.contains(&format!("fn {test}{next}")));
            missing.extend((!is_there).then(|| format!("{document}: {code}")));
        }
        assert!(named > at_least, "the names of the tests were not found in {document}");
    }
    assert_none("functions that are named and are not there", &missing);
}

#[test]
fn guarantees_have_a_test_over_real_connections() {
    let differences = files::text("docs/DIFFERENCES.md");
    let promised: Names = promises_of(section(&differences, "Promises")).map(|(id, _)| id.to_owned()).collect();
    assert!(promised.len() > 40, "the promises were not found");
    let index = files::text("docs/dev/PROMISES.md");
    let tests = section(&index, "Promises");
    let tested: Names = promises_of(tests).map(|(id, _)| id.to_owned()).collect();
    assert_same("promised in docs/DIFFERENCES.md", &promised, "in docs/dev/PROMISES.md, \"Promises\"", &tested);
    assert_none("promises without a test over real connections in docs/dev/PROMISES.md", &unobserved(tests));
}

/// Rows of a table of promises: their ids and last cells.
fn promises_of(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(promise)
}

fn promise(row: &str) -> Option<(&str, &str)> {
    let (id, rest) = row.strip_prefix("| ")?.strip_suffix('|')?.split_once(" |")?;
    let ends_id = |c: char| c.is_ascii_digit() || c == 'b';
    let is_id = id.starts_with(|c: char| c.is_ascii_uppercase()) && id.ends_with(ends_id);
    is_id.then_some((id, rest.rsplit_once('|').map_or(rest, |(_, last)| last).trim()))
}

/// Ids of promises whose last cell names no test over real connections.
fn unobserved(text: &str) -> Vec<String> {
    let is_outside =
        |code: String| ["tests/direct/", "tests/conformance/"].iter().any(|folder| code.starts_with(folder));
    let without = promises_of(text).filter(|(_, last)| !in_backticks(last).any(is_outside));
    without.map(|(id, _)| id.to_owned()).collect()
}

#[test]
fn guarantee_without_test_over_connections_is_reported() {
    let head = "| Id | Unit tests | Tests over connections |\n|---|---|---|\n";
    let rows = "| W1 | | `tests/direct/a.rs::b` |\n| W11b | `tests/direct/a.rs::b` | |\n\
        | L2 | | `src/a.rs::b` |\n| F3 | | `src/a.rs::b`, `tests/conformance/a.rs::b` |\n";
    assert_eq!(unobserved(&format!("{head}{rows}")), ["W11b", "L2"]);
}

#[test]
fn documented_faults_are_injected_or_exempted() {
    let text = files::text("docs/dev/FAULTS.md");
    let (injected, rest) = text.split_once("## Not injected").expect("what is injected stands first");
    assert!(injected.lines().filter_map(fault).count() > 50, "the faults were not found");
    assert_none("faults of docs/dev/FAULTS.md that nothing injects and no text explains", &unaccounted(injected, rest));
}

/// A fault's id and the rest of its row.
fn fault(row: &str) -> Option<(&str, &str)> {
    let (id, rest) = row.strip_prefix("| ")?.split_once(" |")?;
    ["FU-", "FD-", "FX-"].iter().any(|kind| id.starts_with(kind)).then_some((id, rest))
}

/// Faults without a test, without a reason, or missing from both tables although a later one is listed.
fn unaccounted(injected: &str, rest: &str) -> Vec<String> {
    let untested = injected.lines().filter_map(fault).filter(|(_, row)| !row.contains(".rs"));
    let reason = |row: &str| row.split('|').nth(1).is_some_and(|reason| !reason.trim().is_empty());
    let unexplained = rest.lines().filter_map(fault).filter(|(_, row)| !reason(row));
    let mut found: Vec<_> = untested.chain(unexplained).map(|(id, _)| id.to_owned()).collect();
    let ids: Names = [injected, rest].iter().flat_map(|table| table.lines()).filter_map(fault).map(own_id).collect();
    for kind in ["FU", "FD", "FX"] {
        let number = |id: &String| id.strip_prefix(kind)?.strip_prefix('-')?.parse::<usize>().ok();
        let last = ids.iter().filter_map(number).max().unwrap_or_default();
        found.extend((1..=last).map(|at| format!("{kind}-{at}")).filter(|id| !ids.contains(id)));
    }
    found
}

fn own_id((id, _): (&str, &str)) -> String {
    id.to_owned()
}

#[test]
fn fault_without_test_or_reason_is_reported() {
    let injected = "| FU-1 | a | b | `src/a.rs::b` |\n| FU-2 | a | b | later |\n| FD-3 | a | b | `src/a.rs::b` |\n";
    let rest = "| FD-1 | a | Missing | |\n| FX-1 | a | | b |\n";
    assert_eq!(unaccounted(injected, rest), ["FU-2", "FX-1", "FD-2"]);
}

#[test]
fn mutants_have_a_patch_and_a_test() {
    let document = files::text("docs/dev/PROMISES.md");
    let rows: Vec<_> = section(&document, "Mutants").lines().filter_map(numbered).collect();
    assert!(rows.len() > 20, "the mutants were not found");
    let untested = rows.iter().filter(|(_, rest)| !rest.contains(".rs::")).map(|(number, _)| number.clone());
    assert_none("mutants that no test is to catch", &untested.collect::<Vec<_>>());
    let promises = files::text("crates/verify/src/guarantee.rs");
    let unjudged = rows.iter().filter(|(_, rest)| !names_its_judge(rest, &promises)).map(|(number, _)| number.clone());
    assert_none("mutants without a judge that a test from outside has", &unjudged.collect::<Vec<_>>());
    let listed: Names = rows.into_iter().map(|(number, _)| number).collect();
    assert_same("patches of tests/mutants", &patches::numbers(), "in docs/dev/PROMISES.md, \"Mutants\"", &listed);
}

/// A mutant's number and the rest of its row.
fn numbered(row: &str) -> Option<(String, &str)> {
    let (number, rest) = row.strip_prefix("| ")?.split_once(" |")?;
    number.bytes().all(|b| b.is_ascii_digit()).then(|| (number.to_owned(), rest))
}

/// Whether a mutant's row ends with `–`, or with a promise that has a checker and a test judged by it.
fn names_its_judge(row: &str, promises: &str) -> bool {
    let judge = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
    let is_promise = promises.lines().any(|line| line.trim() == format!("{judge},"));
    judge == "–" || is_promise && ["`tests/direct/", "`tests/simulation/"].iter().any(|test| row.contains(test))
}

#[test]
fn unknown_or_missing_judge_of_a_mutant_is_reported() {
    let promises = "pub enum Promise {\n    Ordered,\n}\n";
    let names = |row: &str| names_its_judge(row, promises);
    assert!(names(" a | b | `tests/direct/a.rs::b` | Ordered |") && names(" a | b | `src/a.rs::b` | – |"));
    for row in
        ["a | `tests/direct/a.rs::b` | Order |", "a | `src/a.rs::b` | Ordered |", "a | `tests/direct/a.rs::b` | |"]
    {
        assert!(!names(row), "{row}");
    }
}

/// Rust files of the crates.
fn shipped() -> Vec<File> {
    files::rust().into_iter().filter(File::is_source).collect()
}

/// Text between backticks, outside of fenced blocks.
fn in_backticks(text: &str) -> impl Iterator<Item = String> + use<> {
    let mut fenced = false;
    let mut found = Vec::new();
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        if !fenced {
            found.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found.into_iter()
}

/// The code in the first cell of a table row.
fn first_cell(line: &str) -> Option<String> {
    line.strip_prefix("| `")?.split('`').next().map(str::to_owned)
}

/// The text below a heading, up to the next one of the same or a higher level.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let rank = |line: &str| line.bytes().take_while(|b| *b == b'#').count();
    let is_heading = |line: &str| rank(line) > 0 && line[rank(line)..].trim() == heading;
    let mut at = 0;
    let mut start = None;
    for line in text.split_inclusive('\n') {
        match start {
            None if is_heading(line) => start = Some((at + line.len(), rank(line))),
            Some((start, of)) if (1..=of).contains(&rank(line)) => return &text[start..at],
            _ => {}
        }
        at += line.len();
    }
    start.map_or("", |(start, _)| &text[start..])
}

fn assert_same(a: &str, of_a: &Names, b: &str, of_b: &Names) {
    let only = |x: &Names, y: &Names| x.difference(y).cloned().collect::<Vec<_>>();
    assert_none(&format!("{a}, but not {b}"), &only(of_a, of_b));
    assert_none(&format!("{b}, but not {a}"), &only(of_b, of_a));
}

#[test]
fn section_ends_at_next_heading_of_same_level() {
    let text = "# A\none\n## B\ntwo\n### C\nthree\n## D\nfour\n";
    assert_eq!(section(text, "B"), "two\n### C\nthree\n");
    assert_eq!(section(text, "D"), "four\n");
    assert_eq!(section(text, "E"), "");
}
