//! The lines of a watch stream, in each form.

use std::sync::Arc;

use bytes::Bytes;

use super::super::kinds::KINDS;
use super::super::object::StoredObject;
use super::super::response_form::ResponseForm;
use super::super::selector::ObjectSelector;
use super::super::store::{StoreEvent, StoreEventType, frame};
use super::super::table::{self, IncludeObject};
use super::DemoWatch;

impl DemoWatch {
    pub(super) fn line(
        &mut self,
        as_type: StoreEventType,
        object: &StoredObject,
        rv: u64,
        event: Option<&StoreEvent>,
    ) -> Bytes {
        let kind = &KINDS[self.plan.kind];
        match self.plan.form {
            ResponseForm::Plain => event.map_or_else(|| as_type.frame(&object.body), |event| event.frame(as_type)),
            ResponseForm::Partial { .. } => as_type.frame(&object.partial(rv)),
            ResponseForm::Table => {
                let with_columns = !std::mem::replace(&mut self.columns_sent, true);
                as_type.frame(&table::single(kind, object, rv, with_columns, self.plan.include))
            }
        }
    }

    pub(super) fn bookmark_line(&mut self, rv: u64, initial_end: bool) -> Bytes {
        let kind = &KINDS[self.plan.kind];
        let mark = if initial_end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
        let (sorted_mark, api_version, name) = (mark.trim_start_matches(','), kind.api_version(), kind.name);
        let metadata = format!(r#"{{"resourceVersion":"{rv}"{mark}}}"#);
        let partial =
            || format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{metadata}}}"#);
        let plain = || {
            if kind.custom {
                let comma = if initial_end { "," } else { "" };
                let metadata = format!(r#"{{{sorted_mark}{comma}"resourceVersion":"{rv}"}}"#);
                return format!(r#"{{"apiVersion":"{api_version}","kind":"{name}","metadata":{metadata}}}"#);
            }
            let zero = kind.zero;
            format!(r#"{{"kind":"{name}","apiVersion":"{api_version}","metadata":{metadata}{zero}}}"#)
        };
        let body = match self.plan.form {
            ResponseForm::Plain => plain().into_bytes(),
            ResponseForm::Partial { .. } => partial().into_bytes(),
            ResponseForm::Table => {
                let with_columns = !std::mem::replace(&mut self.columns_sent, true);
                let object = match self.plan.include {
                    IncludeObject::Object => plain(),
                    IncludeObject::None if !initial_end => "null".to_owned(),
                    _ => partial(),
                };
                table::bookmark(kind, &object, rv, with_columns)
            }
        };
        frame("BOOKMARK", &body)
    }

    pub(super) fn any_object(&self) -> Option<Arc<StoredObject>> {
        let (objects, ..) = self.shared.store.now(self.plan.kind);
        objects.iter().find(|object| self.plan.selector.matches(object)).cloned()
    }

    pub(super) fn made_up_frame(&mut self) -> Bytes {
        let rv = self.shared.store.revision() + 1;
        match self.any_object() {
            Some(object) => StoreEventType::Modified.frame(&object.restamped(rv)),
            None => self.bookmark_line(rv, false),
        }
    }
}

/// Returns the event type of a change for a watch with this selector; `None` if it matches neither state.
pub(super) fn seen_as(selector: &ObjectSelector, event: &StoreEvent) -> Option<StoreEventType> {
    let before = event.previous.as_ref().is_some_and(|object| selector.matches(object));
    let now = event.current.as_ref().is_some_and(|object| selector.matches(object));
    match (before, now) {
        (false, true) => Some(StoreEventType::Added),
        (true, true) => Some(StoreEventType::Modified),
        (true, false) => Some(StoreEventType::Deleted),
        (false, false) => None,
    }
}
