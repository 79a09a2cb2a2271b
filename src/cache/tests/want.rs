//! Selections of the test readers, as client selectors and as plain conditions.

use std::sync::LazyLock;

use super::fixture::{Pod, view};
use crate::cache::CollectionView;

/// Selection of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Everything,
    NamespaceA,
    NamespaceAByField,
    AppX,
    NotAppX,
    NoApp,
    AppXInB,
    AppXOrY,
    AppXOrYInA,
    AppXOrYNotY,
    HasApp,
    HasAppInB,
    AppXFront,
    Front,
    FrontOrBackInA,
    NoTier,
    TheOneInA,
    NameEverywhere,
    NodeOne,
    NodeOneInB,
    NodeOneAppXInA,
    AppXNotNodeOne,
    NoNode,
    NotNodeOne,
    Running,
    PendingInA,
    RunningOnNodeOne,
    RunningAppY,
    TwoNames,
}

/// The narrowest lane that contains everything a reader may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) namespace: Option<&'static str>,
    pub(super) term: Term,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Term {
    Whole,
    Name(&'static str),
    Node(&'static str),
    Phase(&'static str),
    /// One of these values of a label.
    Label(&'static str, &'static [&'static str]),
    HasLabel(&'static str),
}

impl Lane {
    pub(super) const ALL: Self = Self { namespace: None, term: Term::Whole };

    pub(super) fn has(self, pod: &Pod) -> bool {
        let label = |key| if key == "app" { pod.app } else { pod.tier() };
        self.namespace.is_none_or(|namespace| pod.namespace == namespace)
            && match self.term {
                Term::Whole => true,
                Term::Name(name) => pod.name == name,
                Term::Node(node) => pod.node == node,
                Term::Phase(phase) => pod.phase() == phase,
                Term::Label(key, values) => values.contains(&label(key)),
                Term::HasLabel(key) => !label(key).is_empty(),
            }
    }
}

impl Want {
    pub(super) const ALL: [Self; 29] = [
        Self::Everything,
        Self::NamespaceA,
        Self::NamespaceAByField,
        Self::AppX,
        Self::NotAppX,
        Self::NoApp,
        Self::AppXInB,
        Self::AppXOrY,
        Self::AppXOrYInA,
        Self::AppXOrYNotY,
        Self::HasApp,
        Self::HasAppInB,
        Self::AppXFront,
        Self::Front,
        Self::FrontOrBackInA,
        Self::NoTier,
        Self::TheOneInA,
        Self::NameEverywhere,
        Self::NodeOne,
        Self::NodeOneInB,
        Self::NodeOneAppXInA,
        Self::AppXNotNodeOne,
        Self::NoNode,
        Self::NotNodeOne,
        Self::Running,
        Self::PendingInA,
        Self::RunningOnNodeOne,
        Self::RunningAppY,
        Self::TwoNames,
    ];

    pub(super) fn matches(self, pod: &Pod) -> bool {
        let Pod { namespace, name, app, node, .. } = *pod;
        let (phase, tier) = (pod.phase(), pod.tier());
        match self {
            Self::Everything => true,
            Self::NamespaceA | Self::NamespaceAByField => namespace == "a",
            Self::AppX | Self::AppXOrYNotY => app == "x",
            Self::NotAppX => app != "x",
            Self::NoApp => app.is_empty(),
            Self::AppXInB => namespace == "b" && app == "x",
            Self::AppXOrY => app == "x" || app == "y",
            Self::AppXOrYInA => namespace == "a" && (app == "x" || app == "y"),
            Self::HasApp => !app.is_empty(),
            Self::HasAppInB => namespace == "b" && !app.is_empty(),
            Self::AppXFront => app == "x" && tier == "front",
            Self::Front => tier == "front",
            Self::FrontOrBackInA => namespace == "a" && !tier.is_empty(),
            Self::NoTier => tier.is_empty(),
            Self::TheOneInA => namespace == "a" && name == "p",
            Self::NameEverywhere => name == "p",
            Self::NodeOne => node == "n1",
            Self::NodeOneInB => namespace == "b" && node == "n1",
            Self::NodeOneAppXInA => namespace == "a" && app == "x" && node == "n1",
            Self::AppXNotNodeOne => app == "x" && node != "n1",
            Self::NoNode => node.is_empty(),
            Self::NotNodeOne => node != "n1",
            Self::Running => phase == "Running",
            Self::PendingInA => namespace == "a" && phase == "Pending",
            Self::RunningOnNodeOne => phase == "Running" && node == "n1",
            Self::RunningAppY => phase == "Running" && app == "y",
            Self::TwoNames => false,
        }
    }

    /// Returns the same selection as a client's view.
    pub(super) fn view(self) -> CollectionView {
        static VIEWS: LazyLock<Vec<CollectionView>> =
            LazyLock::new(|| Want::ALL.into_iter().map(Want::parsed).collect());
        VIEWS[Self::ALL.into_iter().position(|want| want == self).expect("one of all")].clone()
    }

    fn parsed(self) -> CollectionView {
        let (namespace, labels, fields, _) = self.spelled();
        view(namespace, labels, fields)
    }

    pub(super) fn lane(self) -> Lane {
        let (namespace, _, fields, term) = self.spelled();
        let namespace = if fields == "metadata.namespace=a" { "a" } else { namespace };
        Lane { namespace: Some(namespace).filter(|namespace| !namespace.is_empty()), term }
    }

    /// Returns namespace, labels, fields, and the term that determines the lane.
    fn spelled(self) -> (&'static str, &'static str, &'static str, Term) {
        const APP_X: Term = Term::Label("app", &["x"]);
        const APP_X_Y: Term = Term::Label("app", &["x", "y"]);
        match self {
            Self::Everything => ("", "", "", Term::Whole),
            Self::NamespaceA => ("a", "", "", Term::Whole),
            Self::NamespaceAByField => ("", "", "metadata.namespace=a", Term::Whole),
            Self::AppX => ("", "app=x", "", APP_X),
            Self::NotAppX => ("", "app!=x", "", Term::Whole),
            Self::NoApp => ("", "!app", "", Term::Whole),
            Self::AppXInB => ("b", "app in (x)", "", APP_X),
            Self::AppXOrY => ("", "app in (y,x)", "", APP_X_Y),
            Self::AppXOrYInA => ("a", "app in (x,y)", "", APP_X_Y),
            Self::AppXOrYNotY => ("", "app in (x,y),app!=y", "", APP_X),
            Self::HasApp => ("", "app", "", Term::HasLabel("app")),
            Self::HasAppInB => ("b", "app,app notin (z)", "", Term::HasLabel("app")),
            Self::AppXFront => ("", "tier=front,app==x", "", APP_X),
            Self::Front => ("", "tier=front", "", Term::Label("tier", &["front"])),
            Self::FrontOrBackInA => ("a", "tier in (back,front)", "", Term::Label("tier", &["back", "front"])),
            Self::NoTier => ("", "!tier", "", Term::Whole),
            Self::TheOneInA => ("a", "", "metadata.name=p", Term::Name("p")),
            Self::NameEverywhere => ("", "", "metadata.name=p", Term::Name("p")),
            Self::NodeOne => ("", "", "spec.nodeName=n1", Term::Node("n1")),
            Self::NodeOneInB => ("b", "", "spec.host=n1", Term::Node("n1")),
            Self::NodeOneAppXInA => ("a", "app=x", "spec.nodeName=n1", Term::Node("n1")),
            Self::AppXNotNodeOne => ("", "app=x", "spec.nodeName!=n1", APP_X),
            Self::NoNode => ("", "", "spec.nodeName=", Term::Node("")),
            Self::NotNodeOne => ("", "", "spec.nodeName!=n1", Term::Whole),
            Self::Running => ("", "", "status.phase=Running", Term::Phase("Running")),
            Self::PendingInA => ("a", "", "status.phase=Pending", Term::Phase("Pending")),
            Self::RunningOnNodeOne => ("", "", "status.phase=Running,spec.nodeName=n1", Term::Node("n1")),
            Self::RunningAppY => ("", "app=y", "status.phase=Running", Term::Label("app", &["y"])),
            Self::TwoNames => ("a", "", "metadata.name=p,metadata.name=q", Term::Name("p")),
        }
    }
}
