//! What a caller must be allowed to be taken for somebody else, as apiserver's impersonation filter has it
//! (semantics.md §10.4, the rules of all versions).

use std::collections::BTreeMap;

use http::HeaderMap;

use super::credential::{text, unescaped};
use crate::kube::{Access, ResourceTarget, Target, User};
use crate::upstream::is_impersonation;

/// Headers that name parts of somebody, but nobody: 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("requested impersonation without a user name")]
pub struct Headless;

/// Somebody a caller wants to be taken for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impersonation {
    /// Exactly what the headers name.
    pub user: User,
    /// Every one of these must be allowed.
    pub wanted: Vec<Access>,
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const EXTRA: &str = "impersonate-extra-";

impl Impersonation {
    /// `None`: the caller is content with itself.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, Headless> {
        if !headers.keys().any(is_impersonation) {
            return Ok(None);
        }
        let first = |name: &str| headers.get(name).and_then(text).unwrap_or_default().to_owned();
        let groups = headers.get_all("impersonate-group").iter().filter_map(text).map(str::to_owned).collect();
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for (name, value) in headers {
            if let (Some(key), Some(value)) = (name.as_str().strip_prefix(EXTRA), text(value)) {
                extra.entry(unescaped(key).to_lowercase()).or_default().push(value.to_owned());
            }
        }
        let user = User { name: first("impersonate-user"), uid: first("impersonate-uid"), groups, extra };
        if user.name.is_empty() {
            return Err(Headless);
        }
        let wanted = wanted(&user);
        Ok(Some(Self { user, wanted }))
    }
}

fn wanted(user: &User) -> Vec<Access> {
    let name = match service_account(&user.name) {
        Some((namespace, name)) => target("", "serviceaccounts", namespace, "", name),
        None => target("", "users", "", "", &user.name),
    };
    let groups = user.groups.iter().map(|group| target("", "groups", "", "", group));
    let extra = user
        .extra
        .iter()
        .flat_map(|(key, values)| values.iter().map(move |value| target(AUTHENTICATION, "userextras", "", key, value)));
    let uid = (!user.uid.is_empty()).then(|| target(AUTHENTICATION, "uids", "", "", &user.uid));
    std::iter::once(name).chain(groups).chain(extra).chain(uid).collect()
}

fn target(group: &str, resource: &str, namespace: &str, subresource: &str, name: &str) -> Access {
    let target = ResourceTarget {
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..ResourceTarget::default()
    };
    Access { verb: "impersonate".to_owned(), target: Target::Resource(Box::new(target)) }
}

/// `system:serviceaccount:NAMESPACE:NAME`, with two names that can be names.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let is_name = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
    };
    (is_name(namespace) && is_name(name)).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn read(lines: &[(&'static str, &'static str)]) -> Result<Option<Impersonation>, Headless> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        Impersonation::of(&headers)
    }

    #[test]
    fn every_part_of_somebody_has_to_be_allowed() {
        let asked = read(&[
            ("impersonate-user", "ada"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-example.com%2fscopes", "a"),
        ]);
        let asked = asked.expect("well formed").expect("somebody");
        assert_eq!((asked.user.name.as_str(), asked.user.groups.len(), asked.user.uid.as_str()), ("ada", 2, "7"));
        let wanted = [
            target("", "users", "", "", "ada"),
            target("", "groups", "", "", "dev"),
            target("", "groups", "", "", "ops"),
            target("authentication.k8s.io", "userextras", "", "example.com/scopes", "a"),
            target("authentication.k8s.io", "uids", "", "", "7"),
        ];
        assert_eq!(asked.wanted, wanted);
    }

    #[test]
    fn service_accounts_are_asked_about_as_such() {
        let asked = read(&[("impersonate-user", "system:serviceaccount:t1:builder")]).expect("well formed");
        assert_eq!(asked.expect("somebody").wanted, [target("", "serviceaccounts", "t1", "", "builder")]);
        let asked = read(&[("impersonate-user", "system:serviceaccount:t1:a:b")]).expect("well formed");
        assert_eq!(asked.expect("somebody").wanted, [target("", "users", "", "", "system:serviceaccount:t1:a:b")]);
    }

    #[test]
    fn parts_of_nobody_are_refused() {
        assert_eq!(read(&[("x-other", "a")]), Ok(None));
        assert_eq!(read(&[("impersonate-group", "system:masters")]), Err(Headless));
        assert_eq!(read(&[("impersonate-extra-a", "b")]), Err(Headless));
    }
}
