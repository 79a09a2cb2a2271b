use super::View;
use crate::kube::{Operator, Selector};

/// Which lane a reader follows: that of a namespace or of all, and there of what its selector asks for most narrowly.
///
/// Both together, so that nothing has to be known of which is narrower: a namespace may hold one object or all of them,
/// and so may a label's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaneKey {
    pub(super) namespace: Option<Box<str>>,
    pub(super) term: LaneTerm,
}

/// The part of a selector that a lane is for. Every object that the selector matches has what the term says.
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

/// Values of a set that has a lane: each is a place where events look for it. Of a larger set the lane is that of all
/// objects with the label.
pub(super) const LANE_VALUES_MAX: usize = 16;

/// Fields whose value tells objects apart, the more precise first. Others say of what kind an object is, and one kind
/// may be nearly all (`status.phase=Running`).
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
    /// What a selector asks for most narrowly, by a rule that looks at no object. Negative requirements have no lane:
    /// what they match is everything else.
    fn of(selector: &Selector) -> Self {
        if let Some(name) = selector.fields.required_name() {
            return Self::Name(name.into());
        }
        let mut terms = fields(selector).chain(labels(selector));
        let Some(first) = terms.next() else { return Self::Whole };
        // Of equals the first: two spellings of one selector share a lane.
        let (_, term) = terms.fold(first, |best, next| if next.0 < best.0 { next } else { best });
        term
    }
}

/// How wide a term is thought to be, narrow ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Width {
    /// A field that tells objects apart, by its place among those.
    Telling(usize),
    Label,
    /// By the number of values.
    LabelIn(usize),
    Field,
    HasLabel,
}

fn fields(selector: &Selector) -> impl Iterator<Item = (Width, LaneTerm)> {
    selector.fields.required_fields().map(|(key, position, value)| {
        // Without a value it tells nothing: most objects may have none.
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
