//! Command and configuration blocks in the documents: each is run by a test, or states why not.

use crate::assert_none;
use crate::files;

/// Languages of blocks that a reader copies.
const KINDS: [&str; 2] = ["sh", "yaml"];

/// A block that a reader copies, and the HTML comment after it.
struct Block<'a> {
    first_line: &'a str,
    behind: &'a str,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    // Text outside and inside of blocks alternates.
    let parts: Vec<_> = text.split("\n```").collect();
    let pairs = parts.get(1..).unwrap_or_default().chunks(2).filter_map(|pair| Some((*pair.first()?, *pair.get(1)?)));
    let copied = pairs.filter_map(|(block, behind)| {
        let (kind, inside) = block.split_once('\n')?;
        let behind =
            behind.trim_start().strip_prefix("<!-- ").and_then(|rest| rest.split(" -->").next()).unwrap_or_default();
        KINDS.contains(&kind).then(|| Block { first_line: inside.lines().next().unwrap_or_default(), behind })
    });
    copied.collect()
}

/// The problem of the comment after a block, if it has one.
fn problem(document: &str, behind: &str, text: impl Fn(&str) -> String) -> Option<&'static str> {
    if behind.starts_with("Not run by a test: ") || behind.starts_with("Not run by a test, as ") {
        return None;
    }
    if !behind.starts_with("Run by `tests/") {
        return Some("neither the test that runs it nor why none does");
    }
    // The first sentence makes the claim, as the tests parse it (tests/direct/direct/blocks.rs).
    let ends = [". ", ".\n", "; ", ";\n"].into_iter().filter_map(|end| behind.find(end));
    let claim = &behind[..ends.min().unwrap_or(behind.len())];
    let named = claim.split('`').skip(1).step_by(2).filter(|name| name.starts_with("tests/"));
    let mut takes_it = named.map(|name| match name.split_once("::") {
        Some((file, test)) => {
            let text: String = text(file).split_whitespace().collect();
            let takes = format!("blocks(\"{document}\",\"{test}\"");
            text.contains(&format!("fn{test}()")) && text.contains(&takes)
        }
        None => text(name).contains(document),
    });
    if takes_it.all(|each| each) { None } else { Some("the test does not take it from the document") }
}

#[test]
fn documented_command_blocks_are_tested_or_exempted() {
    let read = |name: &str| std::fs::read_to_string(files::root().join(name)).unwrap_or_default();
    let (mut count, mut found) = (0, Vec::new());
    for document in files::of_kind("md") {
        for block in blocks(&document.text) {
            count += 1;
            let problem = problem(&document.name, block.behind, read);
            found.extend(problem.map(|problem| format!("{}: {}: {problem}", document.name, block.first_line)));
        }
    }
    assert!(count > 40, "the blocks were not found");
    assert_none("blocks of commands that no test runs and no comment explains", &found);
}

#[test]
fn untested_command_block_is_reported() {
    let text =
        "a\n\n```sh\nls\n```\n\n<!-- Run by `tests/a.rs::b`. -->\n\n```text\nc\n```\n\n```yaml\nd: 1\n```\n\nNext.\n";
    let behind: Vec<_> = blocks(text).iter().map(|block| (block.first_line, block.behind)).collect();
    assert_eq!(behind, [("ls", "Run by `tests/a.rs::b`."), ("d: 1", "")]);
    let takes = |_: &str| "fn b() { let [a] = blocks(\"a.md\", \"b\"); }".to_owned();
    let judged = |document: &str, behind: &str| problem(document, behind, takes);
    assert_eq!(judged("a.md", "Run by `tests/a.rs::b`."), None);
    assert_eq!(judged("a.md", "Run by `tests/a.rs::b`. See `tests/a.rs::c`."), None);
    assert_eq!(judged("a.md", "Not run by a test: it takes hours."), None);
    for (document, behind) in [
        ("b.md", "Run by `tests/a.rs::b`."),
        ("a.md", "Run by `tests/a.rs::b` and `tests/a.rs::c`."),
        ("b.md", "Run by `tests/b.py`."),
        ("a.md", ""),
        ("a.md", "Not run by a test."),
    ] {
        assert!(judged(document, behind).is_some(), "{document}: {behind}");
    }
}
