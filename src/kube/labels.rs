mod parse;
#[cfg(test)]
mod tests;
mod validate;

use super::{Attributes, SelectorError};
use std::fmt;

/// A label selector: requirements that must all hold (semantics.md §2.1).
///
/// Requirements are ordered by key, equal keys as written, so two spellings of one selector mostly compare equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    requirements: Box<[Requirement]>,
}

impl LabelSelector {
    /// Accepts and refuses exactly what the apiserver does and in its words, except for length
    /// ([`SELECTOR_BYTES_MAX`](super::SELECTOR_BYTES_MAX)).
    ///
    /// # Errors
    /// The text of the 400 that the apiserver would answer.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        SelectorError::check_length("labelSelector", text)?;
        let mut requirements = parse::requirements(text).map_err(SelectorError::Invalid)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements: requirements.into() })
    }

    pub fn matches(&self, attributes: &Attributes) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(attributes.label(&requirement.key)))
    }

    /// No requirement at all: matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// The one value that `key` must have, where the first requirement on it says so: `k=v`, `k==v` or `k in (v)`.
    pub fn required_value(&self, key: &str) -> Option<&str> {
        let requirement = self.requirements.iter().find(|requirement| &*requirement.key == key)?;
        match (requirement.operator, &*requirement.values) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [only]) => Some(only),
            _ => None,
        }
    }
}

/// The canonical form: parsing it gives the same selector again.
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

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: Box<str>,
    operator: Operator,
    /// Sorted and unique. Empty for the existence operators, one element for all others but `In` and `NotIn`.
    values: Box<[Box<str>]>,
}

impl Requirement {
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// Sorted and unique.
    pub fn values(&self) -> &[Box<str>] {
        &self.values
    }

    /// `value` is the object's value for the key, `None` when it has no such label. The negative operators match its
    /// absence, all others but `!k` need its presence.
    fn matches(&self, value: Option<&str>) -> bool {
        match (self.operator, value) {
            (Operator::Exists, present) => present.is_some(),
            (Operator::DoesNotExist, present) => present.is_none(),
            (Operator::In | Operator::Equals | Operator::DoubleEquals, Some(value)) => self.lists(value),
            (Operator::NotIn | Operator::NotEquals, Some(value)) => !self.lists(value),
            (Operator::NotIn | Operator::NotEquals, None) => true,
            (Operator::GreaterThan, Some(value)) => self.bound(value).is_some_and(|(value, bound)| value > bound),
            (Operator::LessThan, Some(value)) => self.bound(value).is_some_and(|(value, bound)| value < bound),
            (_, None) => false,
        }
    }

    fn lists(&self, value: &str) -> bool {
        self.values.iter().any(|candidate| &**candidate == value)
    }

    /// The object's value and ours as numbers, where both are.
    fn bound(&self, value: &str) -> Option<(i64, i64)> {
        Some((value.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, values } = self;
        match operator {
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::In | Operator::NotIn => write!(f, "{key} {operator} ({})", values.join(",")),
            _ => write!(f, "{key}{operator}{}", values.join(",")),
        }
    }
}

/// How a requirement looks at a label's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    Exists,
    DoesNotExist,
    In,
    NotIn,
    Equals,
    /// The same as [`Equals`](Self::Equals); kept apart because the canonical form does.
    DoubleEquals,
    NotEquals,
    GreaterThan,
    LessThan,
}

impl fmt::Display for Operator {
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
