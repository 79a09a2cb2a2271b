use super::*;
use proptest::prelude::*;

/// The base64url text of some JSON, as a client may send it.
fn token(json: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(json)
}

#[test]
fn encoded_tokens_match_the_apiservers() {
    let key = ObjectKey::new("t1", "cm-a");
    let at = ContinueVersion::Version(ResourceVersion(77));
    for (token, json) in [
        (ContinueToken::after(at, &key, false), r#"{"v":"meta.k8s.io/v1","rv":77,"start":"t1/cm-a\u0000"}"#),
        (ContinueToken::after(at, &key, true), r#"{"v":"meta.k8s.io/v1","rv":77,"start":"cm-a\u0000"}"#),
        (
            ContinueToken::after(ContinueVersion::Latest, &key, true),
            r#"{"v":"meta.k8s.io/v1","rv":-1,"start":"cm-a\u0000"}"#,
        ),
    ] {
        let decoded = BASE64_URL_SAFE_NO_PAD.decode(token.encode(ListPageSource::FromStorage)).expect("base64");
        assert_eq!(String::from_utf8(decoded).expect("text"), json);
        assert_eq!(ContinueToken::decode(&token.encode(ListPageSource::FromStorage)), Some(token));
    }
}

#[test]
fn watch_cache_tokens_have_a_leading_slash_since_1_34() {
    for (minor, has_watch_cache, pages) in [
        (Some(33), true, ListPageSource::FromStorage),
        (Some(34), true, ListPageSource::FromCache),
        (Some(37), true, ListPageSource::FromCache),
        (Some(37), false, ListPageSource::FromStorage),
        (None, true, ListPageSource::FromStorage),
    ] {
        assert_eq!(ListPageSource::of_release(minor, has_watch_cache), pages, "{minor:?} {has_watch_cache}");
    }
    let token =
        ContinueToken::after(ContinueVersion::Version(ResourceVersion(77)), &ObjectKey::new("t1", "cm-a"), false);
    let decoded = BASE64_URL_SAFE_NO_PAD.decode(token.encode(ListPageSource::FromCache)).expect("base64");
    assert_eq!(decoded, br#"{"v":"meta.k8s.io/v1","rv":77,"start":"/t1/cm-a\u0000"}"#);
    assert_eq!(ContinueToken::decode(&token.encode(ListPageSource::FromCache)), Some(token));
}

#[test]
fn token_at_the_first_key_of_a_collection_round_trips() {
    let first = ContinueToken::decode(&token(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"/"}"#)).expect("its first key");
    assert_eq!(first.start, "");
    for pages in [ListPageSource::FromStorage, ListPageSource::FromCache] {
        let offered = ContinueToken { version: ContinueVersion::Latest, ..first.clone() };
        assert_eq!(ContinueToken::decode(&offered.encode(pages)), Some(offered), "{pages:?}");
    }
}

#[test]
fn leading_slash_of_the_start_key_is_optional() {
    for start in ["/t1/cm-a\\u0000", "t1/cm-a\\u0000"] {
        let decoded = ContinueToken::decode(&token(&format!(r#"{{"v":"meta.k8s.io/v1","rv":5,"start":"{start}"}}"#)));
        let at = ContinueVersion::Version(ResourceVersion(5));
        assert_eq!(decoded, Some(ContinueToken { version: at, start: "t1/cm-a\0".to_owned() }));
    }
}

#[test]
fn next_page_starts_after_last_key_and_before_longer_keys() {
    let last = ObjectKey::new("ns", "pod-1");
    let start = ContinueToken::after(ContinueVersion::Latest, &last, false).start;
    assert!(last.as_str() < start.as_str());
    assert!(start.as_str() < "ns/pod-1-a" && start.as_str() < "ns/pod-10");
}

#[test]
fn negative_version_continues_at_the_latest() {
    for revision in ["-1", "-7"] {
        let json = format!(r#"{{"v":"meta.k8s.io/v1","rv":{revision},"start":"a"}}"#);
        assert_eq!(ContinueToken::decode(&token(&json)).map(|token| token.version), Some(ContinueVersion::Latest));
    }
}

#[test]
fn invalid_tokens_are_not_decoded() {
    for json in [
        "",
        "{",
        "x",
        "nonsense",
        "[]",
        r#"["meta.k8s.io/v1",5,"a"]"#,
        "5",
        "null",
        "{}",
        r#"{"v":x}"#,
        r#"{"v":"v9","rv":5,"start":"a"}"#,
        r#"{"v":5,"rv":5,"start":"a"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":"5","start":"a"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":1.5,"start":"a"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":99999999999999999999,"start":"a"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5,"start":[]}"#,
        r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5,"start":""}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../x"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5,"start":"/a/./b"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a//b"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a/"}"#,
    ] {
        assert_eq!(ContinueToken::decode(&token(json)), None, "{json}");
    }
    for text in ["a", "abc=", "abc+", "ab\ncde", "äbc", "!!!"] {
        assert_eq!(ContinueToken::decode(text), None, "{text:?}");
    }
}

/// Go accepts these, and takes the last of two members whose names differ only in case.
#[test]
fn tokens_that_only_go_reads_are_not_decoded() {
    let valid = r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a"}"#;
    assert!(ContinueToken::decode(&token(valid)).is_some());
    for json in [
        r#"{"V":"meta.k8s.io/v1","RV":5,"Start":"a"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5,"RV":6,"start":"a"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5,"rv":6,"start":"a"}"#,
        r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a","x":null}"#,
    ] {
        assert_eq!(ContinueToken::decode(&token(json)), None, "{json}");
    }
    let mut lines = token(valid);
    lines.insert(7, '\n');
    assert_eq!(ContinueToken::decode(&lines), None);
}

proptest! {
    #[test]
    fn decoding_never_panics(text in any::<String>(), json in any::<String>()) {
        let _ = ContinueToken::decode(&text);
        let _ = ContinueToken::decode(&token(&json));
    }

    #[test]
    fn encoded_tokens_decode_to_the_same_token(
        revision in 1..i64::MAX as u64,
        namespace in "[a-z0-9][a-z0-9-]{0,10}",
        name in "[a-z0-9][a-z0-9.-]{0,10}",
    ) {
        let key = ObjectKey::new(&namespace, &name);
        let token = ContinueToken::after(ContinueVersion::Version(ResourceVersion(revision)), &key, false);
        prop_assert_eq!(ContinueToken::decode(&token.encode(ListPageSource::FromStorage)), Some(token));
    }
}
