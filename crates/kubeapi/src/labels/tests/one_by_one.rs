//! A direct implementation of selector matching, with which these tests and the fuzz targets (tests/fuzz) compare the
//! real one.

use super::{LabelOperator, LabelSelector, SelectableAttributes};

/// Whether all requirements hold, checked one after the other like the apiserver.
pub(super) fn one_by_one(selector: &LabelSelector, object: &SelectableAttributes) -> bool {
    selector.requirements().iter().all(|requirement| {
        let values = requirement.values();
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = || number(&values[0]).expect("it was checked");
        match (requirement.operator(), object.label(requirement.key())) {
            (LabelOperator::Exists, value) => value.is_some(),
            (LabelOperator::DoesNotExist, value) => value.is_none(),
            (LabelOperator::NotIn | LabelOperator::NotEquals, None) => true,
            (LabelOperator::NotIn | LabelOperator::NotEquals, Some(value)) => !values.iter().any(|of| **of == *value),
            (_, None) => false,
            (LabelOperator::GreaterThan, Some(value)) => number(value).is_some_and(|value| value > bound()),
            (LabelOperator::LessThan, Some(value)) => number(value).is_some_and(|value| value < bound()),
            (_, Some(value)) => values.iter().any(|of| **of == *value),
        }
    })
}
