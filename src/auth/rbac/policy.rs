//! The roles and bindings of a cluster, indexed by subject.

mod sample;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio::time::Instant;

use super::affected_users::{AffectedNamespaces, AffectedUsers, PolicySubject, SubjectMap};
use super::rule::{PolicyRules, RULES_MAX, RequestedAccess, RoleRules};
use super::{RbacEvent, RbacKind, RbacObject, RbacObjectMeta, RbacRoleRef, RbacSubject};
use base::LogRateLimit;
use kubeapi::{AccessAttributes, ObjectKey, User, go_quote};

/// The roles and bindings of a cluster, as far as they are known.
///
/// One writer applies the events of the four kinds. A reader gets an allow decision that the apiserver's RBAC authorizer
/// makes from the same objects, or nothing.
#[derive(Debug, Default)]
pub struct RbacPolicy {
    /// Whether nothing is decided. Then neither rules nor an index of subjects are kept, but the digests of rules.
    changes_only: bool,
    roles: HashMap<RbacObjectKey, Role>,
    bindings: HashMap<RbacObjectKey, Arc<RbacBinding>>,
    by_role: HashMap<RbacObjectKey, Vec<Arc<RbacBinding>>>,
    cluster: SubjectIndex,
    namespaces: HashMap<String, SubjectIndex>,
    pub(super) kinds: [RbacKindState; RbacKind::ALL.len()],
    left_out: LogRateLimit,
}

/// An allow decision, and the objects that it follows from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RbacGrant {
    /// The reason that the apiserver gives.
    pub reason: String,
    /// The binding and the role, each with its `resourceVersion`.
    pub objects: [(RbacObjectKey, String); 2],
}

/// Names of objects of one kind.
pub type ObjectNames = Arc<BTreeSet<Box<str>>>;

/// The kind and name of an RBAC object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RbacObjectKey {
    pub kind: RbacKind,
    /// The namespace; empty for cluster roles and their bindings.
    pub namespace: String,
    pub name: String,
}

#[derive(Debug)]
struct Role {
    version: String,
    rules: RoleRules,
    /// The digest of the rules, by which a change of them is found without keeping them.
    digest: [u8; 32],
}

#[derive(Debug)]
struct RbacBinding {
    key: RbacObjectKey,
    version: String,
    /// The role; `None` if it is of an unknown kind, which grants nothing.
    role: Option<RbacObjectKey>,
    subjects: Vec<RbacSubject>,
    /// Whether the subjects are left out, because of the memory limit of the namespace.
    is_left_out: bool,
}

/// The bindings of one scope that may apply to a user, some perhaps repeatedly.
type SubjectIndex = SubjectMap<Vec<Arc<RbacBinding>>>;

/// The state of the objects of one kind.
#[derive(Debug, Default)]
pub(super) struct RbacKindState {
    /// Whether every object was read since the kind was last cleared.
    is_loaded: bool,
    /// Whether an object could not be read.
    is_incomplete: bool,
    /// Whether the objects exceed [`KIND_BYTES_MAX`]. None of them are kept until the kind is cleared.
    is_too_large: bool,
    pub(super) bytes: usize,
    /// The bytes of the objects in each namespace.
    namespaces: HashMap<String, usize>,
}

/// The maximum memory of the objects of one kind, about 250,000 bindings. Above it, nothing is decided here, and changes
/// affect everyone if they depend on bindings that are not kept.
pub(super) const KIND_BYTES_MAX: usize = 256 << 20;
/// The maximum memory of the roles, and of the role bindings, of one namespace, so that one tenant does not end the
/// decisions for all. Above it, roles and the subjects of bindings are left out, and upstream is asked about what they
/// allow.
pub(super) const NAMESPACE_BYTES_MAX: usize = KIND_BYTES_MAX / 16;
/// The maximum number of bindings of a user and its groups that are looked at for one access. Upstream is asked about
/// what they do not allow.
pub(super) const CANDIDATES_MAX: usize = 256;
/// The maximum number of names in the rules that allow an access by name to a user.
pub(super) const NAMES_MAX: usize = 1_000;
/// The memory of an object without its texts, with its entries in maps.
const OBJECT_BYTES: usize = 512;

impl RbacPolicy {
    /// Creates a policy that only returns whose permissions a change may affect, and needs less memory.
    pub fn for_changes_only() -> Self {
        Self { changes_only: true, ..Self::default() }
    }

    /// Applies a change, and returns the users whose permissions it may affect; `None` if it affects no user.
    pub fn apply(&mut self, kind: RbacKind, change: RbacEvent) -> Option<AffectedUsers> {
        let RbacEvent { kind: event, object } = change;
        let key = RbacObjectKey::new(kind, &object.metadata);
        let object = (event != "DELETED").then_some(object);
        let scope = AffectedNamespaces::new(&key.namespace);
        // If an object could not be read, it may have been this one. Then its last state is not known.
        let is_certain = !self.kinds[kind as usize].is_incomplete;
        let affected = if kind.is_binding() {
            let before = self.remove_binding(&key);
            let after = object.map(|object| Arc::new(RbacBinding::new(key, object)));
            after.iter().for_each(|after| self.insert_binding(after));
            let is_same = before.as_ref().zip(after.as_ref()).is_some_and(|(before, after)| before.grants_as(after));
            (!is_same || !is_certain).then(|| affected_by(&scope, before.iter().chain(&after)))
        } else {
            let before = self.remove_role(&key);
            let after = object.map(|object| Role::new(object, self.changes_only));
            let is_same = before.zip(after.as_ref()).is_some_and(|(before, after)| before.digest == after.digest);
            after.into_iter().for_each(|after| self.insert_role(key.clone(), after));
            let bindings = self.by_role.get(&key).into_iter().flatten();
            (!is_same || !is_certain).then(|| affected_by(&scope, bindings))
        };
        let affected = affected?;
        let is_too_large = |kind: RbacKind| kind.is_binding() && self.kinds[kind as usize].is_too_large;
        if RbacKind::ALL.into_iter().any(is_too_large) {
            return Some(AffectedUsers::Everyone);
        }
        Some(affected).filter(|affected| !affected.is_none())
    }

    /// Removes all objects of a kind, because changes may have been missed. Nothing is decided until the kind is loaded.
    pub fn clear_kind(&mut self, kind: RbacKind) {
        self.remove_objects(kind);
        self.kinds[kind as usize] = RbacKindState::default();
    }

    /// Records that all objects of a kind have been applied since it was cleared.
    pub fn set_loaded(&mut self, kind: RbacKind) {
        self.kinds[kind as usize].is_loaded = true;
    }

    /// Records that an object of a kind cannot be read. Nothing is decided until the kind is cleared and loaded again.
    pub fn set_incomplete(&mut self, kind: RbacKind) {
        self.kinds[kind as usize].is_incomplete = true;
    }

    /// Whether all objects of all kinds are known, with their rules.
    pub fn is_complete(&self) -> bool {
        !self.changes_only && !self.is_unreadable() && self.kinds.iter().all(|kind| kind.is_loaded)
    }

    /// Whether an object cannot be read, or the objects of a kind exceed the memory limit.
    pub fn is_unreadable(&self) -> bool {
        self.kinds.iter().any(|kind| kind.is_incomplete || kind.is_too_large)
    }

    /// Returns an allow decision and the objects that it follows from; `None` if no rule allows the access, or if not all
    /// objects are known.
    ///
    /// If several bindings allow the access, those of cluster roles come first. Among them, the apiserver's order is
    /// undefined.
    pub fn find_grant(&self, user: &User, access: &AccessAttributes) -> Option<RbacGrant> {
        if !self.is_complete() {
            return None;
        }
        let request = RequestedAccess::new(access);
        // The roles that do not allow the access. Many bindings may have one large role.
        let (mut insufficient, mut budget) = (Vec::new(), RULES_MAX);
        for binding in self.bindings(user, access).take(CANDIDATES_MAX) {
            let Some(key) = binding.role.as_ref().filter(|key| !insufficient.contains(key)) else { continue };
            let Some(role) = self.roles.get(key).filter(|role| role.rules.allow(&request, &mut budget)) else {
                insufficient.push(key);
                continue;
            };
            // The index knows users and groups. Here, the kind of the subject counts too.
            let mut subjects = binding.subjects.iter();
            let Some(subject) = subjects.find(|subject| subject.applies_to(user, &binding.key.namespace)) else {
                budget = budget.saturating_sub(binding.subjects.len());
                continue;
            };
            return Some(RbacGrant {
                reason: binding.reason(key, subject),
                objects: [(binding.key.clone(), binding.version.clone()), (key.clone(), role.version.clone())],
            });
        }
        None
    }

    /// Returns the names of the objects for which rules with `resourceNames` allow an access to a user; `None` if there
    /// are none, if there are more than [`NAMES_MAX`], if there are more rules than a decision looks at, or if not all RBAC
    /// objects are known.
    pub fn find_names(&self, user: &User, access: &AccessAttributes) -> Option<ObjectNames> {
        if !self.is_complete() {
            return None;
        }
        let (request, mut roles, mut names) = (RequestedAccess::new(access), Vec::new(), BTreeSet::new());
        let (mut left, mut budget) = (NAMES_MAX, RULES_MAX);
        for binding in self.bindings(user, access).take(CANDIDATES_MAX) {
            if budget == 0 {
                return None;
            }
            let Some(key) = binding.role.as_ref().filter(|key| !roles.contains(key)) else { continue };
            let subject = binding.subjects.iter().position(|subject| subject.applies_to(user, &binding.key.namespace));
            budget = budget.saturating_sub(subject.map_or(binding.subjects.len(), |at| at + 1));
            if subject.is_none() {
                continue;
            }
            roles.push(key);
            let Some(role) = self.roles.get(key) else { continue };
            for name in role.rules.names(&request, &mut budget) {
                left = left.checked_sub(1)?;
                if (1..=ObjectKey::NAME_BYTES_MAX).contains(&name.len()) {
                    names.insert(name.into());
                }
            }
        }
        (budget > 0 && !names.is_empty()).then(|| Arc::new(names))
    }

    /// Returns the bindings that may allow an access to a user. A path has no namespace, so only bindings of the whole
    /// cluster apply to it.
    fn bindings(&self, user: &User, access: &AccessAttributes) -> impl Iterator<Item = &Arc<RbacBinding>> {
        let namespace = Some(access.namespace()).filter(|namespace| !namespace.is_empty());
        let scopes = [Some(&self.cluster), namespace.and_then(|namespace| self.namespaces.get(namespace))];
        scopes.into_iter().flatten().flat_map(|index| index.applying_to(user)).flatten()
    }

    fn insert_role(&mut self, key: RbacObjectKey, role: Role) {
        let bytes = role.len_bytes();
        if self.has_room(&key, bytes) && self.charge(&key, bytes) {
            self.roles.insert(key, role);
        }
    }

    fn remove_role(&mut self, key: &RbacObjectKey) -> Option<Role> {
        let before = self.roles.remove(key)?;
        self.release(key, before.len_bytes());
        Some(before)
    }

    fn insert_binding(&mut self, binding: &Arc<RbacBinding>) {
        let has_room = self.has_room(&binding.key, binding.len_bytes());
        let binding = if has_room { binding.clone() } else { Arc::new(binding.without_subjects()) };
        if !self.charge(&binding.key, binding.len_bytes()) {
            return;
        }
        if let Some(role) = &binding.role {
            self.by_role.entry(role.clone()).or_default().push(binding.clone());
        }
        if !self.changes_only {
            let index = self.index(&binding.key);
            binding.subjects().for_each(|subject| index.entry(subject).or_default().push(binding.clone()));
        }
        self.bindings.insert(binding.key.clone(), binding);
    }

    fn remove_binding(&mut self, key: &RbacObjectKey) -> Option<Arc<RbacBinding>> {
        let binding = self.bindings.remove(key)?;
        self.release(key, binding.len_bytes());
        if let Some(role) = &binding.role {
            remove_from(self.by_role.entry(role.clone()), &binding);
        }
        let index = self.index(key);
        binding.subjects().for_each(|subject| remove_from(index.entry(subject), &binding));
        if index.is_empty() {
            self.namespaces.remove(&key.namespace);
        }
        Some(binding)
    }

    /// Returns the index of the scope in which a binding applies.
    fn index(&mut self, binding: &RbacObjectKey) -> &mut SubjectIndex {
        match binding.kind {
            RbacKind::ClusterRoleBinding => &mut self.cluster,
            _ => self.namespaces.entry(binding.namespace.clone()).or_default(),
        }
    }

    /// Whether the namespace of an object has room for it.
    fn has_room(&self, RbacObjectKey { kind, namespace, .. }: &RbacObjectKey, bytes: usize) -> bool {
        let used = self.kinds[*kind as usize].namespaces.get(namespace).copied().unwrap_or_default();
        if self.changes_only || !kind.is_namespaced() || used + bytes <= NAMESPACE_BYTES_MAX {
            return true;
        }
        if let Some(changes) = self.left_out.failed(Instant::now()) {
            tracing::warn!(
                resource = kind.resource(),
                namespace,
                changes,
                bytes_max = NAMESPACE_BYTES_MAX,
                "RBAC objects of a namespace exceed its memory limit; asking upstream about the permissions they grant"
            );
        }
        false
    }

    /// Charges an object to its kind. Returns false if the objects of the kind are not kept, because of their size.
    fn charge(&mut self, RbacObjectKey { kind, namespace, .. }: &RbacObjectKey, bytes: usize) -> bool {
        let (kind, state) = (*kind, &mut self.kinds[*kind as usize]);
        if state.is_too_large {
            return false;
        }
        if state.bytes + bytes > KIND_BYTES_MAX && !self.changes_only {
            tracing::warn!(
                resource = kind.resource(),
                bytes_max = KIND_BYTES_MAX,
                "RBAC objects exceed the memory limit; asking upstream for every permission"
            );
            state.is_too_large = true;
            self.remove_objects(kind);
            return false;
        }
        state.bytes += bytes;
        *state.namespaces.entry(namespace.clone()).or_default() += bytes;
        true
    }

    fn release(&mut self, RbacObjectKey { kind, namespace, .. }: &RbacObjectKey, bytes: usize) {
        let RbacKindState { bytes: all, namespaces, .. } = &mut self.kinds[*kind as usize];
        *all -= bytes;
        if let Entry::Occupied(mut own) = namespaces.entry(namespace.clone()) {
            *own.get_mut() -= bytes;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }

    fn remove_objects(&mut self, kind: RbacKind) {
        self.roles.retain(|key, _| key.kind != kind);
        self.bindings.retain(|key, _| key.kind != kind);
        self.by_role.retain(|_, bindings| {
            bindings.retain(|binding| binding.key.kind != kind);
            !bindings.is_empty()
        });
        match kind {
            RbacKind::ClusterRoleBinding => self.cluster = SubjectIndex::default(),
            RbacKind::RoleBinding => self.namespaces.clear(),
            RbacKind::Role | RbacKind::ClusterRole => {}
        }
        let RbacKindState { bytes, namespaces, .. } = &mut self.kinds[kind as usize];
        *bytes = 0;
        namespaces.clear();
    }
}

impl Role {
    fn new(RbacObject { metadata, rules: PolicyRules { rules, digest }, .. }: RbacObject, changes_only: bool) -> Self {
        let rules = if changes_only { RoleRules::default() } else { rules };
        Self { version: metadata.version, rules, digest }
    }

    fn len_bytes(&self) -> usize {
        OBJECT_BYTES + self.rules.len_bytes()
    }
}

impl RbacBinding {
    fn new(key: RbacObjectKey, RbacObject { metadata, role, subjects, .. }: RbacObject) -> Self {
        let role = key.role(role);
        Self { key, version: metadata.version, role, subjects, is_left_out: false }
    }

    fn without_subjects(&self) -> Self {
        let Self { key, version, role, .. } = self;
        let (key, version, role) = (key.clone(), version.clone(), role.clone());
        Self { key, version, role, subjects: Vec::new(), is_left_out: true }
    }

    /// Whether another version of the binding has the same role and subjects.
    fn grants_as(&self, other: &Self) -> bool {
        !self.is_left_out && (&self.role, &self.subjects) == (&other.role, &other.subjects)
    }

    fn subjects(&self) -> impl ExactSizeIterator<Item = PolicySubject> {
        self.subjects.iter().map(|subject| subject.indexed(&self.key.namespace))
    }

    /// Returns the reason that the apiserver gives.
    fn reason(&self, role: &RbacObjectKey, subject: &RbacSubject) -> String {
        let name = |name: &str, namespace: &str| {
            if namespace.is_empty() { go_quote(name) } else { go_quote(&format!("{name}/{namespace}")) }
        };
        let RbacObjectKey { kind, namespace, name: binding } = &self.key;
        let subject_name = name(&subject.name, subject.service_account_namespace(namespace).unwrap_or_default());
        format!(
            "RBAC: allowed by {} {} of {} {} to {} {subject_name}",
            kind.as_str(),
            name(binding, namespace),
            role.kind.as_str(),
            go_quote(&role.name),
            subject.kind,
        )
    }

    fn len_bytes(&self) -> usize {
        let subjects = self.subjects.iter();
        let texts = subjects.map(|subject| OBJECT_BYTES + subject.name.len() + subject.namespace.len());
        OBJECT_BYTES + texts.sum::<usize>()
    }
}

const SERVICE_ACCOUNT: &str = "ServiceAccount";
const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";

impl RbacSubject {
    /// Whether the user is the subject of a binding in `namespace`. The apiserver's authorizer ignores the API group.
    fn applies_to(&self, user: &User, namespace: &str) -> bool {
        match self.kind.as_str() {
            "User" => user.name == self.name,
            "Group" => user.groups.contains(&self.name),
            SERVICE_ACCOUNT => {
                let namespace = self.service_account_namespace(namespace).unwrap_or_default();
                let account = user.name.strip_prefix(SERVICE_ACCOUNT_PREFIX);
                let name = account.and_then(|account| account.strip_prefix(namespace)?.strip_prefix(':'));
                !namespace.is_empty() && name == Some(&self.name)
            }
            _ => false,
        }
    }

    /// Returns the namespace of a service account, by default that of the binding; `None` for other subjects.
    fn service_account_namespace<'a>(&'a self, binding: &'a str) -> Option<&'a str> {
        let namespace = if self.namespace.is_empty() { binding } else { &self.namespace };
        (self.kind == SERVICE_ACCOUNT).then_some(namespace)
    }

    fn indexed(&self, binding: &str) -> PolicySubject {
        match self.service_account_namespace(binding) {
            Some(namespace) => PolicySubject::User(format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{}", self.name)),
            None if self.kind == "Group" => PolicySubject::Group(self.name.clone()),
            None => PolicySubject::User(self.name.clone()),
        }
    }
}

/// Returns the users whom a change of an object in the scope `changed` affects: the subjects of these bindings. A binding
/// in a namespace grants nothing outside it, whatever its role is.
fn affected_by<'a>(
    changed: &AffectedNamespaces,
    bindings: impl Iterator<Item = &'a Arc<RbacBinding>>,
) -> AffectedUsers {
    let scoped = |binding: &'a Arc<RbacBinding>| {
        (AffectedNamespaces::new(&binding.key.namespace), (!binding.is_left_out).then(|| binding.subjects()))
    };
    AffectedUsers::by_bindings(changed, bindings.map(scoped))
}

fn remove_from<K>(entry: Entry<'_, K, Vec<Arc<RbacBinding>>>, binding: &Arc<RbacBinding>) {
    let Entry::Occupied(mut bindings) = entry else { return };
    bindings.get_mut().retain(|other| !Arc::ptr_eq(other, binding));
    if bindings.get().is_empty() {
        bindings.remove();
    }
}

impl RbacObjectKey {
    fn new(kind: RbacKind, metadata: &RbacObjectMeta) -> Self {
        let namespace = if kind.is_namespaced() { metadata.namespace.clone() } else { String::new() };
        Self { kind, namespace, name: metadata.name.clone() }
    }

    /// Returns the role that this binding refers to; `None` if its kind is unknown.
    fn role(&self, RbacRoleRef { kind, name }: RbacRoleRef) -> Option<Self> {
        match kind.as_str() {
            "ClusterRole" => Some(Self { kind: RbacKind::ClusterRole, namespace: String::new(), name }),
            "Role" => Some(Self { kind: RbacKind::Role, namespace: self.namespace.clone(), name }),
            _ => None,
        }
    }
}
