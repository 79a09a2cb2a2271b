//! The document of a configuration file, and the problems of a configuration.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_path_to_error::{Segment, Track};

use super::defaults;

/// Parses the text of a configuration file.
///
/// # Errors
/// The text is not YAML; the message has the position.
pub(super) fn parse_yaml(text: &str) -> Result<Value, String> {
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Value::Object(Map::new()));
    }
    let mut root = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    drop_empty_keys(&mut root);
    Ok(root)
}

/// Removes keys without a value, such as a section in which every key is commented out.
fn drop_empty_keys(value: &mut Value) {
    if let Value::Object(entries) = value {
        entries.retain(|_, value| !value.is_null());
        entries.values_mut().for_each(drop_empty_keys);
    }
}

/// Deserializes a document over the file of defaults. Each invalid value and each unknown key is added to `problems`,
/// and its default is used instead: an invalid value is removed, and the rest is deserialized again.
pub(super) fn read<T: DeserializeOwned + Default>(mut root: Value, problems: &mut ConfigProblems) -> T {
    if !root.is_object() {
        problems.add("the file: expected a mapping of keys");
        return T::default();
    }
    let defaults = parse_yaml(defaults()).expect("the file of defaults is YAML");
    loop {
        let mut unknown = Vec::new();
        let mut track = Track::new();
        let whole = laid_over(defaults.clone(), &root);
        let tracked = serde_path_to_error::Deserializer::new(&whole, &mut track);
        let error = match serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string())) {
            Ok(read) => {
                unknown.iter().for_each(|key| problems.add(format!("{key}: unknown key")));
                return read;
            }
            Err(error) => error,
        };
        let path = track.path();
        problems.add(format!("{}: {error}", key(path.iter())));
        if take(&mut root, &path.iter().collect::<Vec<_>>()).is_none() {
            // No value was removed, so another attempt would fail in the same way.
            return T::default();
        }
    }
}

/// Merges `above` into `below`. Objects merge key by key, and other values of `above` replace those of `below`.
fn laid_over(below: Value, above: &Value) -> Value {
    match (below, above) {
        (Value::Object(mut entries), Value::Object(above)) => {
            for (key, above) in above {
                let below = entries.remove(key).unwrap_or_default();
                entries.insert(key.clone(), laid_over(below, above));
            }
            Value::Object(entries)
        }
        (_, above) => above.clone(),
    }
}

/// Returns the full name of a key, such as `limits.watches`. An item of a list has the name of the list, because its
/// index is another one after items before it were removed.
fn key<'a>(path: impl Iterator<Item = &'a Segment>) -> String {
    let name = |segment: &'a Segment| if let Segment::Map { key } = segment { Some(key.as_str()) } else { None };
    path.filter_map(name).collect::<Vec<_>>().join(".")
}

/// Removes the value at a path.
fn take(value: &mut Value, path: &[&Segment]) -> Option<Value> {
    match (value, path) {
        (Value::Object(entries), [Segment::Map { key }]) => entries.remove(key),
        (Value::Array(items), [Segment::Seq { index }]) if *index < items.len() => Some(items.remove(*index)),
        (value, [Segment::Map { key }, rest @ ..]) => take(value.get_mut(key)?, rest),
        (value, [Segment::Seq { index }, rest @ ..]) => take(value.get_mut(*index)?, rest),
        _ => None,
    }
}

/// All problems of a configuration, in the order in which they were found. Each begins with its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigProblems(Vec<String>);

impl ConfigProblems {
    pub(super) fn add(&mut self, problem: impl Into<String>) {
        self.0.push(problem.into());
    }

    /// Returns the value, or records a problem about `what`.
    pub(super) fn check<T, E: fmt::Display>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(format!("{what}: {error}"))).ok()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "the configuration has {count} problem{}", if count == 1 { "" } else { "s" })?;
        self.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
    }
}

impl std::error::Error for ConfigProblems {}
