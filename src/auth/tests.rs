//! Tests of leases, and of what may delay their reviews, on a paused clock.

mod compared_tokens;
mod leases;
mod local;
mod many_callers;
mod namespaces;
mod policy;
mod steps;
mod stub;
mod tokens;
mod verified_tokens;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) use stub::{StubReview, StubReviewClient, authorizer, authorizer_with, info};

use super::{
    AffectedNamespaces, AffectedUsers, AuthConfig, Authorizer, GrantError, ReadPermission, ReadableNamespaces,
    RevokedPermission, SubjectMap,
};
use crate::auth::rbac::PolicySubject;
use base::BackgroundTasks;

/// An authorizer with its stub.
struct Scene {
    authorizer: Authorizer,
    stub: Arc<StubReviewClient>,
    _tasks: BackgroundTasks,
}

fn scene() -> Scene {
    scene_with(AuthConfig::remembering_for_a_day())
}

fn scene_with(config: AuthConfig) -> Scene {
    let (authorizer, stub, tasks) = authorizer(config);
    Scene { authorizer, stub, _tasks: tasks }
}

impl Scene {
    /// Opens a watch.
    async fn watch(&self, token: &str, uri: &str) -> ReadPermission {
        let caller = self.authorizer.known(token, [127, 0, 0, 1]).await.expect("authenticated");
        self.authorizer.grant(&caller, &info(uri)).await.expect("it is allowed")
    }

    /// The number of access reviews and of token reviews since the last call.
    fn counted(&self) -> (usize, usize) {
        let reviews = self.stub.reviews();
        let accesses = reviews.iter().filter(|review| review.namespace.is_some()).count();
        (accesses, reviews.len() - accesses)
    }

    /// Opens a watch of the readable ones of these namespaces.
    async fn readable(&self, token: &str, namespaces: &[String]) -> Result<ReadableNamespaces, GrantError> {
        self.readable_of(token, "/api/v1/pods?watch=1", namespaces).await
    }

    async fn readable_of(
        &self,
        token: &str,
        uri: &str,
        namespaces: &[String],
    ) -> Result<ReadableNamespaces, GrantError> {
        self.stub.deny(token, "");
        let caller = self.authorizer.known(token, [127, 0, 0, 1]).await.expect("authenticated");
        let permit = self.authorizer.readable(&caller, &info(uri), || true).await?;
        let part = permit.namespaces().expect("it is not for all").clone();
        part.review_all(namespaces.iter().map(String::as_str)).await?;
        Ok(part)
    }
}

fn named(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("t{number}")).collect()
}

/// A change of one user's permissions, in one namespace or everywhere.
fn change(user: &str, namespace: &str) -> AffectedUsers {
    let mut subjects = SubjectMap::default();
    subjects.add(PolicySubject::User(user.to_owned()), &AffectedNamespaces::new(namespace));
    AffectedUsers::Only(subjects, BTreeSet::new())
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The time until this is cancelled.
async fn time_to_end(token: &CancellationToken) -> Duration {
    let began = Instant::now();
    token.cancelled().await;
    began.elapsed()
}

impl Authorizer {
    /// Records a policy change, as the watches of RBAC objects report it.
    fn policy_changed(&self, affected: &AffectedUsers) {
        self.changes().add(affected);
    }

    /// Records that the watch of one more kind of policy objects has begun.
    fn policy_watch_started(&self) {
        self.changes().watch_started();
    }

    /// Records whether all policy changes are received as they happen.
    fn set_policy_watched(&self, is_watched: bool) {
        self.changes().set_open(is_watched);
    }
}

impl ReadPermission {
    fn end_token(&self) -> CancellationToken {
        self.lease.as_ref().expect("it is that of a watch").state.end_token.clone()
    }

    /// Why it has ended, if it has.
    fn end_reason(&self) -> Option<&'static str> {
        self.revoked().map(|revoked| revoked.reason.as_str())
    }

    fn revoked(&self) -> Option<&RevokedPermission> {
        self.lease.as_ref().and_then(|lease| lease.state.revoked())
    }
}
