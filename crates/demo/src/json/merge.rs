//! Applies patches: RFC 7386 merge patch, and as much of the strategic merge patch as kubectl needs.

use super::{Json, JsonMembers};

/// The fields by which the strategic merge patch matches the elements of a list, in the order in which they are tried.
const MERGE_KEYS: [&str; 4] = ["name", "type", "containerPort", "mountPath"];

/// Applies a merge patch (RFC 7386).
pub(crate) fn merge_patch(target: &mut Json, patch: Json) {
    merge(target, patch, false);
}

/// Applies a strategic merge patch. It works like RFC 7386 with two exceptions. Lists of objects with a common key are
/// merged element by element. Directives (`$patch`, `$setElementOrder/…`, `$retainKeys`) are obeyed or dropped, never
/// stored.
pub(crate) fn strategic_patch(target: &mut Json, patch: Json) {
    merge(target, patch, true);
}

fn merge(target: &mut Json, patch: Json, strategic: bool) {
    let Json::Object(patch) = patch else {
        match (target, patch) {
            (Json::Array(old), Json::Array(new)) if strategic && merge_key(&new).is_some() => merge_list(old, new),
            (target, patch) => *target = patch,
        }
        return;
    };
    if !matches!(target, Json::Object(_)) {
        *target = Json::Object(JsonMembers::default());
    }
    let Json::Object(fields) = target else { return };
    for (key, value) in patch.0 {
        match value {
            Json::Null => drop(fields.take(&key)),
            _ if strategic && key.starts_with('$') => {}
            value => {
                if fields.get(&key).is_none() {
                    fields.set(&key, Json::Null);
                }
                if let Some(slot) = fields.get_mut(&key) {
                    merge(slot, value, strategic);
                }
            }
        }
    }
}

fn merge_key(items: &[Json]) -> Option<&'static str> {
    MERGE_KEYS.into_iter().find(|key| !items.is_empty() && items.iter().all(|item| item.get(key).is_some()))
}

fn merge_list(old: &mut Vec<Json>, new: Vec<Json>) {
    let Some(key) = merge_key(&new) else { return };
    for item in new {
        let at = old.iter().position(|known| known.get(key) == item.get(key));
        let delete = item.get("$patch").and_then(Json::as_str) == Some("delete");
        match (at, delete) {
            (Some(at), true) => drop(old.remove(at)),
            (Some(at), false) => merge(&mut old[at], item, true),
            (None, true) => {}
            (None, false) => {
                old.push(Json::Null);
                if let Some(slot) = old.last_mut() {
                    merge(slot, item, true);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(strategic: bool, target: &str, patch: &str) -> String {
        let mut target = Json::parse(target.as_bytes()).unwrap();
        merge(&mut target, Json::parse(patch.as_bytes()).unwrap(), strategic);
        String::from_utf8(target.to_bytes()).unwrap()
    }

    #[test]
    fn merge_patch_removes_null_keys_and_replaces_lists() {
        assert_eq!(
            patched(false, r#"{"a":1,"b":[1,2],"c":{"d":1}}"#, r#"{"a":null,"b":[3],"c":{"e":{"f":null}}}"#),
            r#"{"b":[3],"c":{"d":1,"e":{}}}"#
        );
    }

    #[test]
    fn strategic_patch_merges_lists_by_name_and_drops_directives() {
        let target = r#"{"c":[{"name":"x","image":"1"},{"name":"y"}]}"#;
        let patch =
            r#"{"$setElementOrder/c":[],"c":[{"name":"x","image":"2"},{"name":"y","$patch":"delete"},{"name":"z"}]}"#;
        assert_eq!(patched(true, target, patch), r#"{"c":[{"name":"x","image":"2"},{"name":"z"}]}"#);
    }
}
