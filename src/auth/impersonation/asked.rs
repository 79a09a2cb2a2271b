use std::sync::Arc;

use super::super::Refused;
use super::super::accesses::{Accesses, Asks};
use super::Impersonation;
use super::modes::{Mode, Step, modes};
use crate::kube::{Access, Status, Target, User};

/// Why a requestor is not taken for somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impeded {
    /// What it would have to be allowed.
    access: Access,
    pub(in super::super) refused: Refused,
}

impl Impeded {
    /// Nobody knows who asks.
    pub(in super::super) fn unknown() -> Self {
        let access = Access { verb: String::new(), target: Target::Path(String::new()) };
        Self { access, refused: Refused::Unauthenticated }
    }

    /// In the apiserver's words.
    pub fn status(&self, requestor: &str) -> Status {
        self.refused.status_of(requestor, &self.access)
    }
}

impl Impersonation {
    /// Whom the requestor is taken for, by the first way that is open to it; what it is told otherwise is about the
    /// first of all. `request`: as for [`modes`].
    ///
    /// # Errors
    /// No way is open, or that cannot be found out.
    pub(in super::super) async fn judged(
        &self,
        accesses: &Accesses,
        requestor: &Arc<User>,
        request: Option<&Access>,
    ) -> Result<User, Impeded> {
        let mut first = None;
        for mode in modes(requestor, &self.0, request) {
            match is_open(accesses, requestor, &mode).await {
                Ok(()) => return Ok(mode.user),
                Err(impeded) if matches!(impeded.refused, Refused::Denied(_)) => {
                    first.get_or_insert(impeded);
                }
                Err(impeded) => return Err(impeded),
            }
        }
        Err(first.expect("there is always the way without constraints"))
    }
}

async fn is_open(accesses: &Accesses, requestor: &Arc<User>, mode: &Mode) -> Result<(), Impeded> {
    let subject = mode.subject.clone().map_or_else(|| requestor.clone(), Arc::new);
    for step in &mode.steps {
        match step {
            Step::Ask(access) => ask(accesses, &subject, access).await?,
            Step::AllOrEach(all, each) => match ask(accesses, &subject, all).await {
                Err(Impeded { refused: Refused::Denied(_), .. }) => {
                    for access in each {
                        ask(accesses, &subject, access).await?;
                    }
                }
                other => other?,
            },
            Step::Never(access, why) => {
                return Err(Impeded { access: access.clone(), refused: Refused::Denied(Arc::from(why.as_str())) });
            }
        }
    }
    Ok(())
}

async fn ask(accesses: &Accesses, subject: &Arc<User>, access: &Access) -> Result<(), Impeded> {
    let decided = accesses.decide(subject, &Arc::new(access.clone()), Asks::Request).await;
    decided.map(drop).map_err(|refused| Impeded { access: access.clone(), refused })
}
