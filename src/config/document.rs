use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment, Track};
use serde_saphyr::Spanned;

use super::{ConfigProblems, TextPosition};

/// A YAML document with the position of each of its values.
///
/// It is deserialized as a whole. Every invalid value is reported, not only the first: the invalid value is removed,
/// and the rest is deserialized again.
#[derive(Debug, Clone)]
pub(super) struct YamlDocument {
    root: YamlNode,
}

/// A YAML value and its position.
#[derive(Debug, Clone)]
struct YamlNode {
    at: TextPosition,
    content: YamlContent,
}

#[derive(Debug, Clone)]
enum YamlContent {
    Scalar(Value),
    Sequence(Vec<YamlNode>),
    /// A mapping: each key with its position and its value.
    Mapping(Vec<(String, TextPosition, YamlNode)>),
}

impl YamlDocument {
    /// Parses the text.
    ///
    /// # Errors
    /// The text is not YAML; the message has the position.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self {
                root: YamlNode { at: TextPosition { line: 1, column: 1 }, content: YamlContent::Mapping(Vec::new()) },
            });
        }
        let root = serde_saphyr::from_str::<Spanned<YamlContent>>(text).map_err(|error| error.to_string())?;
        Ok(Self { root: root.into() })
    }

    /// Deserializes the document. Each invalid value and each unknown key is added to `problems`, and its default is
    /// used instead.
    pub(super) fn read<T: DeserializeOwned + Default>(mut self, problems: &mut ConfigProblems) -> T {
        if !matches!(self.root.content, YamlContent::Mapping(_)) {
            problems.add_at(self.root.at, "the file: expected a mapping of keys");
            return T::default();
        }
        loop {
            let mut unknown = BTreeSet::new();
            let mut track = Track::new();
            let value = self.root.value();
            let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
            let mut note = |path: serde_ignored::Path<'_>| {
                unknown.insert(path.to_string());
            };
            match serde_ignored::deserialize(tracked, &mut note) {
                Ok(read) => {
                    for key in unknown {
                        let at = self.root.find(&key.split('.').collect::<Vec<_>>());
                        problems.add_at(at.unwrap_or(self.root.at), format!("{key}: unknown key"));
                    }
                    return read;
                }
                Err(error) => {
                    let path = track.path();
                    let (key, removed) = (path.to_string(), self.root.take(&keys(&path)));
                    problems.add_at(removed.unwrap_or(self.root.at), format!("{key}: {error}"));
                    if removed.is_none() {
                        // No value was removed, so another attempt would fail in the same way.
                        return T::default();
                    }
                }
            }
        }
    }
}

/// Returns the keys and sequence indexes that lead to a value.
fn keys(path: &Path) -> Vec<String> {
    let name = |segment: &Segment| match segment {
        Segment::Map { key } => Some(key.clone()),
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Enum { .. } | Segment::Unknown => None,
    };
    path.iter().filter_map(name).collect()
}

impl YamlNode {
    fn value(&self) -> Value {
        match &self.content {
            YamlContent::Scalar(value) => value.clone(),
            YamlContent::Sequence(items) => Value::Array(items.iter().map(Self::value).collect()),
            YamlContent::Mapping(entries) => {
                // A key without a value, such as a section in which every key is commented out, counts as absent.
                let present = entries.iter().filter(|(.., node)| !node.is_null());
                Value::Object(present.map(|(key, _, node)| (key.clone(), node.value())).collect::<Map<_, _>>())
            }
        }
    }

    fn is_null(&self) -> bool {
        matches!(self.content, YamlContent::Scalar(Value::Null))
    }

    /// Returns the position of the last key of a path.
    fn find(&self, path: &[&str]) -> Option<TextPosition> {
        let (key, rest) = path.split_first()?;
        match &self.content {
            YamlContent::Mapping(entries) => {
                let (_, at, node) = entries.iter().find(|(name, ..)| name == key)?;
                if rest.is_empty() { Some(*at) } else { node.find(rest) }
            }
            YamlContent::Sequence(items) => items.get(key.parse::<usize>().ok()?)?.find(rest),
            YamlContent::Scalar(_) => None,
        }
    }

    /// Removes the value at a path, and returns its position.
    fn take(&mut self, path: &[String]) -> Option<TextPosition> {
        let (key, rest) = path.split_first()?;
        match &mut self.content {
            YamlContent::Mapping(entries) => {
                let at = entries.iter().position(|(name, ..)| name == key)?;
                if rest.is_empty() { Some(entries.remove(at).2.at) } else { entries[at].2.take(rest) }
            }
            YamlContent::Sequence(items) => {
                let at = key.parse::<usize>().ok().filter(|at| *at < items.len())?;
                if rest.is_empty() { Some(items.remove(at).at) } else { items[at].take(rest) }
            }
            YamlContent::Scalar(_) => None,
        }
    }
}

impl From<Spanned<YamlContent>> for YamlNode {
    fn from(spanned: Spanned<YamlContent>) -> Self {
        let at = spanned.referenced;
        Self { at: TextPosition { line: at.line(), column: at.column() }, content: spanned.value }
    }
}

impl<'de> Deserialize<'de> for YamlContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(YamlContentVisitor)
    }
}

struct YamlContentVisitor;

impl<'de> Visitor<'de> for YamlContentVisitor {
    type Value = YamlContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar, a sequence or a mapping with text for keys")
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlContent, E> {
        Ok(YamlContent::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlContent, E> {
        Ok(YamlContent::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlContent, E> {
        Ok(YamlContent::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlContent, E> {
        Ok(YamlContent::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlContent, E> {
        Ok(YamlContent::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<YamlContent, E> {
        Ok(YamlContent::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<YamlContent, E> {
        Ok(YamlContent::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlContent, D::Error> {
        YamlContent::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlContent, A::Error> {
        let mut nodes = Vec::new();
        while let Some(item) = items.next_element::<Spanned<YamlContent>>()? {
            nodes.push(item.into());
        }
        Ok(YamlContent::Sequence(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlContent, A::Error> {
        let mut nodes = Vec::new();
        while let Some((key, value)) = entries.next_entry::<Spanned<String>, Spanned<YamlContent>>()? {
            let at = TextPosition { line: key.referenced.line(), column: key.referenced.column() };
            nodes.push((key.value, at, value.into()));
        }
        Ok(YamlContent::Mapping(nodes))
    }
}
