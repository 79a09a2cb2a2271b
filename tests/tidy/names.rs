//! A public name has one meaning, so that a reader knows a type without looking at the imports.

use std::collections::BTreeMap;

use crate::assert_none;
use crate::files::{self, File};
use crate::source::{Kind, Source, is};

/// Keywords before the name of a defined type.
const DEFINES: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Where types that other files can see are defined, by name.
fn public_types<'a>(files: impl IntoIterator<Item = &'a File>) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let source = Source::parse(&file.name, &file.text);
        for (at, token) in source.tokens.iter().enumerate().filter(|(_, token)| is(token, "pub") && !token.test) {
            let defines = after_visibility(&source, at);
            let [keyword, name] = [defines, defines + 1].map(|at| source.tokens.get(at));
            let (Some(keyword), Some(name)) = (keyword, name) else { continue };
            if DEFINES.iter().any(|word| is(keyword, word)) && name.kind == Kind::Word {
                found.entry(name.text.clone()).or_default().push(format!("{}:{}", file.name, token.line));
            }
        }
    }
    found
}

/// The position after `pub`, `pub(crate)` or `pub(in path)`.
fn after_visibility(source: &Source, at: usize) -> usize {
    if !source.reads(at + 1, &["("]) {
        return at + 1;
    }
    let closing = (at..source.tokens.len()).find(|at| is(&source.tokens[*at], ")"));
    closing.map_or(source.tokens.len(), |closing| closing + 1)
}

/// Names of several types. `Error` is each module's own, as is common in Rust.
fn shared(types: BTreeMap<String, Vec<String>>) -> Vec<String> {
    let shared = types.into_iter().filter(|(name, places)| name != "Error" && places.len() > 1);
    shared.map(|(name, places)| format!("{name}: {}", places.join(", "))).collect()
}

#[test]
fn public_type_names_are_unique() {
    let files = files::rust();
    let types = public_types(files.iter().filter(|file| file.is_source()));
    assert!(types.len() > 300, "the types were not found: {}", types.len());
    assert_none("names of several types (CONTRIBUTING.md, \"Names\")", &shared(types));
}

#[test]
fn duplicate_public_type_name_is_reported() {
    let file = |name: &str, text: &str| File { name: name.into(), text: text.into() };
    let files = [
        file("src/a.rs", "pub struct Lane; pub(super) enum Step {} struct Own; pub type Error = u8;"),
        file("src/b.rs", "pub(in crate::b) trait Lane {} pub fn step() {} struct Own; pub enum Error {}"),
        file(
            "src/c.rs",
            "// pub struct Lane\nconst A: &str = \"pub enum Step\"; #[cfg(test)] mod tests { pub struct Step; }",
        ),
    ];
    assert_eq!(shared(public_types(&files)), ["Lane: src/a.rs:1, src/b.rs:1"]);
}
