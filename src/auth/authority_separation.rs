use std::sync::Arc;

use parking_lot::Mutex;

use super::Authorities;

/// The purpose of a set of authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorityRole {
    Client,
    FrontProxy,
}

impl AuthorityRole {
    /// Returns the role of the authority, for logs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::FrontProxy => "front_proxy",
        }
    }
}

/// Keeps two sets of authorities apart: an authority in both would make every client a front proxy.
#[derive(Debug, Clone, Default)]
pub struct AuthoritySeparation(Arc<Mutex<AuthoritySets>>);

#[derive(Debug, Default)]
struct AuthoritySets {
    clients: Vec<Vec<u8>>,
    proxies: Vec<Vec<u8>>,
}

/// The same authority would be trusted for clients and for front proxies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "delegated.clientCA and delegated.frontProxyCA share a certificate authority, so every client could claim any \
         identity; use separate authorities"
)]
pub struct SharedAuthorityError;

impl AuthoritySeparation {
    /// Sets the authorities of a role, unless one of them has the other role too.
    ///
    /// # Errors
    /// An authority has the other role. The previous authorities stay.
    pub fn admit(&self, role: AuthorityRole, authorities: &Authorities) -> Result<(), SharedAuthorityError> {
        let mut sides = self.0.lock();
        let AuthoritySets { clients, proxies } = &mut *sides;
        let (own, others) = match role {
            AuthorityRole::Client => (clients, proxies),
            AuthorityRole::FrontProxy => (proxies, clients),
        };
        let keys: Vec<_> = authorities.keys().map(<[u8]>::to_vec).collect();
        if keys.iter().any(|key| others.contains(key)) {
            return Err(SharedAuthorityError);
        }
        *own = keys;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::certificate::tests::Authority;
    use super::*;

    #[test]
    fn authority_cannot_serve_both_clients_and_front_proxies() {
        let [one, other, third] = ["one", "other", "third"].map(|name| Authority::new(name).trusted());
        let apart = AuthoritySeparation::default();
        for (what, role, authorities, admitted) in [
            ("clients of one", AuthorityRole::Client, &one, true),
            ("proxies of the same", AuthorityRole::FrontProxy, &one, false),
            ("proxies of another", AuthorityRole::FrontProxy, &other, true),
            ("clients of what proxies have", AuthorityRole::Client, &other, false),
            ("the first ones again, which stayed", AuthorityRole::Client, &one, true),
            ("proxies of a third", AuthorityRole::FrontProxy, &third, true),
            ("clients of what proxies had", AuthorityRole::Client, &other, true),
        ] {
            assert_eq!(apart.admit(role, authorities).is_ok(), admitted, "{what}");
        }
    }
}
