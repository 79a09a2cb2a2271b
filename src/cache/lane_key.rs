use super::View;
use kubeapi::{Operator, Selector};

/// Which lane a reader follows: in one namespace or in all, the lane of the narrowest term of its selector.
///
/// The key has both, so that nobody has to know which is narrower: a namespace may hold one object or all of them, and
/// so may a label's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaneKey {
    pub(super) namespace: Option<Box<str>>,
    pub(super) term: LaneTerm,
}

/// The part of a selector that a lane is for. Every object that the selector matches also matches the term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LaneTerm {
    Whole,
    Name(Box<str>),
    /// By the field's place in the resource's table.
    Field(usize, Box<str>),
    Label(Box<str>, Box<str>),
    /// One of several values, sorted.
    LabelIn(Box<str>, Box<[Box<str>]>),
    HasLabel(Box<str>),
}

/// The largest set of values that has a lane of its own, for events look for it under each value. A larger set uses the
/// lane of all objects with the label.
pub(super) const LANE_VALUES_MAX: usize = 16;

/// Fields whose value identifies an object, the more precise first. Other fields say of what kind an object is, and one
/// kind may be nearly all (`status.phase=Running`).
const TELLING: [&str; 10] = [
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
    /// The narrowest lane that has everything this view can see.
    pub(super) fn of(view: &View) -> Self {
        Self { namespace: view.namespace().map(Into::into), term: LaneTerm::of(view.selector()) }
    }

    /// The lane of every event.
    pub(super) fn all() -> Self {
        Self { namespace: None, term: LaneTerm::Whole }
    }

    pub(super) fn is_all(&self) -> bool {
        self.namespace.is_none() && self.term == LaneTerm::Whole
    }
}

impl LaneTerm {
    /// The narrowest term of a selector, by a rule that looks at no object. Negative requirements have no lane, for
    /// they match everything else.
    fn of(selector: &Selector) -> Self {
        if let Some(name) = selector.fields.required_name() {
            return Self::Name(name.into());
        }
        let mut terms = fields(selector).chain(labels(selector));
        let Some(first) = terms.next() else { return Self::Whole };
        // Of equal terms the first wins, so that two spellings of one selector share a lane.
        let (_, term) = terms.fold(first, |best, next| if next.0 < best.0 { next } else { best });
        term
    }
}

/// How wide a term probably is, narrow ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Width {
    /// A field that identifies objects, by its place among those.
    Telling(usize),
    Label,
    /// By the number of values.
    LabelIn(usize),
    Field,
    HasLabel,
}

fn fields(selector: &Selector) -> impl Iterator<Item = (Width, LaneTerm)> {
    selector.fields.required_fields().map(|(key, position, value)| {
        // An empty value identifies nothing: most objects may have none.
        let telling = TELLING.iter().position(|telling| *telling == key && !value.is_empty());
        (telling.map_or(Width::Field, Width::Telling), LaneTerm::Field(position, value.into()))
    })
}

fn labels(selector: &Selector) -> impl Iterator<Item = (Width, LaneTerm)> {
    selector.labels.requirements().iter().filter_map(|requirement| {
        let key: Box<str> = requirement.key().into();
        match (requirement.operator(), requirement.values()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [value]) => {
                Some((Width::Label, LaneTerm::Label(key, value.clone())))
            }
            (Operator::In, values) if values.len() <= LANE_VALUES_MAX => {
                Some((Width::LabelIn(values.len()), LaneTerm::LabelIn(key, values.into())))
            }
            (Operator::In | Operator::Exists | Operator::GreaterThan | Operator::LessThan, _) => {
                Some((Width::HasLabel, LaneTerm::HasLabel(key)))
            }
            _ => None,
        }
    })
}
