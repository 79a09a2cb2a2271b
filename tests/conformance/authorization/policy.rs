//! Permissions, drawn with a seed: roles of every form, and bindings to the callers of one round.

use fastrand::Rng;
use serde_json::{Value, json};

use super::cast::Cast;
use crate::bed::Http;
use crate::bed::rbac::{binding, collection};
use crate::differential::world::{NAMESPACES, Served, World};

/// The number of roles and cluster roles.
const ROLES: u32 = 40;
const BINDINGS: u32 = 100;

const MOSTLY: [&str; 10] =
    ["pods", "pods", "configmaps", "configmaps", "secrets", "services", "deployments", "widgets", "nodes", "roles"];
const READS: [&str; 3] = ["get", "list", "watch"];
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];
const URLS: [&[&str]; 6] =
    [&["/nothing"], &["/nothing/*"], &["/livez", "/readyz/*"], &["/apis/*"], &["/openapi*"], &["*"]];

/// A place where a caller has a permission, or almost has one.
#[derive(Debug, Clone)]
pub struct Hint<'a> {
    /// `None` for all namespaces.
    pub namespace: Option<&'static str>,
    pub resource: &'a Served,
    pub names: Vec<String>,
}

pub struct Policy<'a> {
    /// Collection paths and the objects to create there, in order.
    pub objects: Vec<(String, Value)>,
    /// The hints for each caller.
    pub hints: Vec<Vec<Hint<'a>>>,
}

/// A drawn role: its namespace, its name, and its rules.
struct Role<'a> {
    namespace: Option<&'static str>,
    name: String,
    speaks_of: Vec<(&'a Served, Vec<String>)>,
}

impl<'a> Policy<'a> {
    pub fn draw(world: &'a World, cast: &Cast, random: &mut Rng, round: &str) -> Self {
        let mut policy = Self { objects: Vec::new(), hints: vec![Vec::new(); cast.members.len()] };
        let roles: Vec<_> = (0..ROLES).map(|at| policy.role(world, random, format!("{round}-r{at}"))).collect();
        for at in 0..BINDINGS {
            policy.bind(cast, random, &roles, &format!("{round}-b{at}"));
        }
        policy
    }

    /// Deletes the objects, so that nothing is left for the next round.
    pub async fn forget(&self, http: &Http) {
        for (path, object) in self.objects.iter().rev() {
            http.delete(&format!("{path}/{}", object["metadata"]["name"].as_str().expect("a name"))).await;
        }
    }

    fn role(&mut self, world: &'a World, random: &mut Rng, name: String) -> Role<'a> {
        let namespace = (random.u32(..5) < 3).then(|| NAMESPACES[usize::from(random.bool())]);
        let mut role = Role { namespace, name, speaks_of: Vec::new() };
        let mut rules = Vec::new();
        for _ in 0..random.u32(1..4) {
            let mut resource = resource(world, random);
            while namespace.is_some() && !resource.namespaced && random.u32(..8) != 0 {
                resource = self::resource(world, random);
            }
            let names = names(resource, random);
            rules.push(rule(resource, &names, random));
            role.speaks_of.push((resource, names));
        }
        if namespace.is_none() && random.u32(..4) == 0 {
            let urls = URLS[random.usize(..URLS.len())];
            rules.push(json!({"nonResourceURLs": urls, "verbs": [if random.bool() { "get" } else { "*" }]}));
        }
        let document = json!({"metadata": {"name": role.name}, "rules": rules});
        self.objects.push((collection(namespace, "roles"), document));
        role
    }

    fn bind(&mut self, cast: &Cast, random: &mut Rng, roles: &[Role<'a>], name: &str) {
        let role = &roles[random.usize(..roles.len())];
        let member = cast.bindable(random);
        let subject = cast.members[member].subject(random);
        // A cluster role is bound in the whole cluster or in one namespace.
        let namespace = role.namespace.or_else(|| random.bool().then(|| NAMESPACES[usize::from(random.bool())]));
        let kind = if role.namespace.is_some() { "Role" } else { "ClusterRole" };
        // A binding may refer to a missing role. The apiserver then mentions it once in its reason.
        let missing = kind == "ClusterRole" && random.u32(..8) == 0;
        let role_name = if missing { "missing" } else { &role.name };
        let document = binding(name, kind, role_name, &subject);
        self.objects.push((collection(namespace, "rolebindings"), document));
        if missing {
            return;
        }
        let hints = role.speaks_of.iter().map(|(resource, names)| Hint { namespace, resource, names: names.clone() });
        self.hints[member].extend(hints);
    }
}

/// Draws a resource, mostly one of those that are common in rules.
pub fn resource<'a>(world: &'a World, random: &mut Rng) -> &'a Served {
    let resources = &world.resources;
    if random.u32(..4) == 0 {
        return &resources[random.usize(..resources.len())];
    }
    let name = MOSTLY[random.usize(..MOSTLY.len())];
    resources.iter().find(|resource| resource.name == name).expect("the world has it")
}

/// Names for a rule's `resourceNames`; empty for all objects.
fn names(resource: &Served, random: &mut Rng) -> Vec<String> {
    if random.u32(..3) != 0 {
        return Vec::new();
    }
    let mut names = vec!["missing".to_owned()];
    for _ in 0..random.u32(1..3) {
        if !resource.objects.is_empty() {
            names.push(resource.objects[random.usize(..resource.objects.len())].1.clone());
        }
    }
    names
}

fn rule(resource: &Served, names: &[String], random: &mut Rng) -> Value {
    let group = match random.u32(..12) {
        0 => "*",
        1 => "wrong.example.com",
        _ => group(resource),
    };
    let name = &resource.name;
    let resources = match random.u32(..14) {
        0 => vec!["*".to_owned()],
        1 => vec!["*/status".to_owned(), "*/scale".to_owned()],
        2 => vec![format!("{name}/status"), format!("{name}/*")],
        3..=4 => vec![name.clone(), format!("{name}/status"), format!("{name}/scale")],
        _ => vec![name.clone()],
    };
    let mut verbs: Vec<_> = match random.u32(..8) {
        0 => vec!["*"],
        1..=5 => READS.to_vec(),
        _ => READS.into_iter().filter(|_| random.bool()).collect(),
    };
    verbs.extend(WRITES.into_iter().filter(|_| random.u32(..4) == 0));
    if verbs.is_empty() {
        verbs.push("get");
    }
    let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    if !names.is_empty() {
        rule["resourceNames"] = json!(names);
    }
    rule
}

/// The API group of a resource; empty for the core group.
fn group(resource: &Served) -> &str {
    let rest = resource.prefix.strip_prefix("/apis/").unwrap_or_default();
    rest.split_once('/').map_or("", |(group, _)| group)
}
