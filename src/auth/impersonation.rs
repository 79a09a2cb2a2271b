//! The permissions that a caller needs for impersonation, as in the apiserver's impersonation filter (R-IMPERSONATE-2;
//! KEP-5284 from 1.36 on).

mod modes;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

use self::modes::{ImpersonationMode, ImpersonationStep, modes};
use super::GrantError;
use super::access_reviewer::AccessReviewer;
use super::credential::{text, unescaped};
use super::review_queue::ReviewPurpose;
use kubeapi::{AccessAttributes, AccessTarget, User, go_quote};

/// The impersonation headers name no user, which is answered with 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidImpersonation {
    /// The headers name groups or extras of a user, but no user name.
    #[error("requested {} without impersonating a user name", GoFormattedUser(.0))]
    MissingUser(User),
    #[error("the header {0} is not UTF-8")]
    NotText(HeaderName),
}

/// The user that a caller requests to impersonate, with exactly the parts that the headers name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impersonation(User);

/// The reason that a requestor may not impersonate a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImpersonationDenied {
    /// The access that the impersonation would need.
    pub access: AccessAttributes,
    pub refused: GrantError,
}

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

impl Impersonation {
    /// Reads the impersonation headers; returns `None` if the caller requests no impersonation.
    ///
    /// # Errors
    /// The headers name parts of a user, but not the user.
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<Self>, InvalidImpersonation> {
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
        let is_empty = user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty();
        if is_empty { Ok(None) } else { Err(InvalidImpersonation::MissingUser(user)) }
    }

    /// Returns the user that the requestor impersonates, by the first mode allowed to it. `request` is as for
    /// [`modes()`].
    ///
    /// # Errors
    /// No mode is allowed, or that cannot be determined. The error is about the first of all modes.
    pub(super) async fn authorize(
        &self,
        access_reviewer: &AccessReviewer,
        requestor: &Arc<User>,
        request: Option<&AccessAttributes>,
    ) -> Result<User, ImpersonationDenied> {
        let mut first = None;
        for mode in modes(requestor, &self.0, request) {
            match check_mode(access_reviewer, requestor, &mode).await {
                Ok(()) => return Ok(mode.user),
                Err(denied) if matches!(denied.refused, GrantError::Denied(_)) => {
                    first.get_or_insert(denied);
                }
                Err(denied) => return Err(denied),
            }
        }
        Err(first.expect("there is always the way without constraints"))
    }
}

impl ImpersonationDenied {
    /// Creates the denial of an unknown caller.
    pub(super) fn unknown() -> Self {
        let access = AccessAttributes { verb: String::new(), target: AccessTarget::Path(String::new()) };
        Self { access, refused: GrantError::Unauthenticated }
    }
}

async fn check_mode(
    access_reviewer: &AccessReviewer,
    requestor: &Arc<User>,
    mode: &ImpersonationMode,
) -> Result<(), ImpersonationDenied> {
    let subject = mode.subject.clone().map_or_else(|| requestor.clone(), Arc::new);
    for step in &mode.steps {
        match step {
            ImpersonationStep::Review(access) => review(access_reviewer, &subject, access).await?,
            ImpersonationStep::AllOrEach(all, each) => match review(access_reviewer, &subject, all).await {
                Err(ImpersonationDenied { refused: GrantError::Denied(_), .. }) => {
                    for access in each {
                        review(access_reviewer, &subject, access).await?;
                    }
                }
                other => other?,
            },
            ImpersonationStep::Never(access, reason) => {
                return Err(ImpersonationDenied {
                    access: access.clone(),
                    refused: GrantError::Denied(Arc::from(reason.as_str())),
                });
            }
        }
    }
    Ok(())
}

async fn review(
    access_reviewer: &AccessReviewer,
    subject: &Arc<User>,
    access: &AccessAttributes,
) -> Result<(), ImpersonationDenied> {
    let decided = access_reviewer.decide(subject, &Arc::new(access.clone()), ReviewPurpose::Request, None).await;
    decided.map(drop).map_err(|refused| ImpersonationDenied { access: access.clone(), refused })
}

/// A user as Go's `%#v` prints it.
struct GoFormattedUser<'a>(&'a User);

impl fmt::Display for GoFormattedUser<'_> {
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
