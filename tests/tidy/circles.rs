//! Imports have no cycles, so that files and folders can be read in order.
//!
//! A file `foo.rs` and its folder `foo/` are one node among their siblings. Imports between the two are not checked,
//! because the file is the folder's interface.

use std::collections::{BTreeMap, BTreeSet};

use crate::assert_none;
use crate::files::{self, File};
use crate::source::{Kind, Source, is};

/// Files that may import each other: one grammar, parsed from several ends.
const KNOTS: [&[&str]; 1] = [&["wire"]];

/// The names that a facade re-exports, each with the file that defines it.
type Faces = BTreeMap<String, BTreeMap<String, String>>;

/// A file's path as a module: `src/serve/watch/session.rs` is `serve/session`, `crates/demo/src/store.rs` is
/// `crates/demo/store`.
fn module(file: &File) -> Option<String> {
    let (folder, path) = file.module()?;
    let name = path.strip_suffix(".rs")?;
    Some(match (folder, name) {
        ("", name) => name.to_owned(),
        (folder, "lib" | "main") => folder.to_owned(),
        (folder, name) => format!("{folder}/{name}"),
    })
}

/// The re-exports of each facade: `pub use lane::{Lane, Step as LaneStep};`.
fn faces(sources: &BTreeMap<String, Source>) -> Faces {
    let mut found = Faces::new();
    for (module, source) in sources {
        let tokens = &source.tokens;
        for at in (0..tokens.len()).filter(|at| is(&tokens[*at], "use")) {
            let is_public = at > 0 && (is(&tokens[at - 1], "pub") || is(&tokens[at - 1], ")"));
            let Some(child) = tokens.get(at + 1).map(|token| format!("{module}/{}", token.text)) else { continue };
            if !is_public || !sources.contains_key(&child) || !source.reads(at + 2, &[":", ":"]) {
                continue;
            }
            let until = (at..tokens.len()).find(|at| is(&tokens[*at], ";")).unwrap_or(tokens.len());
            let names = tokens[at + 4..until].iter().filter(|token| token.kind == Kind::Word);
            let handed = found.entry(module.clone()).or_default();
            handed.extend(names.map(|name| (name.text.clone(), child.clone())));
        }
    }
    found
}

/// The files that a file imports from, through `super::`, `self::` or the crate's path.
fn imports(module: &str, source: &Source, sources: &BTreeMap<String, Source>, faces: &Faces) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let tokens = &source.tokens;
    for at in (0..tokens.len()).filter(|at| !tokens[*at].test && source.reads(at + 1, &[":", ":"])) {
        let is_climbing = at >= 2 && source.reads(at - 2, &[":", ":"]);
        let (mut base, mut next) = match tokens[at].text.as_str() {
            "super" if !is_climbing => (parent(module), at + 3),
            "crate" => (root(module), at + 3),
            _ => continue,
        };
        while source.reads(next, &["super", ":", ":"]) {
            (base, next) = (parent(&base), next + 3);
        }
        for mut word in source.imported(next) {
            let mut path = base.clone();
            // As long as the words name files.
            while let Some(token) = tokens.get(word).filter(|token| token.kind == Kind::Word) {
                let child = if path.is_empty() { token.text.clone() } else { format!("{path}/{}", token.text) };
                if sources.contains_key(&child) {
                    path = child;
                } else {
                    path = faces.get(&path).and_then(|names| names.get(&token.text)).cloned().unwrap_or(path);
                    break;
                }
                if !source.reads(word + 1, &[":", ":"]) {
                    break;
                }
                word += 3;
            }
            found.insert(path);
        }
    }
    let is_of_one_house = |other: &String| {
        let (above, below) = (format!("{other}/"), format!("{module}/"));
        other != module && !module.starts_with(&above) && !other.starts_with(&below) && !other.is_empty()
    };
    found.into_iter().filter(is_of_one_house).collect()
}

/// Root of the crate that contains a module.
fn root(module: &str) -> String {
    let Some(rest) = module.strip_prefix("crates/") else { return String::new() };
    format!("crates/{}", rest.split('/').next().unwrap_or_default())
}

fn parent(module: &str) -> String {
    module.rsplit_once('/').map_or_else(String::new, |(parent, _)| parent.to_owned())
}

/// All direct and indirect imports of a file.
fn below<'a>(from: &'a str, edges: &'a BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut left: Vec<&str> = vec![from];
    while let Some(module) = left.pop() {
        for next in edges.get(module).into_iter().flatten() {
            if seen.insert(next.as_str()) {
                left.push(next);
            }
        }
    }
    seen
}

/// The edge between siblings that an import means: the first components in which the two paths differ. `None` if one
/// contains the other.
fn between_siblings(from: &str, to: &str) -> Option<(String, String)> {
    let (from, to): (Vec<_>, Vec<_>) = (from.split('/').collect(), to.split('/').collect());
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let node = |path: &[&str]| (path.len() > common).then(|| path[..=common].join("/"));
    Some((node(&from)?, node(&to)?))
}

/// The imports of files, and those that they mean for the folders that contain the files.
fn with_folders(files: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    let mut edges = files.clone();
    for (from, imported) in files {
        for (from, to) in imported.iter().filter_map(|to| between_siblings(from, to)) {
            edges.entry(from).or_default().insert(to);
        }
    }
    edges
}

/// The cycles, each once, as the files and folders that import each other directly or indirectly.
fn circles<'a>(files: impl IntoIterator<Item = &'a File>) -> Vec<String> {
    let named = files.into_iter().filter_map(|file| Some((module(file)?, Source::parse(&file.name, &file.text))));
    let sources: BTreeMap<String, Source> = named.collect();
    let faces = faces(&sources);
    let edges: BTreeMap<_, _> =
        sources.iter().map(|(name, source)| (name.clone(), imports(name, source, &sources, &faces))).collect();
    let edges = with_folders(&edges);
    let reach: BTreeMap<&str, BTreeSet<&str>> = edges.keys().map(|name| (name.as_str(), below(name, &edges))).collect();
    let mut found = BTreeSet::new();
    for (name, seen) in reach.iter().filter(|(name, seen)| seen.contains(**name)) {
        let circle: Vec<_> = seen.iter().filter(|other| reach[**other].contains(name)).copied().collect();
        let is_a_knot =
            |knot: &&[&str]| circle.iter().all(|file| knot.iter().any(|of| file.split('/').next() == Some(of)));
        if !KNOTS.iter().any(is_a_knot) {
            found.insert(circle.join(" <-> "));
        }
    }
    found.into_iter().collect()
}

#[test]
fn files_have_no_import_cycles() {
    let files = files::rust();
    assert_none("files that import each other in a circle", &circles(&files));
}

#[test]
fn import_cycles_are_detected_in_every_syntax() {
    let file = |name: &str, text: &str| File { name: name.into(), text: text.into() };
    let below = "use super::b::B;";
    for (what, other) in [
        ("by its path", "use super::a::A;"),
        ("in a group", "use super::{c::C, a::{A, D}};"),
        ("through the face", "use super::A;"),
        ("from the crate", "fn f() { crate::serve::a::A::new(); }"),
        ("on the way", "use super::c::C;"),
    ] {
        let face = "mod a; mod b; mod c; pub use a::{A, D}; pub(crate) use b::B;";
        let third = if what == "on the way" { "use super::a::A;" } else { "" };
        let files = [
            file("src/serve.rs", face),
            file("src/serve/a.rs", below),
            file("src/serve/b.rs", other),
            file("src/serve/c.rs", third),
        ];
        assert_eq!(circles(&files).len(), 1, "{what}: {:?}", circles(&files));
    }
    let files = [
        file("crates/x/src/lib.rs", "mod a; mod b; pub use a::A;"),
        file("crates/x/src/a.rs", "use crate::b::B;"),
        file("crates/x/src/b.rs", "use crate::A;"),
    ];
    assert_eq!(circles(&files), ["crates/x/a <-> crates/x/b"]);
    let folders = [
        file("src/serve.rs", "mod a; mod b;"),
        file("src/serve/b.rs", "mod v; mod w;"),
        file("src/serve/a.rs", "mod x; mod y;"),
        file("src/serve/a/x.rs", "use crate::serve::b::v::V;"),
        file("src/serve/a/y.rs", ""),
        file("src/serve/b/v.rs", ""),
        file("src/serve/b/w.rs", "use crate::serve::a::y::Y;"),
    ];
    assert_eq!(circles(&folders), ["serve/a <-> serve/b"]);
    let fine = [
        file("src/serve.rs", "mod a; mod b; pub use a::A; use b::B;"),
        file("src/serve/a.rs", "use super::b::B; use super::Mode; mod own; use self::own::Own;"),
        file("src/serve/a/own.rs", "use super::Depth; use super::super::b::B;"),
        file("src/serve/b.rs", "// use super::a::A;\n#[cfg(test)] mod tests { use super::super::a::A; }"),
    ];
    assert_eq!(circles(&fine), Vec::<String>::new());
}
