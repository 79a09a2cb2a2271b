//! A direct implementation of selector matching, with which these tests and the fuzz targets (tests/fuzz) compare the
//! real one.

use super::{LabelSelector, LabelSelectorOperator, SelectableAttributes};

/// Whether all requirements hold, checked one after the other like the apiserver.
pub(super) fn one_by_one(selector: &LabelSelector, object: &SelectableAttributes) -> bool {
    selector.requirements().iter().all(|requirement| {
        let values = requirement.values();
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = || number(&values[0]).expect("it was checked");
        match (requirement.operator(), object.label(requirement.key())) {
            (LabelSelectorOperator::Exists, value) => value.is_some(),
            (LabelSelectorOperator::DoesNotExist, value) => value.is_none(),
            (LabelSelectorOperator::NotIn | LabelSelectorOperator::NotEquals, None) => true,
            (LabelSelectorOperator::NotIn | LabelSelectorOperator::NotEquals, Some(value)) => {
                !values.iter().any(|of| **of == *value)
            }
            (_, None) => false,
            (LabelSelectorOperator::GreaterThan, Some(value)) => number(value).is_some_and(|value| value > bound()),
            (LabelSelectorOperator::LessThan, Some(value)) => number(value).is_some_and(|value| value < bound()),
            (_, Some(value)) => values.iter().any(|of| **of == *value),
        }
    })
}
