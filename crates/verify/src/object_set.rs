use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The resource that is written and read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedResource {
    /// The API group; empty for the core group.
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
}

/// The objects of a run: their names, namespaces and labels, and the newest version.
pub(super) struct ObjectSet {
    pub(super) resource: VerifiedResource,
    pub(super) namespaces: Vec<String>,
    pub(super) objects: usize,
    /// The newest version that any participant has seen.
    latest: AtomicU64,
    /// The versions of the most recent writes.
    recent: Mutex<VecDeque<u64>>,
}

/// The prefix of the names of namespaces that a run creates.
const NAMESPACE: &str = "kube-fanout-verify";
/// The API group of verify's own resource. A custom resource is stored as JSON with any apiserver flags.
pub(super) const OWN_GROUP: &str = "verify.kube-fanout.io";
/// The suffixes of namespace names. Some are prefixes of others, which exposes comparison by prefix.
const ENDS: [&str; 6] = ["", "-a", "-a-b", "-b", "a", "-c"];
/// The labels of created objects that selectors use.
const GROUP: &str = "verify.kube-fanout.io/group";
const TIER: &str = "verify.kube-fanout.io/tier";
const GROUPS: [&str; 3] = ["red", "green", "blue"];
const TIERS: [&str; 2] = ["1", "2"];
const RECENT_MAX: usize = 256;
/// The prefix of the names of objects that a run creates.
const OBJECT: &str = "verify-object-";
/// The object that is written after all others.
pub(super) const FENCE: &str = "verify-fence";

impl VerifiedResource {
    /// Returns the name in the apiserver's messages: `configmaps`, `deployments.apps`.
    pub(super) fn name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    fn root(&self) -> String {
        let api = if self.group.is_empty() { "api" } else { "apis" };
        format!("/{api}/{}", self.api_version())
    }

    /// Returns the path of the resource's collection, in one namespace or in all.
    pub(super) fn collection(&self, namespace: Option<&str>) -> String {
        let (root, plural) = (self.root(), &self.plural);
        match namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{plural}"),
        }
    }

    /// Returns the resource's key prefix in etcd, by the apiserver's default layout. Some old resources have another
    /// one.
    pub(super) fn etcd_prefix(&self) -> String {
        if self.group.is_empty() {
            format!("/registry/{}/", self.plural)
        } else {
            format!("/registry/{}/{}/", self.group, self.plural)
        }
    }
}

impl ObjectSet {
    pub(super) fn new(resource: VerifiedResource, namespaces: usize, objects: usize) -> Self {
        let namespaces = ENDS.iter().take(namespaces).map(|end| format!("{NAMESPACE}{end}")).collect();
        Self { resource, namespaces, objects, latest: AtomicU64::new(0), recent: Mutex::default() }
    }

    pub(super) const NAMESPACES_MAX: usize = ENDS.len();

    /// Returns the namespace and name of the `n`-th object.
    pub(super) fn object(&self, n: usize) -> (&str, String) {
        (&self.namespaces[n % self.namespaces.len()], format!("{OBJECT}{n}"))
    }

    /// Returns the member for free-form content besides the metadata, if the resource has one.
    pub(super) fn content(&self) -> Option<&'static str> {
        match (self.resource.group.as_str(), self.resource.plural.as_str()) {
            ("", "configmaps") => Some("data"),
            (OWN_GROUP, _) => Some("spec"),
            _ => None,
        }
    }

    /// Whether an object with the name `name` was created by a run.
    pub(super) fn is_ours(name: &str) -> bool {
        name.starts_with(OBJECT) || name == FENCE
    }

    pub(super) fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.resource.collection(Some(namespace)))
    }

    /// Draws labels: most objects have a group, some a tier, some neither.
    pub(super) fn labels(rng: &mut fastrand::Rng) -> Vec<(&'static str, &'static str)> {
        let mut labels = Vec::new();
        if rng.u8(..10) > 0 {
            labels.push((GROUP, GROUPS[rng.usize(..GROUPS.len())]));
        }
        if rng.bool() {
            labels.push((TIER, TIERS[rng.usize(..TIERS.len())]));
        }
        labels
    }

    /// The labels that a merge patch must name to remove them.
    pub(super) const LABEL_KEYS: [&'static str; 2] = [GROUP, TIER];

    /// Draws a label selector: equality, sets, presence and their opposites.
    pub(super) fn label_selector(rng: &mut fastrand::Rng) -> String {
        let (one, other) = (GROUPS[rng.usize(..GROUPS.len())], GROUPS[rng.usize(..GROUPS.len())]);
        match rng.u8(..7) {
            0 | 1 => format!("{GROUP}={one}"),
            2 => format!("{GROUP} in ({one},{other})"),
            3 => format!("{GROUP}!={one}"),
            4 => format!("{TIER},{GROUP} notin ({one})"),
            5 => format!("!{TIER}"),
            _ => format!("{GROUP}={one},{TIER}={}", TIERS[rng.usize(..TIERS.len())]),
        }
    }

    /// Draws a field selector that every resource supports.
    pub(super) fn field_selector(&self, rng: &mut fastrand::Rng) -> String {
        let (namespace, name) = self.object(rng.usize(..self.objects));
        match rng.u8(..4) {
            0 | 1 => format!("metadata.name={name}"),
            2 => format!("metadata.namespace={namespace}"),
            _ => format!("metadata.namespace={namespace},metadata.name!={name}"),
        }
    }

    pub(super) fn saw(&self, version: u64) {
        self.latest.fetch_max(version, Ordering::Relaxed);
    }

    pub(super) fn wrote(&self, version: u64) {
        self.saw(version);
        let mut recent = self.recent.lock();
        if recent.len() == RECENT_MAX {
            recent.pop_front();
        }
        recent.push_back(version);
    }

    pub(super) fn latest(&self) -> u64 {
        self.latest.load(Ordering::Relaxed)
    }

    /// Returns a recently written version; the newest known one before the first write.
    pub(super) fn recent(&self, rng: &mut fastrand::Rng) -> u64 {
        let recent = self.recent.lock();
        if recent.is_empty() { self.latest() } else { recent[rng.usize(..recent.len())] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collection_paths_and_etcd_prefixes_are_correct() {
        let of = |group: &str, plural: &str| VerifiedResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            plural: plural.to_owned(),
            kind: String::new(),
        };
        let core = of("", "configmaps");
        assert_eq!(core.collection(Some("a")), "/api/v1/namespaces/a/configmaps");
        assert_eq!((core.name(), core.etcd_prefix()), ("configmaps".to_owned(), "/registry/configmaps/".to_owned()));
        let custom = of("example.com", "widgets");
        assert_eq!(custom.collection(None), "/apis/example.com/v1/widgets");
        assert_eq!(custom.name(), "widgets.example.com");
        assert_eq!(custom.etcd_prefix(), "/registry/example.com/widgets/");
    }

    #[test]
    fn recent_version_is_drawn_from_the_last_writes() {
        let resource = VerifiedResource {
            group: String::new(),
            version: "v1".to_owned(),
            plural: "configmaps".to_owned(),
            kind: "ConfigMap".to_owned(),
        };
        let world = ObjectSet::new(resource, 3, 10);
        let mut rng = fastrand::Rng::with_seed(1);
        world.saw(7);
        assert_eq!(world.recent(&mut rng), 7);
        (10..1000).for_each(|version| world.wrote(version));
        world.saw(8);
        assert_eq!(world.latest(), 999);
        assert!((0..100).all(|_| world.recent(&mut rng) >= 1000 - RECENT_MAX as u64));
    }
}
