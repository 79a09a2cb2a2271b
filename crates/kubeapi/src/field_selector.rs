use std::fmt;
use std::sync::Arc;

use super::labels::{SELECTOR_BYTES_MAX, has, steps, text_bytes};
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
        let mut constraints = Vec::new();
        for FieldSelectorTerm { key, value, negated } in &self.terms {
            let alias = table.aliases.iter().find(|(alias, _)| **alias == **key);
            let key = alias.map_or(&**key, |(_, target)| target.as_str());
            FieldConstraint::of(&mut constraints, key, FieldValueSource::of(key, table)?).add(value, *negated);
        }
        constraints.iter_mut().for_each(FieldConstraint::finish);
        Some(FieldMatcher { constraints: constraints.into() })
    }
}

/// A compiled field selector: one constraint per field, which must all hold. The cost per object depends on the number
/// of fields, not on how often or how verbosely a selector names them. Clones share the data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldMatcher {
    /// The constraints in the order of their keys.
    constraints: Arc<[FieldConstraint]>,
}

/// The merged terms on one field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FieldConstraint {
    /// The key of the terms, after alias conversion.
    key: Box<str>,
    subject: FieldValueSource,
    /// The value that the field must have: the first of several, which contradict each other.
    is: Option<Box<str>>,
    /// The values that the field must not have, sorted; empty if it must have another one.
    not: Vec<Box<str>>,
    /// Whether the terms contradict each other.
    impossible: bool,
}

impl FieldConstraint {
    /// Returns the constraint on a field, created on demand.
    fn of<'a>(all: &'a mut Vec<Self>, key: &str, subject: FieldValueSource) -> &'a mut Self {
        let at = all.binary_search_by(|constraint| (*constraint.key).cmp(key)).unwrap_or_else(|at| {
            all.insert(at, Self { key: key.into(), subject, is: None, not: Vec::new(), impossible: false });
            at
        });
        &mut all[at]
    }

    /// Adds the term that the field has a value, or does not have it.
    fn add(&mut self, value: &str, negated: bool) {
        match &self.is {
            Some(is) => self.impossible |= (**is == *value) == negated,
            None if negated => self.not.push(value.into()),
            None => {
                self.impossible |= self.not.iter().any(|not| **not == *value);
                (self.is, self.not) = (Some(value.into()), Vec::new());
            }
        }
    }

    /// Completes the constraint once all terms are added.
    fn finish(&mut self) {
        self.not.sort_unstable();
        self.not.dedup();
        // The value is the same for every object, so the result is known.
        self.impossible |= self.subject == FieldValueSource::Absent && !self.holds("");
    }

    fn holds(&self, value: &str) -> bool {
        self.is.as_ref().map_or_else(|| !has(&self.not, value), |is| **is == *value)
    }
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
    /// Whether an object matches. `attributes` must come from the same [`SelectableFieldTable`] as the matcher; a field
    /// beyond its end reads as `""`.
    pub fn matches(&self, key: &ObjectKey, attributes: &SelectableAttributes) -> bool {
        self.constraints.iter().all(|constraint| {
            let value = match constraint.subject {
                FieldValueSource::Name => key.name(),
                FieldValueSource::Namespace => key.namespace(),
                FieldValueSource::Field(position) => attributes.field(position),
                FieldValueSource::Absent => "",
            };
            !constraint.impossible && constraint.holds(value)
        })
    }

    /// Whether the key alone decides if an object matches, among objects that all have the value `given` in a field.
    pub fn depends_only_on_key(&self, given: Option<(&str, &str)>) -> bool {
        self.constraints.iter().all(|constraint| match constraint.subject {
            FieldValueSource::Name | FieldValueSource::Namespace | FieldValueSource::Absent => true,
            FieldValueSource::Field(_) => {
                given.is_some_and(|(key, value)| *constraint.key == *key && constraint.is.as_deref() == Some(value))
            }
        })
    }

    /// Whether the conditions contradict each other, so that no object matches.
    pub fn is_contradictory(&self) -> bool {
        self.constraints.iter().any(|constraint| constraint.impossible)
    }

    /// Returns the maximum number of texts that [`matches`](Self::matches) compares.
    pub fn comparisons(&self) -> usize {
        if self.is_contradictory() {
            return 0;
        }
        self.constraints.iter().map(|constraint| steps(constraint.not.len()).max(1)).sum()
    }

    /// Returns the approximate number of bytes that the selector uses on the heap.
    pub fn heap_bytes(&self) -> usize {
        let of = |constraint: &FieldConstraint| {
            let values = constraint.is.iter().chain(&constraint.not);
            size_of_val(constraint) + constraint.key.len() + values.map(|value| text_bytes(value)).sum::<usize>()
        };
        self.constraints.iter().map(of).sum()
    }

    /// Whether the field selector has no conditions, so that it matches everything.
    pub fn is_empty(&self) -> bool {
        self.constraints.is_empty()
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

    /// Returns the value that the first `=` term on `key` requires. `key` is the converted one: `spec.nodeName` also
    /// finds `spec.host=n`.
    pub fn required_field(&self, key: &str) -> Option<&str> {
        self.constraints.iter().find(|constraint| *constraint.key == *key)?.is.as_deref()
    }

    /// Returns the values that fields of the table must have: key, position in [`SelectableAttributes`], value.
    pub fn required_fields(&self) -> impl Iterator<Item = (&str, usize, &str)> {
        self.constraints.iter().filter_map(|constraint| match constraint.subject {
            FieldValueSource::Field(position) => Some((&*constraint.key, position, constraint.is.as_deref()?)),
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
        let mut constraints = self.constraints.to_vec();
        FieldConstraint::of(&mut constraints, NAME_KEY, FieldValueSource::Name).add(name, false);
        Self { constraints: constraints.into() }
    }
}

/// One term of a field selector as part of a query: with the selector's own escapes, then URL-escaped.
///
/// The parsed form of a query's selector is [`FieldSelector`](super::FieldSelector).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EscapedFieldTerm<'a> {
    key: &'a str,
    operator: &'static str,
    value: &'a str,
}

impl<'a> EscapedFieldTerm<'a> {
    /// Creates the term `key=value`.
    pub fn is(key: &'a str, value: &'a str) -> Self {
        Self { key, operator: "%3D", value }
    }

    /// Creates the term `key!=value`.
    pub fn is_not(key: &'a str, value: &'a str) -> Self {
        Self { key, operator: "%21%3D", value }
    }
}

impl fmt::Display for EscapedFieldTerm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, value } = *self;
        f.write_str(key)?;
        f.write_str(operator)?;
        // Names of RBAC objects may contain almost any character.
        for byte in value.bytes() {
            if matches!(byte, b'\\' | b',' | b'=') {
                f.write_str("%5C")?;
            }
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// Splits a selector at every comma without a backslash before it. The parts keep their escapes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut is_escaped = false;
    let ends_term = |c| {
        let ends = c == ',' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    };
    text.split(ends_term).collect()
}

/// The key, the raw value, and whether the operator is `!=`. Splits at the first operator; of two that match, the
/// longer one applies.
fn split_term(term: &str) -> Option<(&str, &str, bool)> {
    let (key, value) = term.split_once('=')?;
    Some(match key.strip_suffix('!') {
        Some(key) => (key, value, true),
        None => (key, value.strip_prefix('=').unwrap_or(value), false),
    })
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

#[cfg(test)]
mod tests;
