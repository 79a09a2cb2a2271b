//! The rules of a role (`pkg/apis/rbac/v1/evaluation_helpers.go`).

use std::collections::HashMap;

use serde::Deserialize;

use super::null_as_default;
use crate::auth::sha256::sha256_of;
use kubeapi::{AccessAttributes, AccessTarget, ResourceAccessAttributes};

/// A rule of a role: it allows what matches all of its lists. In [`RoleRules`], the lists are sorted.
#[derive(Debug, Default, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PolicyRule {
    #[serde(deserialize_with = "null_as_default")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    api_groups: Vec<String>,
    /// Empty in [`RoleRules`], which index them by resource.
    #[serde(deserialize_with = "null_as_default")]
    resources: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_as_default")]
    non_resource_urls: Vec<String>,
}

/// The rules of a role as its JSON has them, with their digest.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Option<Vec<PolicyRule>>")]
pub(super) struct PolicyRules {
    pub(super) rules: RoleRules,
    pub(super) digest: [u8; 32],
}

/// The rules of a role, by the resources that they name.
#[derive(Debug, Default)]
pub(super) struct RoleRules {
    rules: Vec<PolicyRule>,
    by_resource: HashMap<String, Vec<usize>>,
}

/// An access, and the resources in rules that match it.
pub(super) struct RequestedAccess<'a> {
    access: &'a AccessAttributes,
    resources: Vec<String>,
}

const ALL: &str = "*";
/// The maximum number of rules of all roles that are looked at for one access. Upstream reviews what they do not allow.
/// So an access takes a few milliseconds at most, whatever roles a namespace's administrator creates and binds.
pub(super) const RULES_MAX: usize = 4_096;

impl<'a> RequestedAccess<'a> {
    /// A rule names all resources, the resource itself or its subresource, or the subresource of all resources.
    pub(super) fn new(access: &'a AccessAttributes) -> Self {
        let resources = match &access.target {
            AccessTarget::Path(_) => Vec::new(),
            AccessTarget::Resource(target) if target.subresource.is_empty() => {
                vec![ALL.to_owned(), target.resource.clone()]
            }
            AccessTarget::Resource(target) => {
                let of = |resource: &str| format!("{resource}/{}", target.subresource);
                vec![ALL.to_owned(), of(&target.resource), of(ALL)]
            }
        };
        Self { access, resources }
    }
}

impl From<Option<Vec<PolicyRule>>> for PolicyRules {
    fn from(rules: Option<Vec<PolicyRule>>) -> Self {
        let rules = rules.unwrap_or_default();
        Self { digest: sha256_of(&rules), rules: RoleRules::new(rules) }
    }
}

impl RoleRules {
    fn new(mut rules: Vec<PolicyRule>) -> Self {
        let mut by_resource: HashMap<_, Vec<_>> = HashMap::new();
        for (at, rule) in rules.iter_mut().enumerate() {
            for list in [&mut rule.verbs, &mut rule.api_groups, &mut rule.resource_names] {
                list.sort_unstable();
            }
            for resource in std::mem::take(&mut rule.resources) {
                by_resource.entry(resource).or_default().push(at);
            }
        }
        Self { rules, by_resource }
    }

    /// Whether a rule allows the access. Looks at no more rules than `budget`, which it reduces by their number.
    pub(super) fn allow(&self, request: &RequestedAccess<'_>, budget: &mut usize) -> bool {
        let RequestedAccess { access, resources } = request;
        let (left, charge) = (*budget, |_: &_| *budget -= 1);
        match &access.target {
            AccessTarget::Path(path) => {
                self.rules.iter().take(left).inspect(charge).any(|rule| rule.allows_path(&access.verb, path))
            }
            AccessTarget::Resource(target) => {
                let named = resources.iter().filter_map(|resource| self.by_resource.get(resource)).flatten();
                let mut rules = named.map(|at| &self.rules[*at]).take(left).inspect(charge);
                rules.any(|rule| rule.allows_named_resource(&access.verb, target))
            }
        }
    }

    /// Returns the object names for which these rules allow an access, from rules that allow no other objects.
    /// Looks at no more rules than `budget`, which it reduces by their number.
    pub(super) fn names(&self, request: &RequestedAccess<'_>, budget: &mut usize) -> impl Iterator<Item = &str> {
        let RequestedAccess { access, resources } = request;
        let named = resources.iter().filter_map(|resource| self.by_resource.get(resource)).flatten();
        let rules = named.map(|at| &self.rules[*at]).take(*budget).inspect(|_| *budget -= 1);
        let allows = |rule: &&PolicyRule| match &access.target {
            AccessTarget::Path(_) => false,
            AccessTarget::Resource(target) => has(&rule.verbs, &access.verb) && has(&rule.api_groups, &target.group),
        };
        rules.filter(allows).flat_map(|rule| &rule.resource_names).map(String::as_str)
    }

    /// Returns an access in a namespace that the first of these rules allows: of its first resource or path. Wildcards
    /// become `get`, the core group, pods.
    pub(super) fn example(&self, namespace: &str) -> Option<AccessAttributes> {
        let first = |list: &[String], any: &str| {
            list.first().map(|entry| if entry == ALL { any.to_owned() } else { entry.clone() })
        };
        let Some((resource, rules)) = self.by_resource.iter().min_by_key(|(resource, _)| *resource) else {
            let rule = self.rules.first()?;
            let path = rule.non_resource_urls.first()?.trim_end_matches(ALL).to_owned();
            return Some(AccessAttributes { verb: first(&rule.verbs, "get")?, target: AccessTarget::Path(path) });
        };
        let rule = &self.rules[*rules.first()?];
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let target = ResourceAccessAttributes {
            group: first(&rule.api_groups, "")?,
            resource: if resource == ALL { "pods" } else { resource }.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: rule.resource_names.first().cloned().unwrap_or_default(),
            ..ResourceAccessAttributes::default()
        };
        let target = AccessTarget::Resource(Box::new(target));
        Some(AccessAttributes { verb: first(&rule.verbs, "get")?, target })
    }

    /// Returns the memory of the rules in bytes, approximately.
    pub(super) fn len_bytes(&self) -> usize {
        let resources = self.by_resource.iter();
        let resources = resources.map(|(name, rules)| 2 * size_of::<String>() + name.len() + size_of_val(&rules[..]));
        resources.sum::<usize>() + self.rules.iter().map(PolicyRule::len_bytes).sum::<usize>()
    }
}

impl PolicyRule {
    fn allows_path(&self, verb: &str, path: &str) -> bool {
        self.non_resource_urls.iter().any(|url| url_matches(url, path)) && has(&self.verbs, verb)
    }

    /// Whether the rule, which names the resource, allows the access.
    fn allows_named_resource(&self, verb: &str, target: &ResourceAccessAttributes) -> bool {
        has(&self.verbs, verb)
            && has(&self.api_groups, &target.group)
            // An access to all names has an empty one, which rules rarely list.
            && (self.resource_names.is_empty() || has_exactly(&self.resource_names, &target.name))
    }

    fn len_bytes(&self) -> usize {
        let lists = [&self.verbs, &self.api_groups, &self.resource_names, &self.non_resource_urls];
        let texts = lists.into_iter().flatten().map(|text| size_of::<String>() + text.len());
        size_of::<Self>() + texts.sum::<usize>()
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    has_exactly(list, ALL) || has_exactly(list, wanted)
}

/// Whether a sorted list has this entry. A neighbour may create lists of a hundred thousand.
fn has_exactly(list: &[String], wanted: &str) -> bool {
    list.binary_search_by(|entry| entry.as_str().cmp(wanted)).is_ok()
}

/// Whether a rule's URL is `*`, the requested path, or a prefix of it followed by `*`.
fn url_matches(rule: &str, path: &str) -> bool {
    rule == ALL || rule == path || (rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*')))
}
