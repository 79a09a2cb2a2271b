use std::sync::Arc;

use super::super::NotGranted;
use super::super::access_reviewer::AccessReviewer;
use super::super::review_cache::ReviewPurpose;
use super::Impersonation;
use super::modes::{ImpersonationMode, ImpersonationStep, modes};
use kubeapi::{Access, AccessTarget, User};

/// The reason that a requestor may not impersonate a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImpersonationDenied {
    /// The access that the impersonation would need.
    pub access: Access,
    pub refused: NotGranted,
}

impl ImpersonationDenied {
    /// Creates the denial of an unknown caller.
    pub(in super::super) fn unknown() -> Self {
        let access = Access { verb: String::new(), target: AccessTarget::Path(String::new()) };
        Self { access, refused: NotGranted::Unauthenticated }
    }
}

impl Impersonation {
    /// Returns the user that the requestor impersonates, by the first mode allowed to it. `request` is as for
    /// [`modes`].
    ///
    /// # Errors
    /// No mode is allowed, or that cannot be determined. The error is about the first of all modes.
    pub(in super::super) async fn judged(
        &self,
        access_reviewer: &AccessReviewer,
        requestor: &Arc<User>,
        request: Option<&Access>,
    ) -> Result<User, ImpersonationDenied> {
        let mut first = None;
        for mode in modes(requestor, &self.0, request) {
            match is_open(access_reviewer, requestor, &mode).await {
                Ok(()) => return Ok(mode.user),
                Err(impeded) if matches!(impeded.refused, NotGranted::Denied(_)) => {
                    first.get_or_insert(impeded);
                }
                Err(impeded) => return Err(impeded),
            }
        }
        Err(first.expect("there is always the way without constraints"))
    }
}

async fn is_open(
    access_reviewer: &AccessReviewer,
    requestor: &Arc<User>,
    mode: &ImpersonationMode,
) -> Result<(), ImpersonationDenied> {
    let subject = mode.subject.clone().map_or_else(|| requestor.clone(), Arc::new);
    for step in &mode.steps {
        match step {
            ImpersonationStep::Review(access) => ask(access_reviewer, &subject, access).await?,
            ImpersonationStep::AllOrEach(all, each) => match ask(access_reviewer, &subject, all).await {
                Err(ImpersonationDenied { refused: NotGranted::Denied(_), .. }) => {
                    for access in each {
                        ask(access_reviewer, &subject, access).await?;
                    }
                }
                other => other?,
            },
            ImpersonationStep::Never(access, why) => {
                return Err(ImpersonationDenied {
                    access: access.clone(),
                    refused: NotGranted::Denied(Arc::from(why.as_str())),
                });
            }
        }
    }
    Ok(())
}

async fn ask(
    access_reviewer: &AccessReviewer,
    subject: &Arc<User>,
    access: &Access,
) -> Result<(), ImpersonationDenied> {
    let asked = Arc::new(access.clone());
    let decided = access_reviewer.decide(subject, &asked, ReviewPurpose::Request, None).await;
    decided.map(drop).map_err(|refused| ImpersonationDenied { access: access.clone(), refused })
}
