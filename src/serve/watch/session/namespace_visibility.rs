//! What the client of a filtered watch knows of each namespace, and what that means for an event.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use crate::auth::{NamespaceAccess, ReadableNamespaces};
use crate::cache::EventFilterDecision;
use kubeapi::{EventType, ObjectKey};

/// The namespaces that have occurred. A namespace without an entry has not occurred yet, because it had no matching
/// objects.
pub(super) type NamespaceViews = BTreeMap<Arc<str>, NamespaceView>;

/// What the client knows of a namespace.
#[derive(Debug, Default)]
pub(super) struct NamespaceView {
    pub(super) visibility: NamespaceVisibility,
    /// The names of objects that are shown although the namespace is not. The client knows an object with such a name,
    /// if it exists, as it is at the watch's position.
    pub(super) names: BTreeSet<Box<str>>,
}

/// The visibility of a namespace as a whole.
#[derive(Debug, Default)]
pub(super) enum NamespaceVisibility {
    Shown,
    #[default]
    Hidden,
    Leaving(NamespaceRemoval),
}

/// A namespace that is no longer visible, and of which the client still has objects.
#[derive(Debug, Default)]
pub(super) struct NamespaceRemoval {
    /// The objects that have changed since the namespace was removed. The client has received their deletion, or never
    /// had them. Those that are shown by name from then on count too.
    pub(super) touched: HashSet<ObjectKey>,
    /// The first key that the client does not have; set if the namespace was still being added.
    pub(super) before: Option<String>,
}

impl NamespaceView {
    /// Returns a namespace whose objects are all shown, and no object by name.
    pub(super) fn shown() -> Self {
        Self { visibility: NamespaceVisibility::Shown, names: BTreeSet::new() }
    }

    /// Returns the names to hide or to show (true), so that the shown names become those that an access allows. If it
    /// allows the whole namespace, they need no change.
    pub(super) fn name_changes<'a>(&'a self, access: &'a NamespaceAccess) -> impl Iterator<Item = (&'a str, bool)> {
        static NONE: BTreeSet<Box<str>> = BTreeSet::new();
        let allowed = match access {
            NamespaceAccess::Allowed => &self.names,
            NamespaceAccess::Named(names) => names,
            NamespaceAccess::Denied | NamespaceAccess::Unanswered => &NONE,
        };
        let hidden = self.names.difference(allowed).map(|name| (&**name, false));
        hidden.chain(allowed.difference(&self.names).map(|name| (&**name, true)))
    }
}

impl NamespaceRemoval {
    /// Whether the client has the object as it is at the mark.
    pub(super) fn client_has(&self, key: &ObjectKey) -> bool {
        !self.touched.contains(key) && self.before.as_deref().is_none_or(|before| key.as_str() < before)
    }
}

/// Decides about an event of an object, and sets `stale` if namespaces or names must be added or removed at a mark.
/// `seen` is the type of the event for the client, if all namespaces were shown.
pub(super) fn decide(
    namespaces: &mut NamespaceViews,
    readable: &ReadableNamespaces,
    key: &ObjectKey,
    seen: EventType,
    stale: &mut bool,
) -> EventFilterDecision {
    let (namespace, name) = (key.namespace_or_name(), key.name());
    let access = readable.decision(namespace);
    let allows = access.as_ref().is_some_and(|access| access.allows(name));
    let Some(NamespaceView { visibility, names }) = namespaces.get_mut(namespace) else {
        let mut view = NamespaceView::default();
        match access {
            None => {
                readable.request_review(namespace);
                return EventFilterDecision::Undecided;
            }
            Some(NamespaceAccess::Allowed) => view = NamespaceView::shown(),
            Some(NamespaceAccess::Named(_)) => {
                // Its other names are shown from the next mark on.
                *stale = true;
                view.names.extend(allows.then(|| name.into()));
            }
            Some(NamespaceAccess::Denied | NamespaceAccess::Unanswered) => {}
        }
        namespaces.insert(namespace.into(), view);
        return if allows { EventFilterDecision::Send } else { EventFilterDecision::Skip };
    };
    if names.contains(name) {
        if allows {
            return EventFilterDecision::Send;
        }
        names.remove(name);
        if let NamespaceVisibility::Leaving(removal) = visibility {
            removal.touched.insert(key.clone());
        }
        return retraction(seen);
    }
    if matches!(visibility, NamespaceVisibility::Shown) && access != Some(NamespaceAccess::Allowed) {
        // The client receives deletions for the other objects at the next mark.
        *stale = true;
        *visibility = NamespaceVisibility::Leaving(NamespaceRemoval::default());
    }
    match visibility {
        NamespaceVisibility::Shown => EventFilterDecision::Send,
        NamespaceVisibility::Hidden => EventFilterDecision::Skip,
        NamespaceVisibility::Leaving(removal) => {
            let is_shown = matches!(access, Some(NamespaceAccess::Named(_))) && allows && removal.client_has(key);
            if !removal.touched.insert(key.clone()) {
                EventFilterDecision::Skip
            } else if is_shown {
                names.insert(name.into());
                EventFilterDecision::Send
            } else {
                retraction(seen)
            }
        }
    }
}

/// Returns what the client receives for an object's first change after its permission was revoked: a deletion, if the
/// client knew the object.
fn retraction(seen: EventType) -> EventFilterDecision {
    if seen == EventType::Added { EventFilterDecision::Skip } else { EventFilterDecision::SendDeleted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_outcome_depends_on_namespace_state_and_decision() {
        use EventFilterDecision::{Send, SendDeleted, Skip, Undecided};
        const ALLOWED: Option<NamespaceAccess> = Some(NamespaceAccess::Allowed);
        const DENIED: Option<NamespaceAccess> = Some(NamespaceAccess::Denied);
        const UNCLEAR: Option<NamespaceAccess> = Some(NamespaceAccess::Unanswered);
        let leaving = || Some(NamespaceVisibility::Leaving(NamespaceRemoval::default()));
        let (shown, hidden) = (|| Some(NamespaceVisibility::Shown), || Some(NamespaceVisibility::Hidden));
        for (visibility, access, expected, is_stale) in [
            (None, None, Undecided, false),
            (None, ALLOWED, Send, false),
            (None, DENIED, Skip, false),
            (None, UNCLEAR, Skip, false),
            (shown(), ALLOWED, Send, false),
            (shown(), DENIED, SendDeleted, true),
            (shown(), UNCLEAR, SendDeleted, true),
            (shown(), None, SendDeleted, true),
            // Missed events are sent at a mark, not one by one.
            (hidden(), ALLOWED, Skip, false),
            (hidden(), DENIED, Skip, false),
            // The namespace must be removed completely before it can be added again.
            (leaving(), ALLOWED, SendDeleted, false),
            (leaving(), DENIED, SendDeleted, false),
        ] {
            let case = format!("{visibility:?} {access:?}");
            let readable = ReadableNamespaces::with_decisions(&[]);
            access.into_iter().for_each(|access| readable.set_decision("a", access));
            let view = visibility.map(|visibility| NamespaceView { visibility, names: BTreeSet::new() });
            let mut namespaces: NamespaceViews = view.into_iter().map(|view| ("a".into(), view)).collect();
            let (key, mut stale) = (ObjectKey::new("a", "p"), false);
            let decision = decide(&mut namespaces, &readable, &key, EventType::Modified, &mut stale);
            assert_eq!((decision, stale), (expected, is_stale), "{case}");
        }
    }
}
