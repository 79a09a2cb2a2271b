//! The requests of the callers. Some are close to their permissions, others are drawn from the whole grammar.

use fastrand::Rng;
use serde_json::json;

use super::cast::{Cast, Member};
use super::policy::{Hint, Policy, resource};
use super::stage::Stage;
use crate::differential::grammar::Grammar;
use crate::differential::probe::{Over, Parameter, Probe, path_segment};
use crate::differential::world::{NAMESPACES, World};

pub struct Questions<'a> {
    world: &'a World,
    grammar: Grammar<'a>,
    random: Rng,
}

const ACCEPT: [&str; 6] = [
    "application/json",
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/json;as=Table;g=meta.k8s.io;v=v1",
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
];

/// Replacements of the Authorization header; `TOKEN` is replaced by a valid token.
const ODD: [&str; 9] = [
    "Basic YWRtaW46YWRtaW4=",
    "Bearer",
    "Bearer ",
    "bearer TOKEN",
    "BEARER TOKEN",
    "Bearer  TOKEN",
    "Bearer TOKEN more",
    "Token TOKEN",
    "TOKEN",
];

impl<'a> Questions<'a> {
    pub fn new(world: &'a World, seed: u64) -> Self {
        Self { world, grammar: Grammar::new(world, seed), random: Rng::with_seed(!seed) }
    }

    /// Draws the sender, by number, and the request.
    pub fn draw(&mut self, cast: &Cast, policy: &Policy<'a>, stage: &Stage) -> (usize, Probe) {
        let at = cast.asking(&mut self.random);
        let mut probe = match self.random.u32(..20) {
            0 => self.review(),
            1..=15 => match (&cast.members[at].node, policy.hints[at].as_slice()) {
                (Some(node), _) => self.as_a_node(node, stage),
                (None, []) => self.grammar.draw(),
                (None, hints) => {
                    let hint = hints[self.random.usize(..hints.len())].clone();
                    self.near(hint)
                }
            },
            _ => self.grammar.draw(),
        };
        if self.one_in(60) {
            let odd = self.odd(&cast.members);
            // If a certificate authenticates the caller, the servers do not report a malformed Authorization header.
            if !(odd.contains("  ") && cast.members[at].identity.certificate.is_some()) {
                probe.headers.push(("authorization", odd));
            }
        }
        // Over HTTP/2, a 401 closes the connection on which the next request may already be.
        if !cast.members[at].known && probe.over == Over::H2 {
            probe.over = Over::H1;
        }
        (at, probe)
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    fn odd(&mut self, members: &[Member]) -> String {
        let tokens: Vec<_> = members.iter().map(|member| &member.identity.token).filter(|it| !it.is_empty()).collect();
        let token = tokens[self.random.usize(..tokens.len())];
        ODD[self.random.usize(..ODD.len())].replace("TOKEN", token)
    }

    /// A request that matches a rule or almost matches it.
    fn near(&mut self, mut hint: Hint<'a>) -> Probe {
        if self.one_in(6) {
            hint.resource = resource(self.world, &mut self.random);
        }
        if self.one_in(6) {
            hint.namespace = Some(NAMESPACES[self.random.usize(..2)]);
        }
        let objects = &hint.resource.objects;
        if hint.names.is_empty() || self.one_in(4) {
            let other = if objects.is_empty() { "missing" } else { &objects[self.random.usize(..objects.len())].1 };
            hint.names.push(other.to_owned());
        }
        let name = hint.names[self.random.usize(..hint.names.len())].clone();
        let namespace = match hint.namespace {
            Some(namespace) => namespace,
            None => ["", NAMESPACES[0], NAMESPACES[1]][self.random.usize(..3)],
        };
        let collection = hint.resource.collection(namespace);
        match self.random.u32(..10) {
            0..=2 => self.read(format!("{collection}/{}", path_segment(&name)), Vec::new()),
            3 => {
                let part = ["status", "scale", "nonsense"][self.random.usize(..3)];
                self.read(format!("{collection}/{}/{part}", path_segment(&name)), Vec::new())
            }
            4..=6 => {
                let selector = self.named(&name);
                self.list(collection, vec![Parameter::Value("fieldSelector", selector)])
            }
            _ => self.list(collection, Vec::new()),
        }
    }

    /// Field selectors that name one object, or appear to.
    fn named(&mut self, name: &str) -> String {
        match self.random.u32(..16) {
            0 => format!("metadata.name=={name}"),
            1 => format!("metadata.name!={name}"),
            2 => format!("metadata.name={name},metadata.name=missing"),
            3 => format!("metadata.name={name},metadata.namespace={}", NAMESPACES[0]),
            4 => format!("metadata.name={name},"),
            5 => format!("metadata.name={name},nonsense"),
            6 => format!("metadata.name=,metadata.name={name}"),
            7 => format!("metadata.name={name}/"),
            _ => format!("metadata.name={name}"),
        }
    }

    /// A kubelet's request, for objects of its own node or of others.
    fn as_a_node(&mut self, own: &str, stage: &Stage) -> Probe {
        let node = if self.one_in(4) { stage.nodes[self.random.usize(..stage.nodes.len())].as_str() } else { own };
        let of = |key: &str, value: &str| vec![Parameter::Value("fieldSelector", format!("{key}={value}"))];
        let world = NAMESPACES[0];
        match self.random.u32(..12) {
            0..=2 => self.list("/api/v1/pods".to_owned(), of("spec.nodeName", node)),
            3 => {
                let key = ["spec.host", "status.phase=Pending,spec.nodeName", "metadata.name"][self.random.usize(..3)];
                self.list(format!("/api/v1/namespaces/{world}/pods"), of(key, node))
            }
            4 => self.list("/api/v1/nodes".to_owned(), of("metadata.name", node)),
            5 => self.read(format!("/api/v1/nodes/{node}"), Vec::new()),
            6 => self.list("/api/v1/services".to_owned(), Vec::new()),
            7 => self.list("/apis/resource.k8s.io/v1/resourceslices".to_owned(), of("spec.nodeName", node)),
            kind => {
                let kind = ["secrets", "configmaps", "pods", "serviceaccounts"][kind as usize - 8];
                let name = stage.mounted[self.random.usize(..stage.mounted.len())].clone();
                let collection = format!("/api/v1/namespaces/{world}/{kind}");
                match self.random.u32(..3) {
                    0 => self.list(collection, of("metadata.name", &name)),
                    _ => self.read(format!("{collection}/{name}"), Vec::new()),
                }
            }
        }
    }

    /// A list, or a watch that ends after two seconds.
    fn list(&mut self, path: String, mut query: Vec<Parameter>) -> Probe {
        let value = |name, value: &str| Parameter::Value(name, value.to_owned());
        if self.one_in(3) {
            query.push(value("watch", "1"));
            query.insert(0, value("timeoutSeconds", "2"));
            if self.one_in(2) {
                let initial = [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")];
                query.extend(initial.map(|(name, text)| value(name, text)));
                query.push(value("allowWatchBookmarks", "true"));
            }
        } else if self.one_in(6) {
            let after = if path.starts_with("/api/") { 3 } else { 4 };
            let parts: Vec<_> = path.split('/').collect();
            let (version, rest) = parts.split_at(after);
            query.insert(0, value("timeoutSeconds", "2"));
            return self.read(format!("{}/watch/{}", version.join("/"), rest.join("/")), query);
        }
        if self.one_in(2) {
            query.push(value("resourceVersion", "0"));
        }
        if self.one_in(8) {
            query.push(value("labelSelector", ["app=x", "app in (x,y)", "app in", "!none"][self.random.usize(..4)]));
        }
        self.read(path, query)
    }

    fn read(&mut self, path: String, query: Vec<Parameter>) -> Probe {
        let accept = ACCEPT[self.random.usize(..ACCEPT.len())].to_owned();
        let headers = vec![("accept", accept), ("user-agent", "conformance".to_owned())];
        let over = if self.one_in(3) { Over::H1 } else { Over::H2 };
        Probe { method: "GET", path, query, headers, body: String::new(), over }
    }

    /// A `SelfSubjectReview`, which shows every group, uid and extra of the caller.
    fn review(&mut self) -> Probe {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
        let json = || "application/json".to_owned();
        let probe = self.read("/apis/authentication.k8s.io/v1/selfsubjectreviews".to_owned(), Vec::new());
        Probe { method: "POST", body, headers: vec![("accept", json()), ("content-type", json())], ..probe }
    }
}
