use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::User;

/// Who pays for what is under way: a user by name and UID, whatever it has shown of itself.
///
/// Limits go by this and not by credentials: one account has as many tokens as it asks for, and one token several
/// spellings.
#[derive(Clone)]
pub struct Payer(Arc<Account>);

#[derive(PartialEq, Eq, Hash)]
struct Account {
    name: String,
    uid: String,
}

impl Payer {
    pub fn of(user: &User) -> Self {
        Self(Arc::new(Account { name: user.name.clone(), uid: user.uid.clone() }))
    }
}

impl PartialEq for Payer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Payer {}

impl Hash for Payer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for Payer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_account_pays_whatever_else_is_known_of_it() {
        let user = |name: &str, uid: &str, group: &str| User {
            name: name.to_owned(),
            uid: uid.to_owned(),
            groups: vec![group.to_owned()],
            ..User::default()
        };
        let ada = Payer::of(&user("ada", "1", "dev"));
        for (other, is_same) in [
            (user("ada", "1", "ops"), true),
            (user("ada", "2", "dev"), false),
            (user("ada1", "", "dev"), false),
            (user("bob", "1", "dev"), false),
        ] {
            assert_eq!(ada == Payer::of(&other), is_same, "{other:?}");
        }
    }
}
