use super::{RbacObjectKey, RbacPolicy, RbacSubject};
use crate::auth::MASTERS;
use kubeapi::{AccessAttributes, User};

/// The name of a member of a group.
const MEMBER: &str = "kube-fanout-check";

impl RbacPolicy {
    /// Returns accesses that bindings allow to one of their subjects: at most `count`, spread over all bindings.
    pub fn sample(&self, count: usize) -> Vec<(User, AccessAttributes)> {
        let mut keys: Vec<_> = self.bindings.keys().collect();
        keys.sort_unstable_by_key(|key| (key.kind.resource(), &key.namespace, &key.name));
        let examples: Vec<_> = keys.into_iter().filter_map(|key| self.example(key)).collect();
        let step = examples.len().div_ceil(count.max(1)).max(1);
        examples.into_iter().step_by(step).collect()
    }

    /// Returns an access that a binding allows to one of its subjects.
    fn example(&self, binding: &RbacObjectKey) -> Option<(User, AccessAttributes)> {
        let binding = self.bindings.get(binding)?;
        let role = self.roles.get(binding.role.as_ref()?)?;
        let access = role.rules.example(&binding.key.namespace)?;
        let mut users = binding.subjects.iter().filter_map(|subject| subject.example(&binding.key.namespace));
        let user = users.find(|user| self.find_grant(user, &access).is_some())?;
        Some((user, access))
    }
}

impl RbacSubject {
    /// Returns a user that is this subject of a binding in `namespace`.
    fn example(&self, namespace: &str) -> Option<User> {
        let (name, mut groups) = match (self.kind.as_str(), self.service_account_namespace(namespace)) {
            (_, Some(namespace)) => (
                format!("system:serviceaccount:{namespace}:{}", self.name),
                vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
            ),
            ("User", _) => (self.name.clone(), Vec::new()),
            ("Group", _) if self.name != MASTERS => (MEMBER.to_owned(), vec![self.name.clone()]),
            _ => return None,
        };
        groups.push("system:authenticated".to_owned());
        groups.dedup();
        Some(User { name, groups, ..User::default() })
    }
}
