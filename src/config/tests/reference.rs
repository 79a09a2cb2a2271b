//! Generates the descriptions of `config/example.yaml` and the table rows of docs/CONFIG.md from the types that parse the
//! file. A new key needs a line with its default first.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::config::configuration::Configuration;
use crate::config::{ConfigProblems, LogSettings, schema};
use crate::{cache, net, reflect, serve};

/// The width of a comment in the file of defaults, in columns.
const COMMENT_COLUMNS: usize = 96;

/// A key of the file, or a section of keys.
struct ConfigKey {
    /// The full name of a key, such as `limits.watches`.
    path: String,
    /// The keys of a section; empty for a key that is not a section.
    keys: Vec<Self>,
    schema: Value,
    default: Value,
}

/// Generates `config/example.yaml`.
fn generated() -> String {
    let mut text =
        "# Every key with its default. A commented-out key has no default: its value is an example.\n".to_owned();
    for key in keys() {
        key.write_yaml(&mut text, "");
    }
    text
}

/// Returns all keys, in the order of their types. The defaults are serialized as JSON text, which keeps that order.
fn keys() -> Vec<ConfigKey> {
    let schema = schema();
    keys_of("", &schema, &schema, &serde_json::to_string(&Configuration::default()).expect("JSON"))
}

fn keys_of(above: &str, root: &Value, schema: &Value, defaults: &str) -> Vec<ConfigKey> {
    let key = |(name, default): (String, Box<RawValue>)| {
        let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        let schema = &schema["properties"][&name];
        let section = schema["$ref"].as_str().and_then(|at| root.pointer(at.trim_start_matches('#')));
        let keys = section.map(|section| keys_of(&path, root, section, default.get())).unwrap_or_default();
        ConfigKey { path, keys, schema: schema.clone(), default: serde_json::from_str(default.get()).expect("JSON") }
    };
    serde_json::from_str::<Entries>(defaults).expect("an object").0.into_iter().map(key).collect()
}

/// The keys and values of a JSON object, in the order of the text.
struct Entries(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = object.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

impl ConfigKey {
    fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }

    fn attribute(&self, what: &str) -> Option<&str> {
        self.schema[what].as_str()
    }

    /// The description of the key, in one line.
    fn meaning(&self) -> String {
        self.attribute("description").unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn write_yaml(&self, text: &mut String, indent: &str) {
        let (name, below) = (self.name(), format!("{indent}  "));
        let mut comment = plain(&self.meaning());
        if let Some(default) = self.attribute("x-default") {
            let _ = write!(comment, " (default: {})", plain(default));
        }
        if indent.is_empty() {
            text.push('\n');
        }
        for line in wrapped(&comment, COMMENT_COLUMNS - indent.len()) {
            let _ = writeln!(text, "{indent}# {line}");
        }
        if !self.keys.is_empty() {
            let _ = writeln!(text, "{indent}{name}:");
            self.keys.iter().for_each(|key| key.write_yaml(text, &below));
        } else if self.default.is_null() {
            let _ = writeln!(text, "{indent}# {name}: {}", self.attribute("x-example").unwrap_or_default());
        } else {
            let _ = writeln!(text, "{indent}{name}: {}", yaml(&self.default));
        }
    }
}

/// Returns the documentation text without Markdown syntax.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    // `[label](target)` becomes the label.
    while let Some((before, after)) = rest.split_once('[') {
        plain.push_str(before);
        let Some((label, (_, behind))) =
            after.split_once("](").and_then(|(label, link)| Some((label, link.split_once(')')?)))
        else {
            plain.push('[');
            rest = after;
            continue;
        };
        plain.push_str(label);
        rest = behind;
    }
    plain.push_str(rest);
    plain.replace('`', "")
}

fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        if lines.last().is_some_and(|line| !line.is_empty() && line.len() + 1 + word.len() > columns) {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines
}

/// A scalar or a list of scalars, as YAML writes it in one line.
fn yaml(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(yaml).collect::<Vec<_>>().join(", ")),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Compares a file with its generated text. With `UPDATE=1` in the environment, writes the file instead.
fn same(file: &str, is: impl FnOnce(&str) -> String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path).expect("a file");
    let expected = is(&text);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, expected).expect("written");
    } else {
        assert!(
            text == expected,
            "{file} does not match the types: UPDATE=1 cargo test --lib config::tests::reference"
        );
    }
}

/// `1048576` with digits grouped for readers.
fn grouped(number: &Value) -> String {
    let digits = number.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join(",")
}

fn row(key: &ConfigKey) -> String {
    let schema = &key.schema;
    let words = schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let words: Vec<_> = words.map(|word| format!("`{word}`")).collect();
    // The default or the words show the type of most keys.
    let kind =
        key.attribute("x-type").unwrap_or_else(|| match schema["type"].as_str().or(schema["type"][0].as_str()) {
            _ if !words.is_empty() || !key.default.is_null() => "",
            Some("string") if schema["format"] == "duration" => "duration",
            Some("string") => "path",
            Some("integer") => "integer",
            other => panic!("{}: {other:?} has no word in the table", key.path),
        });
    let stated = match &key.default {
        Value::Null => String::new(),
        default => format!("`{}`", yaml(default)),
    };
    let default = key.attribute("x-default").map_or(stated, str::to_owned);
    let within = match &schema["maximum"] {
        Value::Null => words.join(", "),
        max => format!("{}–{}", grouped(&schema["minimum"]), grouped(max)),
    };
    let bounds = key.attribute("x-bounds").map_or(within, str::to_owned);
    let [kind, default, bounds] = [kind, &default, &bounds].map(cell);
    format!("| `{}` |{kind}|{default}|{bounds}| {} |", key.path, key.meaning())
}

/// The text of a table's cell, which is one blank if there is none.
fn cell(text: &str) -> String {
    if text.is_empty() { " ".to_owned() } else { format!(" {text} ") }
}

fn leaves(keys: Vec<ConfigKey>) -> Vec<ConfigKey> {
    let below = |key: ConfigKey| if key.keys.is_empty() { vec![key] } else { leaves(key.keys) };
    keys.into_iter().flat_map(below).collect()
}

#[test]
fn config_document_tables_match_types() {
    let keys = leaves(keys());
    assert!(keys.len() > 50, "the keys were not found");
    same("docs/CONFIG.md", |text| {
        let mut missing: Vec<_> = keys.iter().map(|key| key.path.as_str()).collect();
        let line = |line: &str| {
            let Some((name, _)) = line.strip_prefix("| `").and_then(|line| line.split_once("` |")) else {
                return line.to_owned();
            };
            let Some(key) = keys.iter().find(|key| key.path == name) else {
                assert!(line.split('|').count() < 7, "{name} is no key");
                return line.to_owned();
            };
            missing.retain(|path| *path != name);
            row(key)
        };
        let lines: Vec<_> = text.lines().map(line).collect();
        assert_eq!(missing, Vec::<&str>::new(), "keys without a row");
        lines.join("\n") + "\n"
    });
}

#[test]
fn example_yaml_has_descriptions_from_types() {
    same("config/example.yaml", |_| generated());
}

#[test]
fn example_yaml_has_defaults_of_modules() {
    let file = Configuration::default();
    let memory = file.memory();
    let lists_bytes_max = memory.lists_bytes();
    let limits = serve::ConcurrencyConfig { lists_bytes_max, ..serve::ConcurrencyConfig::default() };
    assert_eq!(file.serve(&memory), serve::ServeConfig { limits, ..serve::ServeConfig::default() });
    let memory_bytes_max = memory.charged_bytes();
    assert_eq!(file.cache(&memory), cache::CacheConfig { memory_bytes_max, ..cache::CacheConfig::default() });
    assert_eq!(file.reflect(), reflect::ReflectConfig::default());
    assert_eq!(file.connections(), net::ConnectionLimits::default());
    let mut problems = ConfigProblems::default();
    assert_eq!((file.log(&mut problems).level, problems.is_empty()), (LogSettings::default().level, true));
}

#[test]
fn schema_has_bounds_enums_and_forbids_unknown_keys() {
    let schema = schema();
    let limits = &schema["$defs"]["LimitsSection"];
    assert_eq!(limits["properties"]["watches"]["maximum"], 10_000_000);
    assert_eq!((&limits["additionalProperties"], &schema["additionalProperties"]), (&false.into(), &false.into()));
    assert!(schema["properties"]["auth"].to_string().contains("delegated"), "{}", schema["properties"]["auth"]);
}
