//! The JSON templates in `objects/`, from which the demo's objects are made.

use super::json::Json;

pub(crate) const API_SERVICE: &str = include_str!("objects/apiservice.json");
pub(crate) const CRD: &str = include_str!("objects/crd.json");
pub(crate) const DEPLOYMENT: &str = include_str!("objects/deployment.json");
pub(crate) const EVENT: &str = include_str!("objects/event.json");
pub(crate) const NODE: &str = include_str!("objects/node.json");
pub(crate) const POD_SPEC: &str = include_str!("objects/pod-spec.json");
pub(crate) const POD_STATUS: &str = include_str!("objects/pod-status.json");
pub(crate) const POD_STATUS_PENDING: &str = include_str!("objects/pod-status-pending.json");
pub(crate) const SERVICE: &str = include_str!("objects/service.json");

/// Replaces each `$name` in the template with its value, without quoting it. Unknown names stay.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> Json {
    let mut out = String::with_capacity(template.len() + 256);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        let len = after.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after.len());
        let (name, tail) = after.split_at(len);
        out.push_str(before);
        match values.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => out.push_str(value),
            None => out.extend(["$", name]),
        }
        rest = tail;
    }
    out.push_str(rest);
    parse(&out)
}

/// Parses JSON that this module wrote itself.
pub(crate) fn parse(text: &str) -> Json {
    let parsed = Json::parse(text.as_bytes());
    debug_assert!(parsed.is_ok(), "not JSON: {text}");
    parsed.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_variables_are_replaced() {
        let filled = fill(r#"{"a": "$x-$y", "b": $n, "c": "$"}"#, &[("x", "1"), ("n", "2")]);
        assert_eq!(filled.to_bytes(), br#"{"a":"1-$y","b":2,"c":"$"}"#);
    }
}
