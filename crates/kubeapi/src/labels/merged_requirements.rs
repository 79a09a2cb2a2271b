use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::SelectableAttributes;
use super::steps;
use super::{ALLOCATION_BYTES, LabelOperator, LabelSelectorRequirement, LabelValues, has, heap_bytes};

/// The merged requirements, one per key, in the order of keys. The cost per object depends on the smaller of its labels
/// and these keys, not on how often or how verbosely a selector names them.
#[derive(Debug, Clone, Default)]
pub(super) struct MergedRequirements {
    pub(super) all: Arc<[(Box<str>, LabelConstraint)]>,
    /// The number of requirements that need the label to be present.
    needed: usize,
    /// Whether the label requirements contradict each other, so that no object matches.
    pub(super) impossible: bool,
    /// The number of values in the largest set.
    values: usize,
    /// The length in bytes of the longest text in the requirements.
    text: usize,
}

/// The merged requirement on one label.
#[derive(Debug, Clone)]
pub(super) enum LabelConstraint {
    Absent,
    OneOf(LabelValues),
    Other {
        present: bool,
        not: LabelValues,
        /// The lowest and the highest allowed number, inclusive.
        range: Option<(i64, i64)>,
    },
}

/// The length up to which a comparison counts as one, in bytes.
const TEXT_BYTES: usize = 64;

impl MergedRequirements {
    /// Merges requirements, which must be sorted by key.
    pub(super) fn of(requirements: &[LabelSelectorRequirement]) -> Self {
        let groups = requirements.chunk_by(|a, b| a.key == b.key);
        let constraints =
            groups.map(|group| Some((group[0].key.clone(), LabelConstraint::of(group)?))).collect::<Option<Arc<[_]>>>();
        let Some(all) = constraints else { return Self { impossible: true, ..Self::default() } };
        let needed = all.iter().filter(|(_, constraint)| constraint.needs_label()).count();
        let values = all.iter().map(|(_, constraint)| constraint.values().len()).max().unwrap_or_default();
        let texts = all.iter().flat_map(|(key, constraint)| constraint.values().iter().chain([key]));
        let text = texts.map(|text| text.len()).max().unwrap_or_default();
        Self { all, needed, impossible: false, values, text }
    }

    pub(super) fn match_all(&self, attributes: &SelectableAttributes) -> bool {
        let labels = attributes.labels();
        if self.impossible || self.needed > labels.len() {
            return false;
        }
        if self.all.len() <= labels.len() {
            return self.all.iter().all(|(key, constraint)| constraint.holds(attributes.label(key)));
        }
        // An absent label violates only requirements that need it, which are counted.
        let (mut rest, mut found) = (&*self.all, 0);
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

    pub(super) fn comparisons(&self, labels: usize) -> usize {
        if self.impossible {
            return 0;
        }
        let (fewer, more) = (self.all.len().min(labels), self.all.len().max(labels));
        fewer * (steps(more) + steps(self.values)) * self.text.div_ceil(TEXT_BYTES)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let bytes = |(key, constraint): &(Box<str>, LabelConstraint)| {
            key.len() + ALLOCATION_BYTES + heap_bytes(constraint.values())
        };
        self.all.iter().map(|each| size_of_val(each) + bytes(each)).sum()
    }
}

impl LabelConstraint {
    /// Merges the requirements on one label; `None` if they contradict each other.
    fn of(requirements: &[LabelSelectorRequirement]) -> Option<Self> {
        let (mut absent, mut present) = (false, false);
        let (mut one_of, mut not) = (None::<LabelValues>, BTreeSet::new());
        let (mut above, mut below) = (None, None);
        for requirement in requirements {
            match requirement.operator {
                LabelOperator::DoesNotExist => absent = true,
                LabelOperator::NotIn | LabelOperator::NotEquals => {
                    not.extend(requirement.values.iter().map(|value| &**value));
                }
                LabelOperator::Exists => present = true,
                LabelOperator::In | LabelOperator::Equals | LabelOperator::DoubleEquals => {
                    present = true;
                    one_of = Some(match one_of {
                        None => requirement.values.clone(),
                        Some(known) => known.iter().filter(|value| requirement.lists(value)).cloned().collect(),
                    });
                }
                LabelOperator::GreaterThan => {
                    present = true;
                    above = above.max(Some(requirement.number()?));
                }
                LabelOperator::LessThan => {
                    present = true;
                    let number = requirement.number()?;
                    below = Some(below.map_or(number, |below: i64| below.min(number)));
                }
            }
        }
        if absent {
            return (!present).then_some(Self::Absent);
        }
        let first = above.map_or(Some(i64::MIN), |above: i64| above.checked_add(1))?;
        let last = below.map_or(Some(i64::MAX), |below: i64| below.checked_sub(1))?;
        let range = (above.is_some() || below.is_some()).then_some((first, last));
        let Some(values) = one_of else {
            let not = not.into_iter().map(Into::into).collect();
            return (first <= last).then_some(Self::Other { present, not, range });
        };
        let stays = |value: &str| !not.contains(value) && is_within(range, value);
        let values = if values.iter().all(|value| stays(value)) {
            values
        } else {
            values.iter().filter(|v| stays(v)).cloned().collect()
        };
        (!values.is_empty()).then_some(Self::OneOf(values))
    }

    /// Whether the requirement holds. `value` is the object's value for the key, `None` if it has no such label. The
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

    fn values(&self) -> &[Box<str>] {
        match self {
            Self::Absent => &[],
            Self::OneOf(values) | Self::Other { not: values, .. } => values,
        }
    }
}

fn is_within(range: Option<(i64, i64)>, value: &str) -> bool {
    let Some((first, last)) = range else { return true };
    value.parse().is_ok_and(|number: i64| (first..=last).contains(&number))
}
