use super::super::{Gvr, UrlQuery};
use super::*;
use proptest::prelude::*;

fn pods() -> SelectableFieldTable {
    SelectableFieldTable::of_builtin(&Gvr::new("", "v1", "pods"))
}

fn compiled(text: &str) -> FieldMatcher {
    FieldSelector::parse(text).expect("grammar").compile(&pods()).expect("known keys")
}

/// A pod with one field set and the others absent.
fn pod(field: &str, value: &str) -> SelectableAttributes {
    let table = pods();
    let mut fields: Vec<_> = table.fields.iter().map(|field| field.kind.absent_text()).collect();
    fields[table.position(field).expect("a field of pods")] = value;
    SelectableAttributes::new::<&str, _>(&[], &fields)
}

#[test]
fn object_matches_only_if_all_terms_match() {
    let key = ObjectKey::new("shop", "cart-1");
    let on_node = pod("spec.nodeName", "n1");
    for (selector, matches) in [
        ("", true),
        (",,", true),
        ("metadata.name=cart-1", true),
        ("metadata.name==cart-1", true),
        ("metadata.name!=cart-1", false),
        ("metadata.namespace=shop", true),
        ("metadata.namespace=other", false),
        ("spec.nodeName=n1", true),
        ("spec.nodeName!=", true),
        ("spec.nodeName=", false),
        ("spec.host=n1", true),
        ("status.phase=", true),
        ("spec.hostNetwork=false", true),
        ("status.podIPs=", true),
        ("spec.nodeName=n1,metadata.name=cart-1", true),
        ("spec.nodeName=n1,metadata.name=cart-2", false),
        ("metadata.name=cart-1,metadata.name=cart-2", false),
    ] {
        assert_eq!(compiled(selector).matches(&key, &on_node), matches, "{selector}");
    }
}

#[test]
fn escaped_values_are_unescaped() {
    let key = ObjectKey::new("n", "a,b=c\\d");
    assert!(compiled(r"metadata.name=a\,b\=c\\d").matches(&key, &SelectableAttributes::default()));
    assert!(!compiled(r"metadata.name!=a\,b\=c\\d").matches(&key, &SelectableAttributes::default()));
}

#[test]
fn terms_are_sorted_by_text() {
    let selector = FieldSelector::parse("metadata.name=b,metadata.name=a").expect("valid");
    assert_eq!(selector.requires_exact("metadata.name"), Some("a"));
    assert_eq!(FieldSelector::parse("b=1,a=2"), FieldSelector::parse("a=2,b=1"));
}

#[test]
fn term_without_key_and_value_is_dropped() {
    for text in ["=", "==", "!=", ",=,"] {
        assert!(FieldSelector::parse(text).expect("valid").is_empty(), "{text}");
    }
    assert!(!FieldSelector::parse("=x").expect("valid").is_empty());
}

#[test]
fn exact_value_is_found_only_by_the_key_as_written() {
    for (text, key, value) in [
        ("metadata.name=x", "metadata.name", Some("x")),
        ("metadata.name==x", "metadata.name", Some("x")),
        ("metadata.name!=x", "metadata.name", None),
        ("metadata.name = x", "metadata.name", None),
        ("metadata.name = x", "metadata.name ", Some(" x")),
        ("spec.host=n", "spec.nodeName", None),
        ("a!=1,a=2", "a", Some("2")),
    ] {
        assert_eq!(FieldSelector::parse(text).expect("valid").requires_exact(key), value, "{text}");
    }
}

#[test]
fn matcher_reports_required_values_by_converted_keys() {
    let matcher = compiled("spec.host=n1,metadata.name=x,metadata.namespace=y,status.phase!=Failed");
    assert_eq!(matcher.required_field("spec.nodeName"), Some("n1"));
    assert_eq!(matcher.required_field("spec.host"), None);
    assert_eq!(matcher.required_field("status.phase"), None);
    assert_eq!(matcher.required_name(), Some("x"));
    assert_eq!(matcher.required_namespace(), Some("y"));
    assert_eq!(compiled("").required_name(), None);
}

#[test]
fn selector_that_conflicts_with_requested_name_is_rejected() {
    let narrowed = |selector: &str| compiled(selector).and_name("x");
    assert_eq!(narrowed(""), Some(compiled("metadata.name=x")));
    assert_eq!(narrowed("metadata.name=x"), Some(compiled("metadata.name=x")));
    assert_eq!(narrowed("metadata.name=x,spec.nodeName=n"), Some(compiled("metadata.name=x,spec.nodeName=n")));
    for selector in ["metadata.name=y", "metadata.name!=y", "spec.nodeName=n", "metadata.name=x,metadata.name=a"] {
        assert_eq!(narrowed(selector), None, "{selector}");
    }
}

#[test]
fn invalid_selectors_are_refused() {
    for text in ["foo", "a=b,foo", "!", r"a=\q", r"a=\ä", "a=\\", "a=b=c", "a===c", r"b=\q,a=b"] {
        assert_eq!(FieldSelector::parse(text), None, "{text}");
    }
}

#[test]
fn unknown_key_is_rejected_when_compiled_for_a_resource() {
    for text in ["y=2", "metadata.name=a,y=2"] {
        assert_eq!(FieldSelector::parse(text).expect("grammar").compile(&pods()), None, "{text}");
    }
}

#[test]
fn selector_over_the_size_limit_is_rejected() {
    let text = "a".repeat(SELECTOR_BYTES_MAX);
    assert_eq!(FieldSelector::parse(&format!("{text}=")), None);
    assert!(FieldSelector::parse(&text.replacen("aa", "a=", 1)).is_some());
}

#[test]
fn contradictory_selector_matches_nothing_without_comparisons() {
    for text in [
        "metadata.name=a,metadata.name=b",
        "metadata.name=a,metadata.name!=a",
        "spec.host=n,spec.nodeName=m",
        "status.phase=Running,status.phase!=Running,metadata.name!=x",
    ] {
        let matcher = compiled(text);
        assert!(matcher.is_contradictory() && matcher.comparisons() == 0, "{text}");
    }
    let again = "status.phase!=x,".repeat(900) + "status.phase==y,status.phase=y";
    assert_eq!(compiled(&again).comparisons(), 1);
    let each: Vec<_> = (0..900).map(|n| format!("status.phase!={n}")).collect();
    assert_eq!(compiled(&each.join(",")).comparisons(), 10, "one field, looked up once");
}

proptest! {
    #[test]
    fn compiled_matcher_agrees_with_each_term_evaluated_alone(
        terms in prop::collection::vec(
            (r"(metadata\.name|metadata\.namespace|spec\.nodeName|spec\.host|status\.phase)", "(=|==|!=)", "[ab]?"),
            0..7,
        ),
        key in ("[ab]", "[ab]"),
        fields in prop::collection::vec("[ab]?", 20),
    ) {
        let table = pods();
        let text: Vec<_> = terms.iter().map(|(key, operator, value)| format!("{key}{operator}{value}")).collect();
        let object = ObjectKey::new(&key.0, &key.1);
        let fields = &fields[..table.fields.len().min(20)];
        let attributes = SelectableAttributes::new::<&str, _>(&[], fields);
        let expected = terms.iter().all(|(subject, operator, value)| {
            let found = match subject.as_str() {
                "metadata.name" => object.name(),
                "metadata.namespace" => object.namespace(),
                "spec.host" => attributes.field(table.position("spec.nodeName").expect("a field of pods")),
                field => attributes.field(table.position(field).expect("a field of pods")),
            };
            (found == value) == (operator != "!=")
        });
        let matcher = compiled(&text.join(","));
        prop_assert_eq!(matcher.matches(&object, &attributes), expected, "{:?}", text);
    }

    #[test]
    fn parsing_and_compiling_never_panic(text in any::<String>(), symbols in r"[ä=!,\\ab]{0,16}") {
        for text in [text, symbols] {
            if let Some(selector) = FieldSelector::parse(&text) {
                let _ = selector.compile(&pods());
            }
        }
    }
}

#[test]
fn field_term_is_escaped_as_the_apiserver_expects() {
    for (term, text) in [
        (EscapedFieldTerm::is("spec.nodeName", "n7"), "spec.nodeName%3Dn7"),
        (EscapedFieldTerm::is_not("spec.nodeName", "n7"), "spec.nodeName%21%3Dn7"),
        (EscapedFieldTerm::is("metadata.name", "system:a b"), "metadata.name%3Dsystem%3Aa%20b"),
        (EscapedFieldTerm::is("metadata.name", r"a,b=c\d"), "metadata.name%3Da%5C%2Cb%5C%3Dc%5C%5Cd"),
    ] {
        assert_eq!(term.to_string(), text);
    }
}

#[test]
fn escaped_field_term_parses_to_the_same_value() {
    for value in ["n7", "", "a,b", "a=b", r"\", "%2C", "ü&x=1#"] {
        let query = UrlQuery::parse(&format!("fieldSelector={}", EscapedFieldTerm::is("k", value)));
        let read = FieldSelector::parse(query.first("fieldSelector").expect("it is there")).expect("a selector");
        assert_eq!(read.requires_exact("k"), Some(value));
    }
}
