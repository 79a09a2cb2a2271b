use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment, Track};
use serde_saphyr::Spanned;

use super::{Problems, TextPosition};

/// A YAML document with the position of each of its values.
///
/// It is deserialized as a whole. Every invalid value is reported, not only the first: the invalid value is removed,
/// and the rest is deserialized again.
#[derive(Debug, Clone)]
pub(super) struct YamlDocument {
    root: Node,
}

/// A YAML value and its position.
#[derive(Debug, Clone)]
struct Node {
    at: TextPosition,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Scalar(Value),
    Sequence(Vec<Node>),
    /// A mapping: each key with its position and its value.
    Mapping(Vec<(String, TextPosition, Node)>),
}

impl YamlDocument {
    /// Parses the text.
    ///
    /// # Errors
    /// The text is not YAML; the message has the position.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self {
                root: Node { at: TextPosition { line: 1, column: 1 }, content: Content::Mapping(Vec::new()) },
            });
        }
        let root = serde_saphyr::from_str::<Spanned<Content>>(text).map_err(|error| error.to_string())?;
        Ok(Self { root: root.into() })
    }

    /// Deserializes the document. Each invalid value and each unknown key is added to `problems`, and its default is
    /// used instead.
    pub(super) fn read<T: DeserializeOwned + Default>(mut self, problems: &mut Problems) -> T {
        if !matches!(self.root.content, Content::Mapping(_)) {
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
                    let (key, taken) = (path.to_string(), self.root.take(&keys(&path)));
                    problems.add_at(taken.unwrap_or(self.root.at), format!("{key}: {error}"));
                    if taken.is_none() {
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

impl Node {
    fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::Sequence(items) => Value::Array(items.iter().map(Self::value).collect()),
            Content::Mapping(entries) => {
                // A key without a value, such as a section in which every key is commented out, counts as absent.
                let said = entries.iter().filter(|(.., node)| !node.is_null());
                Value::Object(said.map(|(key, _, node)| (key.clone(), node.value())).collect::<Map<_, _>>())
            }
        }
    }

    fn is_null(&self) -> bool {
        matches!(self.content, Content::Scalar(Value::Null))
    }

    /// Returns the position of the last key of a path.
    fn find(&self, path: &[&str]) -> Option<TextPosition> {
        let (key, rest) = path.split_first()?;
        match &self.content {
            Content::Mapping(entries) => {
                let (_, at, node) = entries.iter().find(|(name, ..)| name == key)?;
                if rest.is_empty() { Some(*at) } else { node.find(rest) }
            }
            Content::Sequence(items) => items.get(key.parse::<usize>().ok()?)?.find(rest),
            Content::Scalar(_) => None,
        }
    }

    /// Removes the value at a path, and returns its position.
    fn take(&mut self, path: &[String]) -> Option<TextPosition> {
        let (key, rest) = path.split_first()?;
        match &mut self.content {
            Content::Mapping(entries) => {
                let at = entries.iter().position(|(name, ..)| name == key)?;
                if rest.is_empty() { Some(entries.remove(at).2.at) } else { entries[at].2.take(rest) }
            }
            Content::Sequence(items) => {
                let at = key.parse::<usize>().ok().filter(|at| *at < items.len())?;
                if rest.is_empty() { Some(items.remove(at).at) } else { items[at].take(rest) }
            }
            Content::Scalar(_) => None,
        }
    }
}

impl From<Spanned<Content>> for Node {
    fn from(spanned: Spanned<Content>) -> Self {
        let at = spanned.referenced;
        Self { at: TextPosition { line: at.line(), column: at.column() }, content: spanned.value }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyContent)
    }
}

struct AnyContent;

impl<'de> Visitor<'de> for AnyContent {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar, a sequence or a mapping with text for keys")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        Content::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
        let mut nodes = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Content>>()? {
            nodes.push(item.into());
        }
        Ok(Content::Sequence(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Content, A::Error> {
        let mut nodes = Vec::new();
        while let Some((key, value)) = entries.next_entry::<Spanned<String>, Spanned<Content>>()? {
            let at = TextPosition { line: key.referenced.line(), column: key.referenced.column() };
            nodes.push((key.value, at, value.into()));
        }
        Ok(Content::Mapping(nodes))
    }
}
