mod one_by_one;

use super::*;
use one_by_one::{one_by_one, written};
use proptest::prelude::*;

fn attributes(labels: &[(&str, &str)]) -> SelectableAttributes {
    let mut labels = labels.to_vec();
    labels.sort_unstable();
    SelectableAttributes::new::<_, &str>(&labels, &[])
}

#[test]
fn each_operator_matches_as_in_the_apiserver() {
    let object = attributes(&[("app", "web"), ("empty", ""), ("n", "10"), ("word", "ten")]);
    for (selector, matches) in [
        ("", true),
        ("app", true),
        ("absent", false),
        ("!absent", true),
        ("!app", false),
        ("app=web", true),
        ("app==web", true),
        ("app=db", false),
        ("absent=web", false),
        ("empty=", true),
        ("absent=", false),
        ("app!=db", true),
        ("app!=web", false),
        ("absent!=web", true),
        ("app in (db,web)", true),
        ("app in (db)", false),
        ("absent in (db)", false),
        ("empty in ()", true),
        ("empty in (,a)", true),
        ("app notin (db)", true),
        ("app notin (web,db)", false),
        ("absent notin (web)", true),
        ("n>9", true),
        ("n>10", false),
        ("n<11", true),
        ("n<10", false),
        ("word>1", false),
        ("word<1", false),
        ("absent>1", false),
        ("app=web,n>9,!absent", true),
        ("app=web,n>10", false),
        ("app=web,app=db", false),
    ] {
        assert_eq!(LabelSelector::parse(selector).expect("valid").matches(&object), matches, "{selector}");
    }
}

#[test]
fn whitespace_and_keywords_are_parsed_by_position() {
    for (text, canonical) in [
        (" a = b ,\tc\r\n", "a=b,c"),
        ("in in (in,notin)", "in in (in,notin)"),
        ("notin", "notin"),
        ("a=in", "a=in"),
        ("x in (foo,,baz),y,z notin ()", "x in (,baz,foo),y,z notin ()"),
        ("a in (b,a,b)", "a in (a,b)"),
        ("c,b,!a", "!a,b,c"),
        ("a==b", "a=b"),
        ("a>5,b<7", "a>5,b<7"),
        ("example.com/Name_1=v", "example.com/Name_1=v"),
        ("a=,b", "a=,b"),
    ] {
        let selector = LabelSelector::parse(text).expect("valid");
        assert_eq!(Some(&selector), LabelSelector::parse(canonical).as_ref(), "{text:?}");
        let keys: Vec<_> = selector.constraints().iter().map(|(key, _)| &**key).collect();
        let mut written: Vec<_> = written(canonical).iter().map(|requirement| requirement.key).collect();
        written.dedup();
        assert_eq!(keys, written, "{text:?}");
    }
}

#[test]
fn requirements_on_one_key_are_merged() {
    for (text, merged) in
        [("b=2,a!=1,b!=3", "a!=1,b=2"), ("a in (x,y),a!=x", "a=y"), ("a>1,a>5,a", "a>5"), ("a,a", "a")]
    {
        assert_eq!(LabelSelector::parse(text), LabelSelector::parse(merged), "{text}");
    }
}

#[test]
fn invalid_grammar_is_refused() {
    for text in [
        "a in",
        "a in b",
        "a in (",
        "a in (b",
        "a in (b c)",
        "a in (b,",
        "a in (=",
        "a in (b=",
        "a in (,,)",
        "a in (b,,)",
        "a in ()x",
        "a=b c",
        "a===b",
        "a=(",
        "a b",
        "a(",
        "!",
        "!!a",
        "!a=b",
        "a,",
        "a,,b",
        ",a",
        "=a",
        "a\0b",
        // Go accepts it, because its lexer skips a NUL byte after a word.
        "a\0",
    ] {
        assert_eq!(LabelSelector::parse(text), None, "{text:?}");
    }
    for text in ["", " ", "a in (b,,c)", "a in (,,b)", "a in (b,,,)", "a in (,)"] {
        assert!(LabelSelector::parse(text).is_some(), "{text:?}");
    }
}

#[test]
fn invalid_keys_and_values_are_refused() {
    let (long, long_prefix) = ("x".repeat(64), "y".repeat(254));
    for text in [
        "-a",
        "ä=b",
        "X/y",
        "/y",
        "x/",
        "x/y/z",
        "-x/y",
        "x..y/z",
        &long,
        &format!("{long_prefix}/a"),
        "a=-x",
        &format!("a={long}"),
        "a>b",
        "a<-5",
        "a>",
        "a>1.5",
        "a in (-y,ok)",
        "a>99999999999999999999",
        &format!("a in ({})", "-,".repeat(8_000)),
    ] {
        assert_eq!(LabelSelector::parse(text), None, "{text}");
    }
    assert!(LabelSelector::parse(&format!("{}/{}={}", &long_prefix[1..], &long[1..], &long[1..])).is_some());
}

#[test]
fn selector_over_the_size_limit_is_rejected() {
    let text = "a,".repeat(SELECTOR_BYTES_MAX / 2) + "a";
    assert_eq!(LabelSelector::parse(&text), None);
    assert!(LabelSelector::parse(&text[2..]).is_some());
}

proptest! {
    #[test]
    fn parsing_never_panics(text in any::<String>(), symbols in "[ab!=,()<> \0innot]{0,24}") {
        let _ = LabelSelector::parse(&text);
        let _ = LabelSelector::parse(&symbols);
    }
}

#[test]
fn contradictory_selector_matches_nothing_without_comparisons() {
    for text in [
        "a,!a",
        "a=x,a=y",
        "a in (x,y),a notin (y,x)",
        "a in (x,y),a!=x,a!=y",
        "a=x,!a",
        "a>5,a<6",
        "a>5,a=5",
        "a=x,a>1",
        "a>9223372036854775807",
        "b,c=1,a,!a",
    ] {
        let selector = LabelSelector::parse(text).expect("valid");
        assert!(selector.is_contradictory(), "{text}");
        assert_eq!(selector.comparisons(1_000), 0, "{text}");
        assert!(!selector.matches(&attributes(&[("a", "5"), ("b", ""), ("c", "1")])), "{text}");
    }
    for text in ["", "!a", "a!=x,!a", "a>5,a<7", "a in (x,y),a!=x", "a notin ()", "a=7,a>5"] {
        assert!(!LabelSelector::parse(text).expect("valid").is_contradictory(), "{text}");
    }
}

/// The attack: as many requirements as fit, all the same or all different.
#[test]
fn match_cost_follows_object_labels_and_not_selector_size() {
    let again = "!aa,".repeat(SELECTOR_BYTES_MAX / 4 - 1) + "!aa";
    let again = LabelSelector::parse(&again).expect("it fits");
    assert_eq!((again.keys(), again.comparisons(5)), (1, 3));
    let each: Vec<_> = (0..2_300).map(|n| format!("!k{n:04}")).collect();
    let each = LabelSelector::parse(&each.join(",")).expect("it fits");
    assert_eq!(each.keys(), 2_300);
    assert_eq!(each.comparisons(5), 5 * 12, "five labels, each looked up once");
    let values: Vec<_> = (0..3_000).map(|n| format!("{n:04}")).collect();
    let set = LabelSelector::parse(&format!("a in ({})", values.join(","))).expect("it fits");
    assert_eq!(set.comparisons(5), 3 + 12);
    assert!(set.matches(&attributes(&[("a", "2999")])) && !set.matches(&attributes(&[("a", "3000")])));
    let ordinary = LabelSelector::parse("a=1,b=2,c!=3,d,!e").expect("valid");
    assert!(each.comparisons(5) <= 5 * ordinary.comparisons(5));
}

#[test]
fn selector_memory_size_follows_its_content() {
    for (text, most) in [("", 0), ("app=web", 300), ("app in (a,b,c,d)", 600)] {
        assert!(LabelSelector::parse(text).expect("valid").heap_bytes() <= most, "{text}");
    }
    let values: Vec<_> = (0..3_000).map(|n| format!("{n:04}")).collect();
    let set = LabelSelector::parse(&format!("a in ({})", values.join(","))).expect("it fits");
    assert!(set.heap_bytes() > 3_000 * (4 + size_of::<Box<str>>()));
}

proptest! {
    #[test]
    fn matcher_agrees_with_each_requirement_evaluated_alone(
        requirements in prop::collection::vec(
            "(!?[a-e]|[a-e](=|==|!=)[1-4x]?|[a-e][<>][0-5]|[a-e] (in|notin) \\([1-3x,]{0,6}\\))",
            1..10,
        ),
        labels in prop::collection::btree_map("[a-f]", "[0-5x]?", 0..6),
    ) {
        let labels: Vec<_> = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let (object, text) = (attributes(&labels), requirements.join(","));
        if let Some(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(selector.matches(&object), one_by_one(&text, &object), "{} {:?}", text, labels);
            // A selector that matches an object cannot be impossible.
            prop_assert!(!(selector.is_contradictory() && one_by_one(&text, &object)), "{}", text);
        }
    }
}
