//! Everything that comments and documents cite exists: rules of docs/dev/rules and promises of docs/DIFFERENCES.md by
//! their ids, documents by their names and headings. Every rule is cited.

use std::collections::BTreeMap;

use crate::assert_none;
use crate::files::{self, File};
use crate::source::Source;

const RULES: &str = "docs/dev/rules/";
const PROMISES: &str = "docs/DIFFERENCES.md";

/// Everything that can be cited.
#[derive(Debug, Default)]
struct Known {
    /// Where each id is defined; valid ids have one place.
    ids: BTreeMap<String, Vec<String>>,
    /// Every document with its headings.
    documents: BTreeMap<String, Vec<String>>,
}

impl Known {
    fn of(documents: &[File]) -> Self {
        let mut known = Self::default();
        for file in documents {
            let headings: Vec<_> = headings(&file.text).collect();
            let rules = if file.name.starts_with(RULES) { rules(&file.text) } else { Vec::new() };
            let rows = if file.name == PROMISES { promises(&file.text) } else { Vec::new() };
            for (line, id) in rules.into_iter().chain(rows) {
                known.ids.entry(id).or_default().push(format!("{}:{line}", file.name));
            }
            known.documents.insert(file.name.clone(), headings.into_iter().map(|(_, heading)| heading).collect());
        }
        known
    }

    fn defined_twice(&self) -> Vec<String> {
        let twice = self.ids.iter().filter(|(_, places)| places.len() > 1);
        twice.map(|(id, places)| format!("{id}: {}", places.join(", "))).collect()
    }

    /// The headings of the document that `name` refers to in `file`: from the root, from the file's own folder, or
    /// below docs or docs/dev.
    fn headings_of(&self, file: &str, name: &str) -> Option<&Vec<String>> {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let places = ["", folder, "docs", "docs/dev"].map(|place| joined(place, name));
        places.iter().find_map(|place| self.documents.get(place))
    }
}

/// The citations in `text` that do not exist. The text begins at `line` of `file`. `is_prose` says whether it is prose,
/// in which a capital letter with a number is an id.
fn violations(known: &Known, file: &str, line: usize, text: &str, is_prose: bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut wrong = |at: usize, what: String| {
        found.push(format!("{file}:{}: {what}", line + text[..at].matches('\n').count()));
    };
    for (at, id) in ids(text, is_prose) {
        if !known.ids.contains_key(&id) {
            wrong(at, format!("{id} is defined neither in {RULES} nor in {PROMISES}"));
        }
    }
    for (at, name) in documents(text) {
        let Some(headings) = known.headings_of(file, name) else {
            wrong(at, format!("{name} is no document of this repository"));
            continue;
        };
        let behind = &text[at + name.len()..];
        let anchor = behind.strip_prefix('#').map(|rest| rest.split([')', ' ', '\n']).next().unwrap_or_default());
        if let Some(anchor) = anchor.filter(|anchor| !headings.iter().any(|heading| slug(heading) == *anchor)) {
            wrong(at, format!("{name} has no heading #{anchor}"));
        }
        let quoted = behind.strip_prefix(", \"").or_else(|| behind.strip_prefix(",\n\""));
        let heading = quoted.and_then(|rest| rest.split_once('"')).map(|(heading, _)| heading.replace('\n', " "));
        if let Some(heading) = heading.filter(|heading| !headings.contains(heading)) {
            wrong(at, format!("{name} has no heading \"{heading}\""));
        }
    }
    for (at, _) in text.match_indices('§').filter(|_| is_prose) {
        let before = text[..at].trim_end().trim_end_matches(|c: char| c.is_ascii_digit());
        if !before.ends_with("RFC ") {
            wrong(at, "§ is for RFCs: cite a rule by its id and a document by its heading".to_owned());
        }
    }
    found
}

/// Ids of rules anywhere and, in prose, ids of promises outside of code. A longer word that looks like an id counts as
/// code.
fn ids(text: &str, is_prose: bool) -> Vec<(usize, String)> {
    let of_word = |c: char| c.is_alphanumeric() || "-_.+/$%".contains(c);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(of_word).map(|start| at + start) {
        let end = text[start..].find(|c| !of_word(c)).map_or(text.len(), |length| start + length);
        let word = text[start..end].trim_end_matches(['.', '-', '/']);
        let alone = is_prose && is_promise(word) && !text[..start].ends_with(':') && !text[end..].starts_with("::");
        if let Some(rule) = rule_at_start(word).filter(|rule| rule == word) {
            found.push((start, rule));
        } else if alone {
            found.push((start, word.to_owned()));
        }
        at = end;
    }
    found
}

/// Definitions of rules: list items that begin with a bold id, `- **R-LIST-4** …`, with their lines.
fn rules(text: &str) -> Vec<(usize, String)> {
    let id = |(at, line): (usize, &str)| Some((at + 1, rule_at_start(line.strip_prefix("- **")?)?));
    text.lines().enumerate().filter_map(id).collect()
}

/// The id at the start of `text`, such as `R-LIST-4`.
fn rule_at_start(text: &str) -> Option<String> {
    let (subject, rest) = text.strip_prefix("R-")?.split_once('-')?;
    let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let named = !subject.is_empty() && subject.bytes().all(|b| b.is_ascii_uppercase()) && !number.is_empty();
    named.then(|| format!("R-{subject}-{number}"))
}

/// `W10`, `W11b`: a capital letter, one or two digits, and optionally a letter. `V3` is a version.
fn is_promise(word: &str) -> bool {
    let Some(rest) = word.strip_prefix(|c: char| c.is_ascii_uppercase() && c != 'V') else { return false };
    let digits = rest.strip_suffix('b').unwrap_or(rest);
    (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

/// Rows of the tables of promises.
fn promises(text: &str) -> Vec<(usize, String)> {
    let rows = text.lines().enumerate();
    let id = |(at, line): (usize, &str)| Some((at + 1, line.strip_prefix("| ")?.split(' ').next()?.to_owned()));
    rows.filter_map(id).filter(|(_, id)| is_promise(id)).collect()
}

/// Names that end in `.md`, with their positions. Parts of a URL are skipped.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let of_name = |c: char| c.is_ascii_alphanumeric() || "-_./*".contains(c);
    let mut found = Vec::new();
    for (end, _) in text.match_indices(".md") {
        let end = end + ".md".len();
        let start = text[..end].rfind(|c| !of_name(c)).map_or(0, |before| before + 1);
        let start = (start..end).find(|at| text.is_char_boundary(*at)).unwrap_or(end);
        let name = &text[start..end];
        let whole = !text[end..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let named = name.len() > ".md".len() && !name.starts_with("//") && !name.contains('*');
        found.extend((whole && named).then_some((start, name)));
    }
    found
}

fn headings(text: &str) -> impl Iterator<Item = (usize, String)> + use<'_> {
    let mut fenced = false;
    let heading = move |(at, line): (usize, &str)| {
        fenced ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        let is_heading = !fenced && line.starts_with('#') && heading.starts_with(' ');
        is_heading.then(|| (at + 1, heading.trim().to_owned()))
    };
    text.lines().enumerate().filter_map(heading)
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// `name` resolved from `folder`, both relative to the root.
fn joined(folder: &str, name: &str) -> String {
    let mut parts: Vec<_> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in name.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn citations_resolve() {
    let known = Known::of(&files::of_kind("md"));
    assert!(known.ids.len() > 100, "the rules and promises were not found: {:?}", known.ids);
    let mut missing = Vec::new();
    for file in files::all() {
        let kind = file.name.rsplit_once('.').map_or("", |(_, kind)| kind);
        match kind {
            "rs" => {
                for (line, comment) in Source::parse(&file.name, &file.text).comments {
                    missing.extend(violations(&known, &file.name, line, &comment, true));
                }
            }
            "md" => missing.extend(violations(&known, &file.name, 1, &file.text, true)),
            _ => {
                let is_comment = |line: &str| ["#", "//"].iter().any(|mark| line.trim().starts_with(mark));
                let comments = file.text.lines().enumerate().filter(|(_, line)| is_comment(line));
                let of = |(at, line)| violations(&known, &file.name, at + 1, line, false);
                missing.extend(comments.flat_map(of));
            }
        }
    }
    assert_none("citations of what is not there (docs/dev/rules/README.md says how to cite)", &missing);
}

#[test]
fn rules_are_cited_outside_the_rules_directory() {
    let mut uncited = Known::of(&files::of_kind("md")).ids;
    uncited.retain(|id, _| id.starts_with("R-"));
    assert!(uncited.len() > 100, "the rules were not found");
    let citing = |file: &File| !file.name.starts_with(RULES) && !file.name.starts_with("tests/tidy/");
    for file in files::all().iter().filter(|file| citing(file)) {
        for id in cited_rules(&file.text) {
            uncited.remove(&id);
        }
    }
    assert_none("rules that nothing cites: delete them", &uncited.into_keys().collect::<Vec<_>>());
}

/// The rules that a text cites, alone or in a range: `R-ACCEPT-1 to R-ACCEPT-3`.
fn cited_rules(text: &str) -> Vec<String> {
    let cited: Vec<_> = ids(text, false);
    let mut found: Vec<_> = cited.iter().map(|(_, id)| id.clone()).collect();
    for pair in cited.windows(2) {
        let [(at, first), (next, last)] = pair else { continue };
        let is_range = text[at + first.len()..*next].split_whitespace().eq(["to"]);
        let numbered =
            |id: &str| id.rsplit_once('-').and_then(|(kind, n)| Some((kind.to_owned(), n.parse::<u32>().ok()?)));
        if let (true, Some((kind, from)), Some((_, to))) = (is_range, numbered(first), numbered(last)) {
            found.extend((from..to).map(|n| format!("{kind}-{n}")));
        }
    }
    found
}

#[test]
fn rule_range_cites_every_included_rule() {
    let cited = cited_rules("as R-GET-1 and R-ACCEPT-2 to R-ACCEPT-4 say");
    assert_eq!(cited, ["R-GET-1", "R-ACCEPT-2", "R-ACCEPT-4", "R-ACCEPT-2", "R-ACCEPT-3"]);
}

#[test]
fn ids_are_defined_once() {
    assert_none("ids that are defined twice", &Known::of(&files::of_kind("md")).defined_twice());
}

/// A repository with three documents.
fn example() -> Known {
    let file = |name: &str, text: &str| File { name: name.to_owned(), text: text.to_owned() };
    Known::of(&[
        file("ARCHITECTURE.md", "# Architecture\n\n## How a gap is mended\n```sh\n# No heading\n```\n"),
        file("docs/dev/rules/reads.md", "# Reads\n\n- **R-LIST-4** Items are in order. See R-LIST-1.\n"),
        file("docs/DIFFERENCES.md", "| Id |\n| W10 | a |\n| W11b | b |\n"),
        file("docs/dev/PROMISES.md", "| Id |\n| W10 | `a.rs::b` |\n"),
    ])
}

#[test]
fn citation_of_missing_rule_or_section_is_reported() {
    let planted = [
        "the order (R-LIST-5) of items",
        "the order of R-SORT-1.",
        "at once (W1), and then",
        "ids of another scheme: T17",
        "W10, W12",
        "cited like `W9`",
        "as semantics.md says",
        "(docs/dev/rules/lists.md)",
        "[rules](../rules.md)",
        "(ARCHITECTURE.md, \"How a gap is closed\")",
        "(ARCHITECTURE.md, \"No heading\")",
        "(ARCHITECTURE.md,\n\"How a gap\nis closed\")",
        "[gaps](ARCHITECTURE.md#gaps)",
        "the matrix of §3.2",
        "(ARCHITECTURE.md §3)",
    ];
    for text in planted {
        let found = violations(&example(), "docs/a.md", 1, text, true);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
    }
    let found = violations(&example(), "src/a.rs", 7, "one\ntwo R-LIST-9", true);
    assert!(found[0].starts_with("src/a.rs:8: R-LIST-9 "), "{found:?}");
}

#[test]
fn valid_citations_and_lookalikes_are_not_reported() {
    let fine = [
        "the order of items (R-LIST-4), W10 and W11b",
        "W10–W11b: both, `W10` and R-LIST-4.",
        "[rules](dev/rules/reads.md#reads), docs/dev/rules/reads.md and dev/rules/reads.md",
        "(ARCHITECTURE.md, \"How a gap is mended\")",
        "(ARCHITECTURE.md,\n\"How a gap\nis mended\")",
        "[gaps](../ARCHITECTURE.md#how-a-gap-is-mended), [all](../ARCHITECTURE.md)",
        "https://example.com/semantics.md and *.md, GET /A1/b, U+2028, %C3, P-256, h2, t1, HTTP/2, A1::new",
        "RFC 9110 §7.6.1",
    ];
    for text in fine {
        assert_eq!(violations(&example(), "docs/a.md", 1, text, true), Vec::<String>::new(), "{text}");
    }
    assert_eq!(violations(&example(), "a.go", 1, "P50 float64 // §1", false), Vec::<String>::new());
}

#[test]
fn only_ids_defined_twice_are_reported() {
    assert_eq!(example().defined_twice(), Vec::<String>::new());
    let file = |name: &str, text: &str| File { name: name.to_owned(), text: text.to_owned() };
    let twice = Known::of(&[
        file("docs/dev/rules/a.md", "- **R-A-1** One\n- **R-A-2** Two\n"),
        file("docs/dev/rules/b.md", "- **R-A-1** Another\n"),
        file("docs/DIFFERENCES.md", "| I3 | a |\n| I3 | b |\n"),
        file("docs/dev/PROMISES.md", "| I3 | c |\n"),
    ]);
    let expected =
        ["I3: docs/DIFFERENCES.md:1, docs/DIFFERENCES.md:2", "R-A-1: docs/dev/rules/a.md:1, docs/dev/rules/b.md:1"];
    assert_eq!(twice.defined_twice(), expected);
}

#[test]
fn adjacent_comment_lines_are_joined_and_strings_ignored() {
    let text = "//! One,\n//!\n//! two.\n\nconst A: &str = \"// none\"; // three\n/* four */ fn a() {}\n/// five";
    let comments = Source::parse("src/a.rs", text).comments;
    let expected = [(1, "One,\n \ntwo."), (5, "three"), (6, "/* four */"), (7, "five")];
    let expected: Vec<_> = expected.iter().map(|(line, text)| (*line, (*text).to_owned())).collect();
    assert_eq!(comments, expected);
}
