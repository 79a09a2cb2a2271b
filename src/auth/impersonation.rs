//! The rights that a caller needs for impersonation, as in the apiserver's impersonation filter (R-IMPERSONATE-2;
//! KEP-5284 from 1.36 on).

mod authorize;
mod modes;
mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

pub use authorize::ImpersonationDenied;

use super::credential::{text, unescaped};
use kubeapi::{User, go_quote};

/// The impersonation headers name no user, which is answered with 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidImpersonation {
    /// The headers name groups or extras of a user, but no user name.
    #[error("requested {} without impersonating a user name", GoUser(.0))]
    MissingUser(User),
    #[error("the header {0} is not UTF-8")]
    NotText(HeaderName),
}

/// The user that a caller requests to impersonate, with exactly the parts that the headers name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impersonation(User);

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

impl Impersonation {
    /// Reads the impersonation headers; returns `None` if the caller requests no impersonation.
    ///
    /// # Errors
    /// The headers name parts of a user, but not the user.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, InvalidImpersonation> {
        let read = |name: &HeaderName, value: &HeaderValue| match text(value) {
            Some(text) => Ok(text.to_owned()),
            None => Err(InvalidImpersonation::NotText(name.clone())),
        };
        let all = |name: &'static str| {
            let name = HeaderName::from_static(name);
            headers.get_all(&name).iter().map(|value| read(&name, value)).collect::<Result<Vec<_>, _>>()
        };
        let first = |name| all(name).map(|values| values.into_iter().next().unwrap_or_default());
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for (name, value) in headers {
            // Header names are in lower case here, so a key is lower-cased before it is unescaped, as in upstream.
            if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                extra.entry(unescaped(key)).or_default().push(read(name, value)?);
            }
        }
        let user = User { name: first(USER)?, uid: first(UID)?, groups: all(GROUP)?, extra };
        if !user.name.is_empty() {
            return Ok(Some(Self(user)));
        }
        let is_whole = user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty();
        if is_whole { Ok(None) } else { Err(InvalidImpersonation::MissingUser(user)) }
    }
}

/// A user as Go's `%#v` prints it.
struct GoUser<'a>(&'a User);

impl fmt::Display for GoUser<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let strings = |texts: &[String]| {
            let quoted: Vec<_> = texts.iter().map(|text| go_quote(text)).collect();
            format!("{{{}}}", quoted.join(", "))
        };
        let User { name, uid, groups, extra } = self.0;
        let groups = if groups.is_empty() { "(nil)".to_owned() } else { strings(groups) };
        let pairs = extra.iter().map(|(key, values)| format!("{}:[]string{}", go_quote(key), strings(values)));
        let extra = match pairs.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "(nil)".to_owned(),
            some => format!("{{{some}}}"),
        };
        let (name, uid) = (go_quote(name), go_quote(uid));
        write!(
            f,
            "&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:[]string{groups}, Extra:map[string][]string{extra}}}"
        )
    }
}
