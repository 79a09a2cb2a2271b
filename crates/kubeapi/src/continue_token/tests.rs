use super::*;
use proptest::prelude::*;

/// The base64url text of some JSON, as a client may send it.
fn token(json: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(json)
}

fn refusal(token: &str) -> String {
    let text = ContinueToken::decode(token).expect_err("refused").to_string();
    text.strip_prefix("invalid continue token: continue key is not valid: ").expect("the common beginning").to_owned()
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
        assert_eq!(ContinueToken::decode(&token.encode(ListPageSource::FromStorage)), Ok(token));
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
    assert_eq!(ContinueToken::decode(&token.encode(ListPageSource::FromCache)), Ok(token));
}

#[test]
fn token_at_the_first_key_of_a_collection_round_trips() {
    let first = ContinueToken::decode(&token(r#"{"v":"meta.k8s.io/v1","rv":5,"start":"/"}"#)).expect("its first key");
    assert_eq!(first.start, "");
    for pages in [ListPageSource::FromStorage, ListPageSource::FromCache] {
        let offered = ContinueToken { version: ContinueVersion::Latest, ..first.clone() };
        assert_eq!(ContinueToken::decode(&offered.encode(pages)), Ok(offered), "{pages:?}");
    }
}

#[test]
fn leading_slash_of_the_start_key_is_optional() {
    for start in ["/t1/cm-a\\u0000", "t1/cm-a\\u0000"] {
        let decoded = ContinueToken::decode(&token(&format!(r#"{{"v":"meta.k8s.io/v1","rv":5,"start":"{start}"}}"#)));
        let at = ContinueVersion::Version(ResourceVersion(5));
        assert_eq!(decoded, Ok(ContinueToken { version: at, start: "t1/cm-a\0".to_owned() }));
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
        assert_eq!(ContinueToken::decode(&token(&json)).map(|token| token.version), Ok(ContinueVersion::Latest));
    }
}

#[test]
fn token_with_json_malformed_in_the_middle_is_not_legible() {
    for (json, legible) in [
        ("", true),
        ("null", true),
        ("{}", true),
        (r#"{"v":5}"#, true),
        // The first character or the end determines the error.
        ("x", true),
        ("{", true),
        ("nonsense", false),
        (r#"{"v":x}"#, false),
    ] {
        assert_eq!(ContinueToken::is_go_parsable(&token(json)), legible, "{json}");
    }
    assert!(ContinueToken::is_go_parsable("!!!"), "the error names the position of the invalid byte");
}

#[test]
fn invalid_tokens_return_the_apiservers_messages() {
    let number = "json: cannot unmarshal number";
    let field = "into Go struct field continueToken";
    for (json, text) in [
        ("", "unexpected end of JSON input".to_owned()),
        ("{", "unexpected end of JSON input".to_owned()),
        ("x", "invalid character 'x' looking for beginning of value".to_owned()),
        ("'", r"invalid character '\'' looking for beginning of value".to_owned()),
        ("[]", "json: cannot unmarshal array into Go value of type storage.continueToken".to_owned()),
        ("5", format!("{number} into Go value of type storage.continueToken")),
        ("null", "server does not recognize this encoded version ".to_owned()),
        ("{}", "server does not recognize this encoded version ".to_owned()),
        (r#"{"v":"v9","rv":5,"start":"a"}"#, "server does not recognize this encoded version v9".to_owned()),
        (r#"{"v":5}"#, format!("{number} {field}.v of type string")),
        (r#"{"rv":"x"}"#, format!("json: cannot unmarshal string {field}.rv of type int64")),
        (r#"{"rv":1.5}"#, format!("{number} 1.5 {field}.rv of type int64")),
        (r#"{"rv":99999999999999999999}"#, format!("{number} 99999999999999999999 {field}.rv of type int64")),
        (r#"{"start":[]}"#, format!("json: cannot unmarshal array {field}.start of type string")),
        (
            r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#,
            "incorrect encoded start resourceVersion (version meta.k8s.io/v1)".to_owned(),
        ),
        (r#"{"v":"meta.k8s.io/v1","rv":5}"#, "encoded start key empty (version meta.k8s.io/v1)".to_owned()),
        (r#"{"v":"meta.k8s.io/v1","rv":5,"start":"../x"}"#, "../x".to_owned()),
        (r#"{"v":"meta.k8s.io/v1","rv":5,"start":"/a/./b"}"#, "/a/./b".to_owned()),
        (r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a//b"}"#, "a//b".to_owned()),
        (r#"{"v":"meta.k8s.io/v1","rv":5,"start":"a/"}"#, "a/".to_owned()),
    ] {
        assert_eq!(refusal(&token(json)), text, "{json}");
    }
}

#[test]
fn invalid_base64_error_reports_the_byte_offset() {
    for (token, at) in [("a", 0), ("abc=", 3), ("abc+", 3), ("ab\ncde", 5), ("äbc", 0)] {
        assert_eq!(refusal(token), format!("illegal base64 data at input byte {at}"), "{token:?}");
    }
}

#[test]
fn decoding_ignores_member_name_case_and_line_breaks() {
    let mut text = token(r#"{"V":"meta.k8s.io/v1","RV":5,"Start":"a"}"#);
    text.insert(7, '\n');
    assert_eq!(ContinueToken::decode(&text).map(|token| token.start), Ok("a".to_owned()));
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
        prop_assert_eq!(ContinueToken::decode(&token.encode(ListPageSource::FromStorage)), Ok(token));
    }
}
