mod parse;

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use self::parse::{LabelOperator, LabelSelectorRequirement};
use super::SelectableAttributes;

/// The maximum length in bytes of a label or field selector that is parsed. The apiserver has only its header limit;
/// this limit bounds the work that one request causes for every later event.
pub const SELECTOR_BYTES_MAX: usize = 16 * 1024;

/// A label selector: requirements that must all hold (R-LABEL-1).
///
/// The requirements on one key are merged into one constraint, so two spellings of one selector usually compare equal.
/// The cost per object depends on the smaller of its labels and these keys, not on how often or how verbosely a selector
/// names them. Authorization and upstream get the original text instead. Clones share the data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// The constraints in the order of keys.
    constraints: Arc<[(Box<str>, LabelConstraint)]>,
    /// The number of constraints that need the label to be present.
    needed: usize,
    /// Whether the label requirements contradict each other, so that no object matches.
    impossible: bool,
    /// The number of values in the largest set.
    values: usize,
    /// The length in bytes of the longest text in the constraints.
    text: usize,
}

/// The merged requirements on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LabelConstraint {
    Absent,
    /// The label has one of these values, which are sorted. None are left if the requirements contradict each other.
    OneOf(Box<[Box<str>]>),
    Other {
        present: bool,
        /// The label has none of these values, which are sorted.
        not: Box<[Box<str>]>,
        /// The lowest and the highest allowed number, inclusive.
        range: Option<(i64, i64)>,
    },
}

/// The overhead of an allocation, in bytes.
const ALLOCATION_BYTES: usize = 16;
/// The length up to which a comparison counts as one, in bytes.
const TEXT_BYTES: usize = 64;

impl LabelSelector {
    /// Parses a label selector. `None` if the apiserver refuses it, or if it is longer than [`SELECTOR_BYTES_MAX`] or
    /// has a NUL byte, which the apiserver may accept.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > SELECTOR_BYTES_MAX {
            return None;
        }
        let mut requirements = parse::requirements(text)?;
        requirements.sort_by_key(|requirement| requirement.key);
        let groups = requirements.chunk_by(|a, b| a.key == b.key);
        let all: Arc<[_]> = groups.map(|group| (group[0].key.into(), LabelConstraint::of(group))).collect();
        let needed = all.iter().filter(|(_, constraint)| constraint.needs_label()).count();
        let impossible = all.iter().any(|(_, constraint)| constraint.is_contradictory());
        let values = all.iter().map(|(_, constraint)| constraint.values().len()).max().unwrap_or_default();
        let texts = all.iter().flat_map(|(key, constraint)| constraint.values().iter().chain([key]));
        let text = texts.map(|text| text.len()).max().unwrap_or_default();
        Some(Self { constraints: all, needed, impossible, values, text })
    }

    pub fn matches(&self, attributes: &SelectableAttributes) -> bool {
        let labels = attributes.labels();
        if self.impossible || self.needed > labels.len() {
            return false;
        }
        if self.constraints.len() <= labels.len() {
            return self.constraints.iter().all(|(key, constraint)| constraint.holds(attributes.label(key)));
        }
        // An absent label violates only constraints that need it, which are counted.
        let (mut rest, mut found) = (&*self.constraints, 0);
        for (key, value) in labels {
            let at = rest.binary_search_by(|(required, _)| (**required).cmp(key));
            if let Some((_, constraint)) = at.ok().and_then(|at| rest.get(at)) {
                if !constraint.holds(Some(value)) {
                    return false;
                }
                found += usize::from(constraint.needs_label());
            }
            rest = &rest[at.unwrap_or_else(|at| at)..];
        }
        found == self.needed
    }

    /// Whether the label requirements contradict each other, so that no object matches.
    pub fn is_contradictory(&self) -> bool {
        self.impossible
    }

    /// Returns the number of different label keys.
    pub fn keys(&self) -> usize {
        self.constraints.len()
    }

    /// Returns the constraints with their keys, in the order of keys.
    pub fn constraints(&self) -> &[(Box<str>, LabelConstraint)] {
        &self.constraints
    }

    /// Returns the maximum number of texts that [`matches`](Self::matches) compares for an object with `labels` labels.
    pub fn comparisons(&self, labels: usize) -> usize {
        if self.impossible {
            return 0;
        }
        let (fewer, more) = (self.keys().min(labels), self.keys().max(labels));
        fewer * (steps(more) + steps(self.values)) * self.text.div_ceil(TEXT_BYTES)
    }

    /// Returns the approximate number of bytes that the selector uses on the heap.
    pub fn heap_bytes(&self) -> usize {
        let of = |(key, constraint): &(Box<str>, LabelConstraint)| {
            key.len() + ALLOCATION_BYTES + constraint.values().iter().map(|value| text_bytes(value)).sum::<usize>()
        };
        self.constraints.iter().map(|each| size_of_val(each) + of(each)).sum()
    }

    /// Whether the label selector has no requirements, so that it matches everything.
    pub fn is_empty(&self) -> bool {
        self.constraints.is_empty()
    }
}

impl LabelConstraint {
    /// Merges the requirements on one label.
    fn of(requirements: &[LabelSelectorRequirement<'_>]) -> Self {
        Self::merged(requirements).unwrap_or_else(|| Self::OneOf(Box::default()))
    }

    /// Merges requirements; `None` if they contradict each other.
    fn merged(requirements: &[LabelSelectorRequirement<'_>]) -> Option<Self> {
        let (mut absent, mut present) = (false, false);
        let (mut one_of, mut not) = (None::<Vec<&str>>, BTreeSet::new());
        let (mut first, mut last) = (i64::MIN, i64::MAX);
        for LabelSelectorRequirement { operator, values, .. } in requirements {
            let number = || values.first()?.parse::<i64>().ok();
            present |= !matches!(operator, LabelOperator::DoesNotExist | LabelOperator::NotIn);
            match operator {
                LabelOperator::Exists => {}
                LabelOperator::DoesNotExist => absent = true,
                LabelOperator::NotIn => not.extend(values),
                LabelOperator::In => match &mut one_of {
                    None => one_of = Some(values.clone()),
                    Some(known) => known.retain(|value| values.binary_search(value).is_ok()),
                },
                LabelOperator::GreaterThan => first = first.max(number()?.checked_add(1)?),
                LabelOperator::LessThan => last = last.min(number()?.checked_sub(1)?),
            }
        }
        if absent {
            return (!present).then_some(Self::Absent);
        }
        let range = ((first, last) != (i64::MIN, i64::MAX)).then_some((first, last));
        let Some(mut values) = one_of else {
            let not = not.into_iter().map(|value: &&str| (*value).into()).collect();
            return (first <= last).then_some(Self::Other { present, not, range });
        };
        values.retain(|value| !not.contains(value) && is_within(range, value));
        (!values.is_empty()).then(|| Self::OneOf(values.into_iter().map(Into::into).collect()))
    }

    /// Whether the constraint holds. `value` is the object's value for the key, `None` if it has no such label. The
    /// negative operators match an absent label; all others except `!k` need it.
    fn holds(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Absent, value) => value.is_none(),
            (Self::OneOf(values), Some(value)) => match &**values {
                [only] => (**only).cmp(value) == Ordering::Equal,
                values => has(values, value),
            },
            (Self::Other { not, range, .. }, Some(value)) => !has(not, value) && is_within(*range, value),
            (Self::OneOf(_), None) => false,
            (Self::Other { present, .. }, None) => !present,
        }
    }

    fn needs_label(&self) -> bool {
        matches!(self, Self::OneOf(_) | Self::Other { present: true, .. })
    }

    fn is_contradictory(&self) -> bool {
        matches!(self, Self::OneOf(values) if values.is_empty())
    }

    fn values(&self) -> &[Box<str>] {
        match self {
            Self::Absent => &[],
            Self::OneOf(values) | Self::Other { not: values, .. } => values,
        }
    }
}

/// Whether `value` is one of `sorted`.
pub(super) fn has(sorted: &[Box<str>], value: &str) -> bool {
    sorted.binary_search_by(|candidate| (**candidate).cmp(value)).is_ok()
}

fn is_within(range: Option<(i64, i64)>, value: &str) -> bool {
    let Some((first, last)) = range else { return true };
    value.parse().is_ok_and(|number: i64| (first..=last).contains(&number))
}

/// Returns the bytes of a selector's text: on the heap, and of the pointer to it.
pub(super) fn text_bytes(text: &str) -> usize {
    size_of::<Box<str>>() + text.len() + ALLOCATION_BYTES
}

/// Returns the maximum number of texts that a binary search compares among `sorted` ones.
pub(super) fn steps(sorted: usize) -> usize {
    (usize::BITS - sorted.leading_zeros()) as usize
}

#[cfg(test)]
mod tests;
