//! Which namespaces and names a filtered watch shows, and what that means for an event.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::named_objects::NamedObjects;
use crate::auth::{NamespaceAccess, ReadableNamespaces};
use crate::cache::{EventFilterDecision, FeedEvent};
use kubeapi::{EventType, ObjectKey};

/// The namespaces that have occurred.
pub(super) type NamespaceVisibilities = BTreeMap<Arc<str>, NamespaceVisibility>;

/// The visibility of a namespace for the client. A namespace without an entry has not occurred yet, because it had no
/// matching objects.
#[derive(Debug)]
pub(super) enum NamespaceVisibility {
    Shown,
    Hidden,
    Leaving(NamespaceRemoval),
}

/// A namespace that is no longer visible, and of which the client still has objects.
#[derive(Debug, Default)]
pub(super) struct NamespaceRemoval {
    /// The objects that have changed since the namespace was removed. The client has received their deletion, or never
    /// had them.
    pub(super) touched: HashSet<ObjectKey>,
    /// The first key that the client does not have; set if the namespace was still being added.
    pub(super) before: Option<String>,
}

/// The decision about an event of a partial view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventDisposition {
    Send,
    /// The event is sent, and the namespace is visible from here on.
    SendAdded,
    Hidden,
    /// The namespace is hidden from here on, and the client must receive deletions for its objects.
    SendDeleted,
    /// The client must receive a deletion for the object.
    Retract,
    /// The permission for the namespace is not decided yet, and is being requested.
    Undecided,
}

impl NamespaceRemoval {
    /// Whether the client has the object as it is at the mark.
    pub(super) fn client_has(&self, key: &ObjectKey) -> bool {
        !self.touched.contains(key) && self.before.as_deref().is_none_or(|before| key.as_str() < before)
    }
}

/// Decides about an event, and sets `stale` if namespaces or names must be added or removed at a mark.
pub(super) fn decide(
    (namespaces, named): (&mut NamespaceVisibilities, &mut NamedObjects),
    readable: &ReadableNamespaces,
    event: &FeedEvent,
    seen: EventType,
    stale: &mut bool,
) -> EventFilterDecision {
    let (key, namespace) = (&event.object.key, event.object.key.namespace_or_name());
    let access = readable.decision(namespace);
    let allows = access.as_ref().is_some_and(|access| access.allows(key.name()));
    if named.contains(key) {
        if !allows {
            named.remove(namespace, key.name());
            if let Some(NamespaceVisibility::Leaving(removal)) = namespaces.get_mut(namespace) {
                removal.touched.insert(key.clone());
            }
        }
        return if allows { EventFilterDecision::Send } else { retraction(seen) };
    }
    match disposition(namespaces.get(namespace), access.as_ref()) {
        EventDisposition::Send => EventFilterDecision::Send,
        EventDisposition::SendAdded => {
            namespaces.insert(namespace.into(), NamespaceVisibility::Shown);
            EventFilterDecision::Send
        }
        EventDisposition::Hidden => {
            if namespaces.contains_key(namespace) {
                return EventFilterDecision::Skip;
            }
            namespaces.insert(namespace.into(), NamespaceVisibility::Hidden);
            // Its other names are shown from the next mark on.
            *stale |= matches!(access, Some(NamespaceAccess::Named(_)));
            if !allows {
                return EventFilterDecision::Skip;
            }
            named.insert(namespace, key.name());
            EventFilterDecision::Send
        }
        EventDisposition::SendDeleted => {
            *stale = true;
            let touched = HashSet::from([key.clone()]);
            namespaces
                .insert(namespace.into(), NamespaceVisibility::Leaving(NamespaceRemoval { touched, before: None }));
            if !allows {
                return retraction(seen);
            }
            named.insert(namespace, key.name());
            EventFilterDecision::Send
        }
        EventDisposition::Retract => match namespaces.get_mut(namespace) {
            Some(NamespaceVisibility::Leaving(removal)) => {
                if matches!(access, Some(NamespaceAccess::Named(_))) && allows && removal.client_has(key) {
                    removal.touched.insert(key.clone());
                    named.insert(namespace, key.name());
                    EventFilterDecision::Send
                } else if removal.touched.insert(key.clone()) {
                    retraction(seen)
                } else {
                    EventFilterDecision::Skip
                }
            }
            _ => EventFilterDecision::Skip,
        },
        EventDisposition::Undecided => {
            readable.request_review(namespace);
            EventFilterDecision::Undecided
        }
    }
}

/// Returns what the client receives for an object's first change after its permission was revoked: a deletion, if the
/// client knew the object.
fn retraction(seen: EventType) -> EventFilterDecision {
    if seen == EventType::Added { EventFilterDecision::Skip } else { EventFilterDecision::SendDeleted }
}

fn disposition(visibility: Option<&NamespaceVisibility>, access: Option<&NamespaceAccess>) -> EventDisposition {
    match (visibility, access) {
        (None, None) => EventDisposition::Undecided,
        (None, Some(NamespaceAccess::Allowed)) => EventDisposition::SendAdded,
        (Some(NamespaceVisibility::Shown), Some(NamespaceAccess::Allowed)) => EventDisposition::Send,
        (Some(NamespaceVisibility::Shown), _) => EventDisposition::SendDeleted,
        (Some(NamespaceVisibility::Leaving(_)), _) => EventDisposition::Retract,
        (None | Some(NamespaceVisibility::Hidden), _) => EventDisposition::Hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_outcome_depends_on_namespace_state_and_decision() {
        const ALLOWED: Option<&NamespaceAccess> = Some(&NamespaceAccess::Allowed);
        const DENIED: Option<&NamespaceAccess> = Some(&NamespaceAccess::Denied);
        const UNCLEAR: Option<&NamespaceAccess> = Some(&NamespaceAccess::Unanswered);
        let leaving = NamespaceVisibility::Leaving(NamespaceRemoval::default());
        for (visibility, access, expected) in [
            (None, None, EventDisposition::Undecided),
            (None, ALLOWED, EventDisposition::SendAdded),
            (None, DENIED, EventDisposition::Hidden),
            (None, UNCLEAR, EventDisposition::Hidden),
            (Some(&NamespaceVisibility::Shown), ALLOWED, EventDisposition::Send),
            (Some(&NamespaceVisibility::Shown), DENIED, EventDisposition::SendDeleted),
            (Some(&NamespaceVisibility::Shown), UNCLEAR, EventDisposition::SendDeleted),
            (Some(&NamespaceVisibility::Shown), None, EventDisposition::SendDeleted),
            // Missed events are sent at a mark, not one by one.
            (Some(&NamespaceVisibility::Hidden), ALLOWED, EventDisposition::Hidden),
            (Some(&NamespaceVisibility::Hidden), DENIED, EventDisposition::Hidden),
            // The namespace must be removed completely before it can be added again.
            (Some(&leaving), ALLOWED, EventDisposition::Retract),
            (Some(&leaving), DENIED, EventDisposition::Retract),
        ] {
            assert_eq!(disposition(visibility, access), expected, "{visibility:?} {access:?}");
        }
    }
}
