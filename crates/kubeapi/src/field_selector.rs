mod merged_terms;
#[cfg(test)]
mod tests;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use self::merged_terms::MergedFieldRequirements;
use super::labels::{SELECTOR_BYTES_MAX, retain_first};
use super::{ObjectKey, SelectableAttributes, SelectableFieldTable};

/// The key whose value is the object's name, for every resource.
pub const NAME_KEY: &str = "metadata.name";
const NAMESPACE_KEY: &str = "metadata.namespace";

/// A field selector as the client sent it: its syntax is checked, its keys are not (R-FIELD-1).
///
/// Authorization uses this form; storage uses the [`FieldMatcher`] that is compiled from it (R-FIELD-7).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    /// The terms in the order of their texts, which is the apiserver's order.
    terms: Box<[FieldSelectorTerm]>,
}

/// One term of a field selector: `key=value` or `key!=value`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FieldSelectorTerm {
    key: Box<str>,
    value: Box<str>,
    negated: bool,
}

impl FieldSelector {
    /// Parses a field selector. `None` if the apiserver refuses it, or if it is longer than [`SELECTOR_BYTES_MAX`].
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > SELECTOR_BYTES_MAX {
            return None;
        }
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::with_capacity(parts.len());
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let (key, value, negated) = split_term(part)?;
            terms.push(FieldSelectorTerm { key: key.into(), value: unescape(value)?.into(), negated });
        }
        // Go drops a term with an empty key and an empty value (`=`) when it copies a selector.
        terms.retain(|term| !(term.key.is_empty() && term.value.is_empty()));
        Some(Self { terms: terms.into() })
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the value that the first `=` term on `key` requires; `key` is compared as written. `RequestInfo` takes
    /// the object's name from here (R-PATH-3).
    pub fn requires_exact(&self, key: &str) -> Option<&str> {
        self.terms.iter().find(|term| !term.negated && &*term.key == key).map(|term| &*term.value)
    }

    /// Resolves the keys with one resource's fields. `None` if the table does not have one of the keys: upstream, which
    /// may be of a later release, decides about it.
    pub fn compile(&self, table: &SelectableFieldTable) -> Option<FieldMatcher> {
        let compiled = self.terms.iter().map(|term| {
            let alias = table.aliases.iter().find(|(alias, _)| **alias == *term.key);
            let key = alias.map_or(&*term.key, |(_, target)| target.as_str());
            let subject = FieldValueSource::of(key, table)?;
            Some(CompiledFieldCondition { key: key.into(), subject, value: term.value.clone(), negated: term.negated })
        });
        Some(FieldMatcher::of(compiled.collect::<Option<_>>()?))
    }
}

/// A compiled field selector: conditions that must all hold, without duplicates. Clones share the data.
#[derive(Debug, Clone, Default)]
pub struct FieldMatcher {
    conditions: Arc<[CompiledFieldCondition]>,
    /// The conditions in the form that is matched.
    merged: MergedFieldRequirements,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CompiledFieldCondition {
    /// The key of the term, after alias conversion.
    key: Box<str>,
    subject: FieldValueSource,
    value: Box<str>,
    negated: bool,
}

/// The source of the value that a condition compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum FieldValueSource {
    Name,
    Namespace,
    /// A selectable field, as a position in the [`SelectableFieldTable`].
    Field(usize),
    /// A field that no object has; its value is always `""`.
    Absent,
}

impl FieldValueSource {
    fn of(key: &str, table: &SelectableFieldTable) -> Option<Self> {
        match key {
            NAME_KEY => Some(Self::Name),
            NAMESPACE_KEY if table.namespace_key => Some(Self::Namespace),
            _ if table.absent.iter().any(|absent| absent == key) => Some(Self::Absent),
            _ => table.position(key).map(Self::Field),
        }
    }
}

impl FieldMatcher {
    fn of(mut conditions: Vec<CompiledFieldCondition>) -> Self {
        retain_first(&mut conditions);
        Self { merged: MergedFieldRequirements::of(&conditions), conditions: conditions.into() }
    }

    /// Whether an object matches. `attributes` must come from the same [`SelectableFieldTable`] as the matcher; a field
    /// beyond its end reads as `""`.
    pub fn matches(&self, key: &ObjectKey, attributes: &SelectableAttributes) -> bool {
        self.merged.match_all(key, attributes)
    }

    /// Whether the key alone decides if an object matches, among objects that all have the value `given` in a field.
    pub fn depends_only_on_key(&self, given: Option<(&str, &str)>) -> bool {
        self.conditions.iter().all(|condition| match condition.subject {
            FieldValueSource::Name | FieldValueSource::Namespace | FieldValueSource::Absent => true,
            FieldValueSource::Field(_) => !condition.negated && given == Some((&*condition.key, &*condition.value)),
        })
    }

    /// Whether the conditions contradict each other, so that no object matches.
    pub fn is_contradictory(&self) -> bool {
        self.merged.impossible
    }

    /// Returns the maximum number of texts that [`matches`](Self::matches) compares.
    pub fn comparisons(&self) -> usize {
        self.merged.comparisons()
    }

    /// Returns the approximate number of bytes that the selector uses on the heap.
    pub fn heap_bytes(&self) -> usize {
        let texts = self.conditions.iter().map(|condition| condition.key.len() + condition.value.len());
        texts.map(|len| 2 * (size_of::<CompiledFieldCondition>() + len)).sum()
    }

    /// Whether the field selector has no conditions, so that it matches everything.
    pub fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Returns the only name that a matching object can have. A list with such a selector is a read of one key
    /// (R-LIST-2).
    pub fn required_name(&self) -> Option<&str> {
        self.required_field(NAME_KEY)
    }

    /// Returns the only namespace in which a matching object can be.
    pub fn required_namespace(&self) -> Option<&str> {
        self.required_field(NAMESPACE_KEY)
    }

    /// Returns the value that the first `=` condition on `key` requires. `key` is the converted one: `spec.nodeName`
    /// also finds `spec.host=n`.
    pub fn required_field(&self, key: &str) -> Option<&str> {
        self.conditions
            .iter()
            .find(|condition| !condition.negated && &*condition.key == key)
            .map(|condition| &*condition.value)
    }

    /// Returns the `=` conditions on fields of the table: key, position in [`SelectableAttributes`], value.
    pub fn required_fields(&self) -> impl Iterator<Item = (&str, usize, &str)> {
        self.conditions.iter().filter(|condition| !condition.negated).filter_map(|condition| match condition.subject {
            FieldValueSource::Field(position) => Some((&*condition.key, position, &*condition.value)),
            FieldValueSource::Name | FieldValueSource::Namespace | FieldValueSource::Absent => None,
        })
    }

    /// Combines the selector with the name in the request's path or in `RequestInfo`. An empty selector then requires
    /// that name; any other must already require exactly it (R-FIELD-3). `None` if the two disagree.
    pub fn and_name(self, name: &str) -> Option<Self> {
        if self.is_empty() {
            return Some(self.requiring_name(name));
        }
        (self.required_name() == Some(name)).then_some(self)
    }

    /// Returns a selector that also requires this name.
    #[must_use]
    pub fn requiring_name(&self, name: &str) -> Self {
        let (key, subject) = (NAME_KEY.into(), FieldValueSource::Name);
        let required = CompiledFieldCondition { key, subject, value: name.into(), negated: false };
        Self::of(self.conditions.iter().cloned().chain([required]).collect())
    }
}

impl PartialEq for FieldMatcher {
    fn eq(&self, other: &Self) -> bool {
        self.conditions == other.conditions
    }
}

impl Eq for FieldMatcher {}

impl Hash for FieldMatcher {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.conditions.hash(state);
    }
}

/// Splits a selector at every comma without a backslash before it. The parts keep their escapes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The key, the raw value, and whether the operator is `!=`. Splits at the first operator; of two that match, the
/// longer one applies.
fn split_term(term: &str) -> Option<(&str, &str, bool)> {
    for (at, byte) in term.bytes().enumerate() {
        let rest = &term.as_bytes()[at..];
        let (length, negated) = match byte {
            b'!' if rest.starts_with(b"!=") => (2, true),
            b'=' if rest.starts_with(b"==") => (2, false),
            b'=' => (1, false),
            _ => continue,
        };
        return Some((&term[..at], &term[at + length..], negated));
    }
    None
}

/// Resolves `\\`, `\,` and `\=`. Other escapes, and unescaped `,` and `=`, are invalid.
fn unescape(value: &str) -> Option<String> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.push(chars.next().filter(|escaped| matches!(escaped, '\\' | ',' | '='))?),
            ',' | '=' => return None,
            _ => plain.push(c),
        }
    }
    Some(plain)
}
