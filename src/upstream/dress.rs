//! The identity headers of a request: what is refused, what is removed, what is put in, in this order. Every way to
//! more rights that has been found in proxies like this one went through a mistake here (reliability.md §3.5, T1, T2).

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::kube::User;

/// Why a request is not taken: it could be read in two ways, and one of them is somebody else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguous {
    #[error("the Connection header names {0}, which would drop it on its way")]
    HopByHop(HeaderName),
    #[error("the header {0} is there more than once")]
    Repeated(HeaderName),
    #[error("the header {0} is not spelled as it should be")]
    Misspelled(HeaderName),
    #[error("the request has both a Content-Length and a Transfer-Encoding")]
    Framing,
}

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_UID: HeaderName = HeaderName::from_static("impersonate-uid");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const IMPERSONATE_EXTRA: &str = "impersonate-extra-";

/// Whether a header asks for another identity than the caller's.
pub fn is_impersonation(name: &HeaderName) -> bool {
    name.as_str().starts_with("impersonate-")
}

/// Whether a header says who somebody is by the word of a proxy.
pub fn is_asserted(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-remote-")
}

/// Whether a header decides who a request is from.
fn is_identity(name: &HeaderName) -> bool {
    is_impersonation(name) || is_asserted(name) || *name == AUTHORIZATION
}

/// Refuses what two readers could take for two different callers or two different requests.
pub fn inspect(headers: &HeaderMap) -> Result<(), Ambiguous> {
    if let Some(name) = listed(headers).find(is_identity) {
        return Err(Ambiguous::HopByHop(name));
    }
    for name in [HOST, AUTHORIZATION, CONTENT_LENGTH, IMPERSONATE_USER, IMPERSONATE_UID] {
        if headers.get_all(&name).iter().nth(1).is_some() {
            return Err(Ambiguous::Repeated(name));
        }
    }
    // Some servers take an underscore for a dash.
    let misread = |name: &&HeaderName| {
        name.as_str().contains('_') && name.as_str().replace('_', "-").parse().is_ok_and(|read| is_identity(&read))
    };
    if let Some(name) = headers.keys().find(misread) {
        return Err(Ambiguous::Misspelled(name.clone()));
    }
    if headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING) {
        return Err(Ambiguous::Framing);
    }
    Ok(())
}

/// The names that all `Connection` headers list.
pub(super) fn listed(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(CONNECTION).iter().map(HeaderValue::as_bytes);
    values
        .flat_map(|value| value.split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// Removes whatever says who the request is from.
pub(super) fn undress(headers: &mut HeaderMap) {
    remove(headers, |name| is_impersonation(name) || is_asserted(name) || *name == AUTHORIZATION);
}

/// Removes what only a proxy's word stands for: upstream has no reason to believe it of ours.
pub(super) fn drop_asserted(headers: &mut HeaderMap) {
    remove(headers, is_asserted);
}

/// Puts a user in, whole: every part that is not set here would be somebody else's.
///
/// # Errors
/// The user has a part that no header can carry.
pub(super) fn dress_as(headers: &mut HeaderMap, user: &User) -> Result<(), http::Error> {
    remove(headers, is_impersonation);
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes());
    headers.insert(IMPERSONATE_USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(IMPERSONATE_UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(IMPERSONATE_GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = HeaderName::try_from(format!("{IMPERSONATE_EXTRA}{}", escaped(key)))?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// An extra's key as a header can carry it: upstream lower-cases and percent-decodes it (semantics.md §10.4).
fn escaped(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.extend([byte >> 4, byte & 15].map(|digit| char::from(HEX[usize::from(digit)])));
        }
    }
    text
}

fn remove(headers: &mut HeaderMap, which: impl Fn(&HeaderName) -> bool) {
    let names: Vec<_> = headers.keys().filter(|name| which(name)).cloned().collect();
    names.iter().for_each(|name| drop(headers.remove(name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    /// T1: `Connection` may not name what decides about rights.
    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
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

    /// T2: of the identity that a caller names nothing is left beside ours.
    #[test]
    fn a_user_is_put_in_whole() {
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
        dress_as(&mut dressed, &user).expect("headers can carry it");
        let expected = headers(&[
            ("impersonate-user", "ada"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("impersonate-extra-example.com%2fid", "7"),
        ]);
        assert_eq!(dressed, expected);
        let unspeakable = User { name: "a\nb".to_owned(), ..User::default() };
        assert!(dress_as(&mut HeaderMap::new(), &unspeakable).is_err());
    }
}
