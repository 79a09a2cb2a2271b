//! One rule of a role (`pkg/apis/rbac/v1/evaluation_helpers.go`).

use serde::Deserialize;

use super::null_as_default;
use kubeapi::{AccessAttributes, AccessTarget, ResourceAccessAttributes};

/// A rule of a role: it allows what matches all of its lists.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PolicyRule {
    #[serde(deserialize_with = "null_as_default")]
    verbs: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    api_groups: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    resources: Vec<String>,
    #[serde(deserialize_with = "null_as_default")]
    resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_as_default")]
    non_resource_urls: Vec<String>,
}

const ALL: &str = "*";

impl PolicyRule {
    pub(super) fn allows(&self, access: &AccessAttributes) -> bool {
        has(&self.verbs, &access.verb)
            && match &access.target {
                AccessTarget::Path(path) => self.non_resource_urls.iter().any(|url| url_matches(url, path)),
                AccessTarget::Resource(target) => self.allows_resource(target),
            }
    }

    fn allows_resource(&self, target: &ResourceAccessAttributes) -> bool {
        has(&self.api_groups, &target.group)
            && self.resources.iter().any(|resource| resource_matches(resource, target))
            // An access to all names has an empty one, which no rule with names lists.
            && (self.resource_names.is_empty() || self.resource_names.contains(&target.name))
    }

    /// Returns the memory of the rule in bytes, approximately.
    pub(super) fn len_bytes(&self) -> usize {
        let lists = [&self.verbs, &self.api_groups, &self.resources, &self.resource_names, &self.non_resource_urls];
        let texts = lists.into_iter().flatten().map(|text| size_of::<String>() + text.len());
        size_of::<Self>() + texts.sum::<usize>()
    }
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|entry| entry == ALL || entry == wanted)
}

/// Whether a rule's resource is `*`, the requested `resource` or `resource/subresource`, or `*/subresource`.
fn resource_matches(rule: &str, target: &ResourceAccessAttributes) -> bool {
    let (resource, subresource) = (target.resource.as_str(), target.subresource.as_str());
    if rule == ALL || subresource.is_empty() {
        return rule == ALL || rule == resource;
    }
    let is_of = |parent: &str| {
        let rest = rule.strip_prefix(parent).and_then(|rest| rest.strip_prefix('/'));
        rest == Some(subresource)
    };
    is_of(resource) || is_of(ALL)
}

/// Whether a rule's URL is `*`, the requested path, or a prefix of it followed by `*`.
fn url_matches(rule: &str, path: &str) -> bool {
    rule == ALL || rule == path || (rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*')))
}
