//! Rooms of the daemon import only those that the layers of ARCHITECTURE.md allow, and dependencies among crates follow
//! the same rule.

use crate::assert_none;
use crate::files;
use crate::source::{Kind, Source, is};

/// The rooms of the daemon, from the bottom up. A room may import only itself and rooms of lower layers.
const LAYERS: [&[&str]; 9] = [
    &["net", "wire"],
    &["cache", "upstream"],
    &["feeds", "preflight"],
    &["auth", "reflect"],
    &["listing"],
    &["admin", "serve"],
    &["config"],
    &["app"],
    &["cli"],
];

/// The crates, with their permitted dependencies outside of tests. A tool that measures or judges the daemon shares no
/// logic with it, so only `fanoutctl`, which starts the daemon, depends on it.
const CRATES: [(&str, &[&str]); 9] = [
    ("base", &[]),
    ("kubeapi", &[]),
    ("http2", &["base"]),
    ("probe", &["base"]),
    ("demo", &["base", "kubeapi"]),
    ("bench", &["base", "kubeapi", "probe"]),
    ("verify", &["base", "probe"]),
    ("kube-fanout", &["base", "http2", "kubeapi"]),
    ("fanoutctl", &["base", "bench", "demo", "kube-fanout", "kubeapi", "probe", "verify"]),
];

/// Forbidden imports of lower layers: the importing room, the imported room, and the reason.
const NEVER: [(&str, &str, &str); 2] = [
    ("serve", "reflect", "a request asks for a feed through feeds::FeedRegistry, and nothing else goes up from it"),
    ("admin", "upstream", "a probe must not depend on upstream"),
];

/// A module at the root of the crate, as a line of a file names it.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    line: usize,
    module: String,
}

/// The crates of this repository that a manifest names as dependencies, outside of tests.
fn dependencies(manifest: &str) -> Vec<&str> {
    let sections = manifest.split("\n[").filter(|section| section.starts_with("dependencies]"));
    let names = sections.flat_map(str::lines).filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| CRATES.iter().any(|(own, _)| own == name)).collect()
}

#[test]
fn crates_have_only_allowed_dependencies() {
    let mut found = Vec::new();
    for (name, allowed) in CRATES {
        let file = if name == "kube-fanout" { "Cargo.toml".to_owned() } else { format!("crates/{name}/Cargo.toml") };
        let manifest = files::text(&file);
        let dependencies = dependencies(&manifest);
        assert!(allowed.is_empty() || !dependencies.is_empty(), "{file} has no dependencies that are read");
        let wrong = dependencies.iter().filter(|name| !allowed.contains(name));
        found.extend(wrong.map(|dependency| format!("{file}: {dependency}")));
    }
    for file in files::all().iter().filter(|file| file.name.starts_with("crates/") && file.name.ends_with("Cargo.toml"))
    {
        if !CRATES.iter().any(|(name, _)| file.name == format!("crates/{name}/Cargo.toml")) {
            found.push(format!("{}: the crate is in no row of CRATES", file.name));
        }
    }
    assert_none("dependencies that the crates may not have", &found);
}

/// Violations in the imports of one file, with `file` as its path below `src`.
pub(crate) fn violations(file: &str, text: &str) -> Vec<String> {
    let path: Vec<_> = file.trim_end_matches(".rs").split('/').collect();
    let from = path[0];
    let source = Source::parse(file, text);
    let imports = imports(&source, if from == "lib" || from == "main" { 0 } else { path.len() });
    let wrong = |import: &Import| match allowed(from, &import.module) {
        Ok(()) => None,
        Err(why) => Some(format!("src/{file}:{}: {from} must not import {}: {why}", import.line, import.module)),
    };
    imports.iter().filter_map(wrong).collect()
}

fn allowed(from: &str, to: &str) -> Result<(), &'static str> {
    let layer = |module: &str| LAYERS.iter().position(|modules| modules.contains(&module));
    if from == to || from == "lib" || from == "main" {
        return Ok(());
    }
    if let Some((.., why)) = NEVER.iter().find(|(a, b, _)| *a == from && *b == to) {
        return Err(why);
    }
    match (layer(from), layer(to)) {
        (None, _) => Err("the importing module is in no layer (tests/tidy/imports.rs)"),
        (Some(_), None) => Err("it is no module of a layer"),
        (Some(from), Some(to)) if to < from => Ok(()),
        (Some(from), Some(to)) if to == from => Err("both are of one layer"),
        (Some(_), Some(_)) => Err("imports point down"),
    }
}

/// Every root module that is named through `crate::`, the package's name, or `super`.
fn imports(source: &Source, depth: usize) -> Vec<Import> {
    let tokens = &source.tokens;
    // Open braces, and whether each belongs to an inline module.
    let mut open: Vec<bool> = Vec::new();
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" if token.kind == Kind::Mark => open.push(at >= 2 && is(&tokens[at - 2], "mod")),
            "}" if token.kind == Kind::Mark => drop(open.pop()),
            "crate" | "kube_fanout" if source.reads(at + 1, &[":", ":"]) => found.extend(names(source, at + 3)),
            "super" if !(at >= 2 && source.reads(at - 2, &[":", ":"])) => {
                let mut next = at;
                let mut climbed = 0;
                while source.reads(next, &["super", ":", ":"]) {
                    climbed += 1;
                    next += 3;
                }
                let inline = open.iter().filter(|module| **module).count();
                if climbed > 0 && climbed >= depth + inline {
                    found.extend(names(source, next));
                }
            }
            _ => {}
        }
    }
    found
}

/// The first words of the path, or of each path of the group, at `at`.
fn names(source: &Source, at: usize) -> impl Iterator<Item = Import> {
    let path_tokens = source.imported(at).into_iter().map(|at| &source.tokens[at]);
    path_tokens.map(|token| Import { line: token.line, module: token.text.clone() })
}

#[test]
fn layer_violations_are_detected_in_every_syntax() {
    let planted = [
        ("wire/reader.rs", "use crate::cache::Event;"),
        ("wire.rs", "use crate::net::Address;"),
        ("cache/lane.rs", "use crate::{wire::Key, serve::{Door, route}, net};"),
        ("cache/lane.rs", "fn f() { let x = crate::reflect::Supervisor::new(); }"),
        ("cache/lane.rs", "use super::super::serve::Door;"),
        ("cache.rs", "use super::upstream::Client;"),
        ("cache.rs", "mod tests { use super::super::upstream::Client; }"),
        ("serve/frontend.rs", "use crate::reflect;"),
        ("novel.rs", "use crate::net::Address;"),
        ("cache/lane.rs", "use crate::novel::Thing;"),
    ];
    for (file, text) in planted {
        assert_eq!(violations(file, text).len(), 1, "{file}: {text}: {:?}", violations(file, text));
    }
}

#[test]
fn allowed_imports_and_lookalikes_are_not_reported() {
    let fine = [
        ("serve/frontend.rs", "use crate::{auth::Gate, cache::{FeedRegistry, Lease}, net, serve::route};"),
        ("serve/frontend.rs", "pub(crate) fn f() {} // crate::reflect::Supervisor"),
        ("serve/frontend.rs", "const TEXT: &str = \"crate::reflect\"; /* crate::reflect */ const C: char = '\"';"),
        ("serve/door/page.rs", "use super::super::route; mod tests { use super::*; use super::super::feed; }"),
        ("auth.rs", "mod tests { use super::*; }"),
        ("main.rs", "use kube_fanout::app::{self, Bound}; use kube_fanout::config::Arguments;"),
        ("lib.rs", "pub mod net;"),
    ];
    for (file, text) in fine {
        assert_eq!(violations(file, text), Vec::<String>::new(), "{file}: {text}");
    }
}
