use super::CollectionView;
use kubeapi::{LabelOperator, Selector};

/// Identifies the lane of a reader: one namespace or all, and the narrowest term of its selector.
///
/// The key has both parts, because either may be narrower: a namespace may hold one object or all of them, and so may a
/// label value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaneKey {
    pub(super) namespace: Option<Box<str>>,
    pub(super) term: LaneSelectorTerm,
}

/// The part of a selector that a lane covers. Every object that the selector matches also matches the term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LaneSelectorTerm {
    Whole,
    Name(Box<str>),
    /// The value of a field, by the field's index in the resource's table.
    Field(usize, Box<str>),
    Label(Box<str>, Box<str>),
    /// A label with one of several values, which are sorted.
    LabelIn(Box<str>, Box<[Box<str>]>),
    HasLabel(Box<str>),
}

/// The largest set of label values that has its own lane, because events look up the set under each value. A larger set
/// uses the lane of all objects with the label.
pub(super) const LANE_VALUES_MAX: usize = 16;

/// The fields whose value identifies an object, most precise first. Other fields only classify objects, and one class
/// may contain nearly all of them (`status.phase=Running`).
const IDENTIFYING_FIELDS: [&str; 10] = [
    "involvedObject.uid",
    "regarding.uid",
    "involvedObject.name",
    "regarding.name",
    "spec.podName",
    "status.podIP",
    "spec.clusterIP",
    "spec.nodeName",
    "status.nominatedNodeName",
    "spec.signerName",
];

impl LaneKey {
    /// Returns the narrowest lane that contains every event that the view can match.
    pub(super) fn of(view: &CollectionView) -> Self {
        Self { namespace: view.namespace().map(Into::into), term: LaneSelectorTerm::of(view.selector()) }
    }

    /// Returns the key of the lane of every event.
    pub(super) fn all() -> Self {
        Self { namespace: None, term: LaneSelectorTerm::Whole }
    }

    pub(super) fn is_all(&self) -> bool {
        self.namespace.is_none() && self.term == LaneSelectorTerm::Whole
    }
}

impl LaneSelectorTerm {
    /// Returns the narrowest term of a selector, by a rule that does not depend on the objects. Negative requirements
    /// have no lane, because they match nearly all objects.
    fn of(selector: &Selector) -> Self {
        if let Some(name) = selector.fields.required_name() {
            return Self::Name(name.into());
        }
        let mut terms = fields(selector).chain(labels(selector));
        let Some(first) = terms.next() else { return Self::Whole };
        // The first of equal terms wins, so that two spellings of one selector share a lane.
        let (_, term) = terms.fold(first, |best, next| if next.0 < best.0 { next } else { best });
        term
    }
}

/// The estimated width of a term, narrow ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LaneTermSelectivity {
    /// A field that identifies objects, by its index in `IDENTIFYING_FIELDS`.
    Identifying(usize),
    Label,
    /// A set of label values, ordered by its size.
    LabelIn(usize),
    Field,
    HasLabel,
}

fn fields(selector: &Selector) -> impl Iterator<Item = (LaneTermSelectivity, LaneSelectorTerm)> {
    selector.fields.required_fields().map(|(key, position, value)| {
        // An empty value identifies nothing, because most objects may have none.
        let telling = IDENTIFYING_FIELDS.iter().position(|telling| *telling == key && !value.is_empty());
        (
            telling.map_or(LaneTermSelectivity::Field, LaneTermSelectivity::Identifying),
            LaneSelectorTerm::Field(position, value.into()),
        )
    })
}

fn labels(selector: &Selector) -> impl Iterator<Item = (LaneTermSelectivity, LaneSelectorTerm)> {
    selector.labels.requirements().iter().filter_map(|requirement| {
        let key: Box<str> = requirement.key().into();
        match (requirement.operator(), requirement.values()) {
            (LabelOperator::Equals | LabelOperator::DoubleEquals | LabelOperator::In, [value]) => {
                Some((LaneTermSelectivity::Label, LaneSelectorTerm::Label(key, value.clone())))
            }
            (LabelOperator::In, values) if values.len() <= LANE_VALUES_MAX => {
                Some((LaneTermSelectivity::LabelIn(values.len()), LaneSelectorTerm::LabelIn(key, values.into())))
            }
            (LabelOperator::In | LabelOperator::Exists | LabelOperator::GreaterThan | LabelOperator::LessThan, _) => {
                Some((LaneTermSelectivity::HasLabel, LaneSelectorTerm::HasLabel(key)))
            }
            _ => None,
        }
    })
}
