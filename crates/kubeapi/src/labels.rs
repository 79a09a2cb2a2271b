mod merged_requirements;
mod parse;
#[cfg(test)]
mod tests;
mod validate;

use self::merged_requirements::MergedRequirements;
use super::SelectableAttributes;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The maximum length in bytes of a label or field selector that is parsed. The apiserver has only its header limit;
/// this limit bounds the work that one request causes for every later event.
pub const SELECTOR_BYTES_MAX: usize = 16 * 1024;

/// A label selector: requirements that must all hold (R-LABEL-1).
///
/// Requirements are ordered by key, those of equal keys as written, without duplicates, so two spellings of one
/// selector usually compare equal. Authorization and upstream get the original text instead. Clones share the data.
#[derive(Debug, Clone, Default)]
pub struct LabelSelector {
    requirements: Arc<[LabelSelectorRequirement]>,
    /// The requirements in the form that is matched.
    merged: MergedRequirements,
}

impl LabelSelector {
    /// Parses a label selector. `None` if the apiserver refuses it, or if it is longer than [`SELECTOR_BYTES_MAX`] or
    /// has a NUL byte, which the apiserver may accept.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > SELECTOR_BYTES_MAX {
            return None;
        }
        let mut requirements = parse::requirements(text)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        let requirements = dedup(requirements);
        Some(Self { merged: MergedRequirements::of(&requirements), requirements: requirements.into() })
    }

    pub fn matches(&self, attributes: &SelectableAttributes) -> bool {
        self.merged.match_all(attributes)
    }

    /// Whether the label requirements contradict each other, so that no object matches.
    pub fn is_contradictory(&self) -> bool {
        self.merged.impossible
    }

    /// Returns the number of different label keys.
    pub fn keys(&self) -> usize {
        self.merged.all.len()
    }

    /// Returns the maximum number of texts that [`matches`](Self::matches) compares for an object with `labels` labels.
    pub fn comparisons(&self, labels: usize) -> usize {
        self.merged.comparisons(labels)
    }

    /// Returns the approximate number of bytes that the selector uses on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.requirements.iter().map(LabelSelectorRequirement::heap_bytes).sum::<usize>() + self.merged.heap_bytes()
    }

    /// Whether the label selector has no requirements, so that it matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[LabelSelectorRequirement] {
        &self.requirements
    }
}

/// Removes duplicates. Requirements of equal keys must be adjacent.
fn dedup(mut requirements: Vec<LabelSelectorRequirement>) -> Vec<LabelSelectorRequirement> {
    if requirements.windows(2).all(|pair| pair[0].key != pair[1].key) {
        return requirements;
    }
    retain_first(&mut requirements);
    requirements
}

/// Keeps the first of equal items, in their order.
pub(super) fn retain_first<T: Eq + Hash>(items: &mut Vec<T>) {
    let mut seen = HashSet::with_capacity(items.len());
    let is_first: Vec<_> = items.iter().map(|item| seen.insert(item)).collect();
    let mut is_first = is_first.into_iter();
    items.retain(|_| is_first.next().unwrap_or_default());
}

impl PartialEq for LabelSelector {
    fn eq(&self, other: &Self) -> bool {
        self.requirements == other.requirements
    }
}

impl Eq for LabelSelector {}

impl Hash for LabelSelector {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.requirements.hash(state);
    }
}

/// Writes the canonical form, which parses to the same selector.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, requirement) in self.requirements.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            fmt::Display::fmt(requirement, f)?;
        }
        Ok(())
    }
}

/// One requirement of a label selector, on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LabelSelectorRequirement {
    key: Box<str>,
    operator: LabelOperator,
    /// The values, sorted and unique. Empty for the existence operators; one element for all others except `In` and
    /// `NotIn`.
    values: LabelValues,
}

/// The values of a requirement, sorted and unique.
type LabelValues = Arc<[Box<str>]>;

/// The overhead of an allocation, in bytes.
const ALLOCATION_BYTES: usize = 16;

impl LabelSelectorRequirement {
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> LabelOperator {
        self.operator
    }

    /// Returns the values of the requirement, sorted and unique.
    pub fn values(&self) -> &[Box<str>] {
        &self.values
    }

    fn lists(&self, value: &str) -> bool {
        has(&self.values, value)
    }

    /// Returns the number with which label values are compared.
    fn number(&self) -> Option<i64> {
        self.values.first()?.parse().ok()
    }

    fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + ALLOCATION_BYTES + heap_bytes(&self.values)
    }
}

fn has(values: &[Box<str>], value: &str) -> bool {
    values.binary_search_by(|candidate| (**candidate).cmp(value)).is_ok()
}

fn heap_bytes(values: &[Box<str>]) -> usize {
    values.iter().map(|value| size_of::<Box<str>>() + value.len() + ALLOCATION_BYTES).sum()
}

impl fmt::Display for LabelSelectorRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, values } = self;
        match operator {
            LabelOperator::Exists => write!(f, "{key}"),
            LabelOperator::DoesNotExist => write!(f, "!{key}"),
            LabelOperator::In | LabelOperator::NotIn => {
                write!(f, "{key} {operator} ({})", values.join(","))
            }
            _ => write!(f, "{key}{operator}{}", values.join(",")),
        }
    }
}

/// The operator of a label requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LabelOperator {
    Exists,
    DoesNotExist,
    In,
    NotIn,
    Equals,
    /// The operator `==`. It means the same as [`Equals`](Self::Equals), but the canonical form distinguishes them.
    DoubleEquals,
    NotEquals,
    GreaterThan,
    LessThan,
}

impl fmt::Display for LabelOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exists => "exists",
            Self::DoesNotExist => "!",
            Self::In => "in",
            Self::NotIn => "notin",
            Self::Equals => "=",
            Self::DoubleEquals => "==",
            Self::NotEquals => "!=",
            Self::GreaterThan => ">",
            Self::LessThan => "<",
        })
    }
}

/// Returns the maximum number of texts that a binary search compares among `sorted` ones.
pub(super) fn steps(sorted: usize) -> usize {
    (usize::BITS - sorted.leading_zeros()) as usize
}
