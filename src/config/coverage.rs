//! Which objects the feeds may cache: the node's own, and sensitive kinds.

use super::Problems;
use crate::serve::{Coverage, Sensitive};

/// The coverage settings from outside the configuration file.
#[derive(Debug, Default)]
pub(super) struct CoverageOverrides {
    pub(super) node: Option<String>,
    /// The sensitive kinds named by flags, which replace the file's list.
    pub(super) sensitive: Vec<String>,
    pub(super) authorizes: bool,
}

const NODE_NAME_MAX: usize = 253;

impl CoverageOverrides {
    pub(super) fn put(self, coverage: &mut Coverage, problems: &mut Problems) {
        let Self { node, sensitive, authorizes } = self;
        if let Some(name) = node.as_deref().filter(|name| !is_node_name(name)) {
            problems.add(format!("node: {name:?} is not a node name (expected a DNS subdomain)"));
        }
        coverage.node = node.map(Into::into);
        coverage.authorizes = authorizes;
        if !sensitive.is_empty() {
            coverage.sensitive.clear();
        }
        for name in sensitive {
            match Sensitive::ALL.into_iter().find(|kind| kind.as_str() == name) {
                Some(kind) => coverage.sensitive.push(kind),
                None => {
                    problems.add(format!(
                        "feeds.sensitive: {name:?} is not supported (expected \"secrets\" or \"configmaps\")"
                    ));
                }
            }
        }
    }
}

/// Returns whether the name is a DNS subdomain. An empty name, as from an unset environment variable, is not one.
fn is_node_name(name: &str) -> bool {
    let letters = |label: &str| label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let is_label =
        |label: &str| !label.is_empty() && letters(label) && !label.starts_with('-') && !label.ends_with('-');
    name.len() <= NODE_NAME_MAX && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_name_must_be_valid_kubernetes_name() {
        for name in ["n1", "ip-10-0-0-1.eu-west-1.compute.internal", "a.b"] {
            assert!(is_node_name(name), "{name}");
        }
        for name in ["", "N1", "n1,metadata.name!=x", "a..b", "-a", "a-", "a b", &"a".repeat(254)] {
            assert!(!is_node_name(name), "{name}");
        }
    }

    #[test]
    fn sensitive_list_rejects_other_resources() {
        let (mut coverage, mut problems) = (Coverage::default(), Problems::default());
        let sensitive = ["secrets", "pods"].map(str::to_owned).to_vec();
        CoverageOverrides { node: Some("n7".to_owned()), sensitive, authorizes: true }
            .put(&mut coverage, &mut problems);
        assert_eq!(coverage.sensitive, [Sensitive::Secrets]);
        assert_eq!((coverage.node.as_deref(), coverage.authorizes), (Some("n7"), true));
        let problems: Vec<_> = problems.iter().collect();
        assert_eq!(problems, ["feeds.sensitive: \"pods\" is not supported (expected \"secrets\" or \"configmaps\")"]);
    }
}
