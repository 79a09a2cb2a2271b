//! The house rules as tests: the promises of CONTRIBUTING.md and ARCHITECTURE.md about every file.
//!
//! They have no dependencies and know the crate only by its text, so that they also run without a build: `make tidy`.

#[path = "tidy/blocks.rs"]
mod blocks;
#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/citations.rs"]
mod citations;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/filters.rs"]
mod filters;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/journeys.rs"]
mod journeys;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/patches.rs"]
mod patches;
#[path = "tidy/source.rs"]
mod source;
#[path = "tidy/statuses.rs"]
mod statuses;
#[path = "tidy/systems.rs"]
mod systems;

use files::File;
use source::{Kind, Source, is};

const FILE_LINES_MAX: usize = 600;

/// Fails with all violations, one per line.
fn assert_none(what: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{what}:\n  {}\n", violations.join("\n  "));
}

/// Violations that `find` reports in all Rust files, as `file:line: …`.
fn in_rust(find: impl Fn(&File, &Source) -> Vec<(usize, String)>) -> Vec<String> {
    let checked = |file: &File| {
        let found = find(file, &Source::parse(&file.name, &file.text));
        found.into_iter().map(|(line, what)| format!("{}:{line}: {what}", file.name)).collect::<Vec<_>>()
    };
    files::rust().iter().flat_map(checked).collect()
}

#[test]
fn imports_follow_the_layers() {
    let of = |file: &File| file.name.strip_prefix("src/").map(|name| imports::violations(name, &file.text));
    let violations: Vec<_> = files::rust().iter().filter_map(of).flatten().collect();
    assert_none("imports that the layers do not allow (ARCHITECTURE.md, \"Layers\")", &violations);
}

#[test]
fn linux_only_code_has_a_cfg_attribute() {
    let of = |file: &File| {
        let found = if file.is_source() { systems::violations(&file.name, &file.text) } else { Vec::new() };
        found.into_iter().map(|(line, what)| format!("{}:{line}: {what}", file.name)).collect::<Vec<_>>()
    };
    let violations: Vec<_> = files::rust().iter().flat_map(of).collect();
    assert_none("what only Linux has, and every system would be given", &violations);
}

/// A longer file has more than one idea. rustfmt limits the length of lines, and clippy's `too_many_lines` that of
/// functions.
#[test]
fn rust_files_stay_within_the_line_limit() {
    let violations = in_rust(|file, _| {
        let lines = file.text.lines().count();
        (lines > FILE_LINES_MAX)
            .then(|| (lines, format!("{lines} lines; at most {FILE_LINES_MAX}")))
            .into_iter()
            .collect()
    });
    assert_none("split what is too long", &violations);
}

#[test]
fn code_has_no_todo_dbg_ignore_or_should_panic() {
    let banned: [(&[&str], &str); 5] = [
        (&["todo", "!"], "todo!: finish it, or leave it out"),
        (&["unimplemented", "!"], "unimplemented!: finish it, or leave it out"),
        (&["dbg", "!"], "dbg!"),
        (&["#", "[", "ignore"], "#[ignore]: a test that is not run tests nothing; assert what is true today"),
        (&["should_panic"], "should_panic: assert the error that is returned"),
    ];
    let violations = in_rust(|_, source| {
        let found = banned.iter().flat_map(|(banned_tokens, why)| {
            let at = (0..source.tokens.len()).filter(|at| source.reads(*at, banned_tokens));
            at.map(|at| (source.tokens[at].line, (*why).to_owned())).collect::<Vec<_>>()
        });
        found.collect()
    });
    assert_none("not in this repository", &violations);
}

#[test]
fn shipped_code_does_not_call_unwrap() {
    let violations = in_rust(|file, source| {
        if !file.is_source() {
            return Vec::new();
        }
        let at = (0..source.tokens.len()).filter(|at| source.reads(*at, &[".", "unwrap", "("]));
        let shipped = at.filter(|at| !source.tokens[*at].test);
        shipped.map(|at| (source.tokens[at].line, "expect(\"<invariant>\"), or return the error".to_owned())).collect()
    });
    assert_none("unwrap() outside of tests", &violations);
}

/// The shipped code is the tested code: tests pass their own limits and clocks to it, and it does not check for tests.
#[test]
fn shipped_code_does_not_depend_on_cfg_test() {
    let violations = in_rust(|file, source| {
        if !file.is_source() {
            return Vec::new();
        }
        let asks: [&[&str]; 2] = [&["cfg", "!", "(", "test"], &["cfg", "(", "not", "(", "test"]];
        let at =
            (0..source.tokens.len()).filter(|at| asks.iter().any(|banned_tokens| source.reads(*at, banned_tokens)));
        let shipped = at.filter(|at| !source.tokens[*at].test);
        shipped.map(|at| (source.tokens[at].line, "make it a value that tests give".to_owned())).collect()
    });
    assert_none("product code that is another one in tests", &violations);
}

#[test]
fn metric_macros_are_used_only_in_metrics_modules() {
    let macros = ["counter", "gauge", "histogram"];
    let violations = in_rust(|file, source| {
        let theirs = ["/metrics.rs", "/exporter.rs"].iter().any(|end| file.name.ends_with(end));
        if theirs || !file.is_source() {
            return Vec::new();
        }
        let at = (0..source.tokens.len()).filter(|at| macros.iter().any(|name| source.reads(*at, &[name, "!"])));
        at.map(|at| (source.tokens[at].line, "only in the module's metrics.rs".to_owned())).collect()
    });
    assert_none("metric macros", &violations);
}

#[test]
fn files_contain_no_machine_specific_path() {
    // Split, so that this file may contain them.
    let banned = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Us", "ers/"]].map(|pieces| pieces.concat());
    let mut violations = Vec::new();
    for file in files::all() {
        for (at, line) in file.text.lines().enumerate() {
            let named = banned.iter().find(|path| names_path(line, path));
            violations.extend(named.map(|path| format!("{}:{}: {path}", file.name, at + 1)));
        }
    }
    assert_none("paths of one machine", &violations);
}

/// Whether `line` contains the absolute path `path`. Inside a longer path or a URL it does not count.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "-_.$}".contains(c)))
}

#[test]
fn packages_are_pinned_and_from_public_registries() {
    let lock = files::text("Cargo.lock");
    let source = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    let foreign = lock.lines().filter(|line| line.starts_with("source = ") && *line != source);
    assert_none("Cargo.lock", &foreign.map(str::to_owned).collect::<Vec<_>>());
    let requirements = files::text("tests/python/requirements.txt");
    let pinned = |line: &&str| !line.starts_with('#') && !line.trim().is_empty() && !line.contains("==");
    assert_none(
        "requirements.txt: pinned packages only",
        &requirements.lines().filter(pinned).map(str::to_owned).collect::<Vec<_>>(),
    );
    let package = files::text("tests/node/package.json");
    let dependencies = package.split_once("\"dependencies\": {").and_then(|(_, rest)| rest.split_once('}'));
    let (dependencies, _) = dependencies.expect("tests/node/package.json has dependencies");
    let version = |line: &str| line.rsplit('"').nth(1).unwrap_or_default().to_owned();
    let loose = |line: &&str| !line.trim().is_empty() && !version(line).starts_with(|c: char| c.is_ascii_digit());
    assert_none(
        "package.json: pinned packages only",
        &dependencies.lines().filter(loose).map(str::to_owned).collect::<Vec<_>>(),
    );
}

#[test]
fn tokenizer_distinguishes_strings_and_comments_from_code() {
    let text =
        r##"fn a<'x>(c: char) { let t = r#"fn b() { "#; let q = '"'; let e = '\''; } /* fn c() { /* */ } */ fn d();"##;
    let source = Source::parse("src/a.rs", text);
    let names = source.functions();
    assert_eq!(names, ["a"]);
    let texts: Vec<_> =
        source.tokens.iter().filter(|token| token.kind == Kind::Text).map(|t| t.text.as_str()).collect();
    assert_eq!(texts, ["fn b() { "]);
    let tests = Source::parse("src/a.rs", "fn a() {}\n#[cfg(test)]\nmod tests { fn b() {} }\nfn c() {}");
    let test: Vec<_> = tests.tokens.iter().filter(|token| is(token, "fn")).map(|token| token.test).collect();
    assert_eq!(test, [false, true, false]);
}

#[test]
fn machine_path_check_ignores_longer_paths() {
    let path = ["/wo", "rk/"].concat();
    assert!(names_path(&format!("cd {path}x"), &path));
    assert!(!names_path(&format!("https://example.com{path}x"), &path));
    assert!(!names_path(&format!("$HOME{path}x"), &path));
}
