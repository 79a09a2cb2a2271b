//! Requests as clients send them.

#[path = "../../../crates/kubeapi/src/labels/tests/one_by_one.rs"]
mod one_by_one;

use kubeapi::{
    FieldSelector, Gvr, LabelSelector, ListOptions, ObjectKey, RequestInfo, ResourceVersionMatch, SelectableAttributes,
    SelectableFieldTable, ShardSelector, SupportedMediaTypes, UrlQuery, accepts_kind, has_valid_timeout, negotiate,
    pretty, router_accepts, targets_workload,
};

use kube_fanout::serve::without_tokens;

use super::{choice, text};
use one_by_one::{one_by_one, written};

/// A parsed selector matches like its terms one by one.
pub fn selectors(input: &[u8]) {
    let text = text(input);
    if let Some(shard) = ShardSelector::parse(&text) {
        assert_eq!(ShardSelector::parse(&shard.to_string()), Some(shard), "{text:?}");
    }
    if let Some(selector) = LabelSelector::parse(&text) {
        for object in objects(&text) {
            let expected = one_by_one(&text, &object);
            assert_eq!(selector.matches(&object), expected, "{text:?} {object:?}");
            assert!(!(expected && selector.is_contradictory()), "{text:?}");
        }
    }
    let Some(selector) = FieldSelector::parse(&text) else { return };
    let table = SelectableFieldTable::of_builtin(&Gvr::new("", "v1", "pods"));
    let Some(matcher) = selector.compile(&table) else { return };
    let values = vec![""; table.fields.len()];
    let object = SelectableAttributes::new::<&str, _>(&[], &values);
    let (name, namespace) = (matcher.required_name(), matcher.required_namespace());
    let own = ObjectKey::new(namespace.unwrap_or("a"), name.unwrap_or("b"));
    let matches = matcher.matches(&own, &object);
    assert!(!(matches && matcher.is_contradictory()), "{text:?}");
    if name.is_some_and(|name| name != "other") {
        assert!(!matcher.matches(&ObjectKey::new(own.namespace(), "other"), &object), "{text:?}");
    }
    if matcher.is_empty() {
        assert!(matches, "{text:?}");
    }
}

/// Objects that match a selector, or almost do.
fn objects(selector: &str) -> Vec<SelectableAttributes> {
    let requirements = written(selector);
    let mut keys: Vec<&str> = requirements.iter().map(|requirement| requirement.key).collect();
    keys.sort_unstable();
    keys.dedup();
    let value_of = |key: &str, nth: usize| {
        let values = requirements.iter().filter(|requirement| requirement.key == key);
        let values: Vec<&str> = values.flat_map(|requirement| &requirement.values).copied().collect();
        if values.is_empty() { "x".to_owned() } else { values[nth % values.len()].to_owned() }
    };
    let with = |nth: usize, skip: usize| {
        let labels: Vec<_> = keys.iter().enumerate().filter(|(at, _)| skip == 0 || at % 2 == skip - 1).collect();
        let labels: Vec<_> = labels.into_iter().map(|(_, key)| ((*key).to_owned(), value_of(key, nth))).collect();
        SelectableAttributes::new::<String, &str>(&labels, &[])
    };
    (0..3).flat_map(|nth| (0..3).map(move |skip| (nth, skip))).map(|(nth, skip)| with(nth, skip)).collect()
}

const METHODS: [&str; 8] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"];

/// A request line, `PATH?QUERY`, and an `Accept` header after a line break.
pub fn requests(input: &[u8]) {
    let (first, rest) = choice(input);
    let rest = text(rest);
    let (target, accept) = rest.split_once('\n').unwrap_or((&rest, ""));
    let (path, raw) = target.split_once('?').unwrap_or((target, ""));
    let query = UrlQuery::parse(raw);
    assert_eq!(query.raw(), raw);
    hidden(target);
    let info = RequestInfo::parse(METHODS[first % METHODS.len()], path, &query);
    let _ = targets_workload(path, info.as_ref().ok());
    if let Ok(info) = &info
        && info.is_canonical
    {
        assert_eq!(info.path, path, "a canonical path is read as it is");
        let again = RequestInfo::parse(METHODS[first % METHODS.len()], &info.path, &query).expect("it was read");
        assert_eq!(again, *info);
    }
    options(&query);
    for accept in [None, Some(accept)] {
        for offers in [
            SupportedMediaTypes::BUILTIN,
            SupportedMediaTypes::CUSTOM,
            SupportedMediaTypes::ERROR,
            SupportedMediaTypes::BUILTIN.in_json(),
        ] {
            let _ = (negotiate(accept, offers), negotiate(accept, offers.for_watch()), router_accepts(accept, offers));
            let _ = pretty(&query, accept, accept, offers);
        }
        let _ = accepts_kind(accept, "Table", "meta.k8s.io", "v1");
    }
}

/// The recorded form of a target has no value of a parameter that is named like a token.
fn hidden(target: &str) {
    let recorded = without_tokens(target);
    assert!(recorded.split('?').next() == target.split('?').next(), "{recorded}");
    let Some((_, raw)) = recorded.split_once('?') else { return };
    for (name, value) in UrlQuery::parse(raw).pairs() {
        let is_hidden = !name.to_ascii_lowercase().contains("token") || value.is_empty() || value == "REDACTED";
        assert!(is_hidden, "{target:?} is recorded as {recorded:?}");
    }
}

fn options(query: &UrlQuery) {
    let _ = (has_valid_timeout(query), ResourceVersionMatch::of_get(query));
    let Some(options) = ListOptions::decode(query) else { return };
    let options = options.defaulted();
    // None panics for options that exclude each other, or with continue tokens and versions that are invalid.
    let _ = (options.is_valid(options.watch), options.list_plan(), options.watch_start());
}
