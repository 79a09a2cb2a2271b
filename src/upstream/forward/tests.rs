use std::sync::Arc;

use http::header::AUTHORIZATION;
use http_body_util::{BodyExt, Empty};
use proptest::prelude::*;

use super::super::identity_headers::{is_front_proxy_header, is_impersonation, set_proxy_credentials};
use super::super::{CredentialId, inspect};
use super::*;
use kubeapi::{FlowDistinguisher, User};

#[test]
fn headers_listed_in_connection_are_not_forwarded() {
    let mut headers = HeaderMap::new();
    headers.append(CONNECTION, HeaderValue::from_static("keep-alive, X-Secret"));
    headers.append(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert("x-secret", HeaderValue::from_static("1"));
    headers.insert("keep-alive", HeaderValue::from_static("timeout=5"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert("x-kept", HeaderValue::from_static("1"));
    strip_hop_by_hop(&mut headers);
    assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
}

/// R-THREAT-1: should such a request reach this code, the listed headers are removed before the identity is set.
#[test]
fn identity_is_set_after_connection_headers_are_stripped() {
    let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let mut request = Request::new(body);
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("impersonate-user, impersonate-group, te"));
    let user = User { name: "ada".to_owned(), groups: vec!["g".to_owned()], ..User::default() };
    let identity = RequestIdentity::User(Arc::new(user));
    let request = outgoing(&identity, ForwardPoolKind::Short, request).expect("it can be put in headers");
    let header = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
    assert_eq!(header("impersonate-user"), Some(b"ada".as_slice()));
    assert_eq!(header("impersonate-group"), Some(b"g".as_slice()));
}

/// The identity of a request as upstream reads it. Headers that some servers would misread as these count too.
#[derive(Debug, Default, PartialEq)]
struct Read {
    authorization: Vec<String>,
    impersonation: Vec<(String, String)>,
    asserted: Vec<String>,
}

fn read(headers: &HeaderMap) -> Read {
    let mut read = Read::default();
    for (name, value) in headers {
        let value = String::from_utf8_lossy(value.as_bytes()).trim().to_owned();
        let name = HeaderName::try_from(name.as_str().replace('_', "-")).expect("a name");
        match name {
            AUTHORIZATION => read.authorization.push(value),
            name if is_impersonation(&name) => read.impersonation.push((name.as_str().to_owned(), value)),
            name if is_front_proxy_header(&name) => read.asserted.push(name.as_str().to_owned()),
            _ => {}
        }
    }
    read.impersonation.sort();
    read
}

const NAMES: [&str; 24] = [
    "authorization",
    "impersonate-user",
    "Impersonate-User",
    "impersonate_user",
    "impersonate-uid",
    "impersonate-group",
    "IMPERSONATE-GROUP",
    "impersonate_group",
    "impersonate-extra-a",
    "impersonate-extra-a%2fb",
    "impersonate-extra-",
    "impersonate-other",
    "x-remote-user",
    "X-Remote-Group",
    "x_remote_user",
    "x-remote-extra-a%2Fb",
    "x-remote-other",
    "connection",
    "upgrade",
    "te",
    "transfer-encoding",
    "content-length",
    "keep-alive",
    "x-other",
];

fn any_value() -> impl Strategy<Value = String> {
    let listed = prop::collection::vec((prop::sample::select(&NAMES[..]), "[ \t]{0,2}", "[ \t;,]{0,2}"), 0..4);
    let listed = listed.prop_map(|names| {
        let names: Vec<_> = names.into_iter().map(|(name, before, after)| format!("{before}{name}{after}")).collect();
        names.join(",")
    });
    prop_oneof![listed, "[a-zA-Z:. -]{0,12}", Just("Bearer theirs".to_owned()), Just("system:masters".to_owned())]
}

fn any_headers() -> impl Strategy<Value = HeaderMap> {
    let lines = prop::collection::vec((prop::sample::select(&NAMES[..]), any_value()), 0..8);
    lines.prop_map(|lines| {
        let line = |(name, value): (&str, String)| {
            let value = HeaderValue::from_str(value.trim()).expect("what a codec would give us");
            (HeaderName::try_from(name).expect("a name"), value)
        };
        let mut headers = HeaderMap::new();
        for (name, value) in lines.into_iter().map(line) {
            headers.append(name, value);
        }
        headers
    })
}

fn any_user() -> impl Strategy<Value = User> {
    let word = || "[a-z:. ]{0,6}";
    let extra = prop::collection::btree_map("[a-z/%.]{0,6}", prop::collection::vec(word(), 1..3), 0..3);
    let parts = (word(), word(), prop::collection::vec(word(), 0..3), extra);
    parts.prop_map(|(name, uid, groups, extra)| User { name, uid, groups, extra })
}

/// The headers that represent this user and nothing else.
fn spoken(user: &User) -> Vec<(String, String)> {
    let line = |name: &str, value: &str| (format!("impersonate-{name}"), value.to_owned());
    let uid = (!user.uid.is_empty()).then(|| line("uid", &user.uid));
    let groups = user.groups.iter().map(|group| line("group", group));
    let key = |key: &str| key.replace('%', "%25").replace('/', "%2f");
    let extra = user.extra.iter();
    let extra =
        extra.flat_map(|(name, values)| values.iter().map(move |value| line(&format!("extra-{}", key(name)), value)));
    let mut spoken: Vec<_> = [line("user", &user.name)].into_iter().chain(uid).chain(groups).chain(extra).collect();
    spoken.sort();
    spoken
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// R-THREAT-1, R-THREAT-2: for any headers, the forwarded ones name exactly the sender or no user.
    #[test]
    fn caller_headers_cannot_change_forwarded_identity(headers in any_headers(), user in any_user(), tunnel: bool) {
        if inspect(&headers).is_err() {
            return Ok(());
        }
        let came = read(&headers);
        let kind = if tunnel { ForwardPoolKind::Tunnel } else { ForwardPoolKind::Short };
        let own = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Bearer ours"))]);
        let id = CredentialId::new([0; 32]);
        let bearer = RequestIdentity::Bearer(id, FlowDistinguisher::from_user(&user));
        for identity in [RequestIdentity::ProxyItself, bearer, RequestIdentity::Anonymous, RequestIdentity::User(Arc::new(user))] {
            let mut request = Request::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
            *request.headers_mut() = headers.clone();
            prepare_headers(kind, &mut request);
            if apply_identity(&identity, request.headers_mut()).is_err() {
                continue;
            }
            let named = identity_headers::listed(request.headers()).collect::<Vec<_>>();
            prop_assert!(named.iter().all(|name| *name == UPGRADE), "{:?}", named);
            if matches!(identity, RequestIdentity::ProxyItself | RequestIdentity::User(_)) {
                prop_assert!(set_proxy_credentials(request.headers_mut(), own.clone()).is_ok());
            }
            let goes = read(request.headers());
            let expected = match &identity {
                RequestIdentity::Bearer(..) | RequestIdentity::Anonymous => (came.authorization.clone(), came.impersonation.clone()),
                RequestIdentity::ProxyItself => (vec!["Bearer ours".to_owned()], came.impersonation.clone()),
                RequestIdentity::User(user) => (vec!["Bearer ours".to_owned()], spoken(user)),
            };
            prop_assert_eq!(&(goes.authorization, goes.impersonation), &expected);
            prop_assert!(goes.asserted.is_empty(), "{:?}", goes.asserted);
            for name in [TRANSFER_ENCODING, HeaderName::from_static("keep-alive")] {
                prop_assert!(!request.headers().contains_key(name));
            }
        }
    }
}
