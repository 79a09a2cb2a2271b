use super::*;

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

/// R-THREAT-1: `Connection` must not name headers that determine permissions.
#[test]
fn ambiguous_identity_headers_are_refused() {
    for lines in [
        &[("connection", "impersonate-user")][..],
        &[("connection", "close"), ("connection", "keep-alive, Impersonate-Group")],
        &[("connection", "x-remote-user ,close")],
        &[("connection", "Authorization")],
        &[("host", "a"), ("host", "b")],
        &[("authorization", "Bearer a"), ("authorization", "Bearer b")],
        &[("impersonate-user", "a"), ("impersonate-user", "b")],
        &[("impersonate_user", "a")],
        &[("x_remote_user", "a")],
        &[("x-remote_group", "a")],
        &[("content-length", "1"), ("content-length", "2")],
        &[("content-length", "1"), ("transfer-encoding", "chunked")],
    ] {
        assert!(inspect(&headers(lines)).is_err(), "{lines:?}");
    }
    for lines in [
        &[("connection", "close, x-other")][..],
        &[("impersonate-user", "a"), ("impersonate-group", "b"), ("impersonate-group", "c")],
        &[("x_other", "a"), ("content-length", "1")],
    ] {
        assert_eq!(inspect(&headers(lines)), Ok(()), "{lines:?}");
    }
}

/// R-THREAT-2: no identity header of the caller remains beside the proxy's.
#[test]
fn impersonation_headers_replace_all_caller_identity_headers() {
    let mut dressed = headers(&[
        ("impersonate-user", "root"),
        ("impersonate-group", "system:masters"),
        ("impersonate-extra-scopes", "all"),
        ("impersonate-uid", "0"),
    ]);
    let user = User {
        name: "ada".to_owned(),
        uid: String::new(),
        groups: vec!["dev".to_owned(), "ops".to_owned()],
        extra: [("example.com/Id".to_owned(), vec!["7".to_owned()])].into(),
    };
    set_user(&mut dressed, &user).expect("headers can carry it");
    let expected = headers(&[
        ("impersonate-user", "ada"),
        ("impersonate-group", "dev"),
        ("impersonate-group", "ops"),
        ("impersonate-extra-example.com%2f%49d", "7"),
    ]);
    assert_eq!(dressed, expected);
    for name in ["", "a\nb", "ada ", " ada", "\tada", "ada\t", "a\0b"] {
        let unspeakable = User { name: name.to_owned(), ..User::default() };
        assert!(set_user(&mut HeaderMap::new(), &unspeakable).is_err(), "{name:?}");
        let unspeakable = User { groups: vec![format!("{name} ")], ..user.clone() };
        assert!(set_user(&mut HeaderMap::new(), &unspeakable).is_err(), "a group {name:?}");
    }
}
