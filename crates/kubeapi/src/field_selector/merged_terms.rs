use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::labels::steps;
use super::super::{ObjectKey, SelectableAttributes};
use super::{CompiledFieldCondition, FieldValueSource};

/// The merged conditions, one per subject. The cost per object depends on the number of fields, not on how often or how
/// verbosely a selector names them.
#[derive(Debug, Clone, Default)]
pub(super) struct MergedFieldRequirements {
    all: Arc<[(FieldValueSource, FieldConstraint)]>,
    /// Whether the conditions contradict each other.
    pub(super) impossible: bool,
}

#[derive(Debug, Clone)]
enum FieldConstraint {
    Is(Box<str>),
    /// The value is none of these, which are sorted.
    Not(Box<[Box<str>]>),
}

impl MergedFieldRequirements {
    pub(super) fn of(conditions: &[CompiledFieldCondition]) -> Self {
        let mut subjects = BTreeMap::<_, (BTreeSet<&str>, BTreeSet<&str>)>::new();
        for condition in conditions {
            let (is, not) = subjects.entry(condition.subject).or_default();
            if condition.negated { not } else { is }.insert(&condition.value);
        }
        let constraints = subjects.into_iter().filter_map(|(subject, (is, not))| {
            let constraint = FieldConstraint::of(&is, &not);
            match (subject, constraint) {
                // The value is the same for every object, so the result is known.
                (FieldValueSource::Absent, Some(constraint)) => (!constraint.holds("")).then_some(None),
                (_, constraint) => Some(constraint.map(|constraint| (subject, constraint))),
            }
        });
        match constraints.collect::<Option<Arc<[_]>>>() {
            Some(all) => Self { all, impossible: false },
            None => Self { impossible: true, ..Self::default() },
        }
    }

    pub(super) fn match_all(&self, key: &ObjectKey, attributes: &SelectableAttributes) -> bool {
        !self.impossible
            && self.all.iter().all(|(subject, constraint)| {
                constraint.holds(match subject {
                    FieldValueSource::Name => key.name(),
                    FieldValueSource::Namespace => key.namespace(),
                    FieldValueSource::Field(position) => attributes.field(*position),
                    FieldValueSource::Absent => "",
                })
            })
    }

    pub(super) fn comparisons(&self) -> usize {
        let of = |constraint: &FieldConstraint| match constraint {
            FieldConstraint::Is(_) => 1,
            FieldConstraint::Not(values) => steps(values.len()),
        };
        self.all.iter().map(|(_, constraint)| of(constraint)).sum()
    }
}

impl FieldConstraint {
    /// Merges the conditions on one field; `None` if they contradict each other.
    fn of(is: &BTreeSet<&str>, not: &BTreeSet<&str>) -> Option<Self> {
        let mut is = is.iter();
        match (is.next(), is.next()) {
            (None, _) => Some(Self::Not(not.iter().map(|value| (*value).into()).collect())),
            (Some(only), None) => (!not.contains(only)).then(|| Self::Is((*only).into())),
            (Some(_), Some(_)) => None,
        }
    }

    fn holds(&self, value: &str) -> bool {
        match self {
            Self::Is(only) => &**only == value,
            Self::Not(values) => values.binary_search_by(|candidate| (**candidate).cmp(value)).is_err(),
        }
    }
}
