use std::pin::Pin;
use std::sync::Arc;

use super::credential::Token;
use crate::kube::{Access, User};
use crate::upstream::{AccessVerdict, Client, Error, TokenVerdict};

/// Whoever answers questions about callers: upstream, and in tests what the test says.
pub(super) trait Reviews: Send + Sync {
    /// Whose the token is.
    fn token(&self, token: &Token, audiences: &Arc<[String]>) -> ReviewFuture<TokenVerdict>;

    /// Whether the user may.
    fn access(&self, user: &Arc<User>, access: &Arc<Access>) -> ReviewFuture<AccessVerdict>;
}

/// Boxed, for it is large and rarely asked for.
pub(super) type ReviewFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl Reviews for Client {
    fn token(&self, token: &Token, audiences: &Arc<[String]>) -> ReviewFuture<TokenVerdict> {
        let (client, token, audiences) = (self.clone(), token.clone(), audiences.clone());
        Box::pin(async move { client.review_token(token.reveal(), &audiences).await })
    }

    fn access(&self, user: &Arc<User>, access: &Arc<Access>) -> ReviewFuture<AccessVerdict> {
        let (client, user, access) = (self.clone(), user.clone(), access.clone());
        Box::pin(async move { client.review_access(&user, &access).await })
    }
}
