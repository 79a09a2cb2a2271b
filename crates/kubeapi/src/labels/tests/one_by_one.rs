//! A direct implementation of selector matching, with which these tests and the fuzz targets (tests/fuzz) compare the
//! real one. It reads the text of a valid selector.

use super::SelectableAttributes;

/// One requirement as it is written: `k`, `!k`, `k=v`, `k in (v,w)`.
pub(super) struct WrittenRequirement<'a> {
    pub(super) key: &'a str,
    /// `exists`, `!`, or the operator as written.
    operator: &'a str,
    pub(super) values: Vec<&'a str>,
}

/// Splits a valid selector into its requirements.
pub(super) fn written(selector: &str) -> Vec<WrittenRequirement<'_>> {
    let mut depth = 0;
    let is_end = |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    };
    selector.split(is_end).map(str::trim).filter(|text| !text.is_empty()).map(requirement).collect()
}

fn requirement(text: &str) -> WrittenRequirement<'_> {
    if let Some(key) = text.strip_prefix('!') {
        return WrittenRequirement { key: key.trim(), operator: "!", values: Vec::new() };
    }
    if let Some((start, set)) = text.split_once('(') {
        let (key, operator) = start.trim().rsplit_once(char::is_whitespace).expect("`k in (…)`");
        let values = set.trim_end_matches(')').split(',').map(str::trim).collect();
        return WrittenRequirement { key: key.trim(), operator, values };
    }
    let Some(at) = text.find(['=', '!', '<', '>']) else {
        return WrittenRequirement { key: text, operator: "exists", values: Vec::new() };
    };
    let length = if text[at + 1..].starts_with('=') { 2 } else { 1 };
    let (key, rest) = text.split_at(at);
    WrittenRequirement { key: key.trim(), operator: &rest[..length], values: vec![rest[length..].trim()] }
}

/// Whether all requirements hold, checked one after the other like the apiserver.
pub(super) fn one_by_one(selector: &str, object: &SelectableAttributes) -> bool {
    written(selector).iter().all(|WrittenRequirement { key, operator, values }| {
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = || number(values[0]).expect("it was checked");
        match (*operator, object.label(key)) {
            ("exists", value) => value.is_some(),
            ("!", value) => value.is_none(),
            ("notin" | "!=", value) => value.is_none_or(|value| !values.contains(&value)),
            (_, None) => false,
            (">", Some(value)) => number(value).is_some_and(|value| value > bound()),
            ("<", Some(value)) => number(value).is_some_and(|value| value < bound()),
            (_, Some(value)) => values.contains(&value),
        }
    })
}
