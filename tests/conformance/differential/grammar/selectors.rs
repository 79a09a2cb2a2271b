//! Draws label selectors by their grammar, and field selectors by what each resource supports.

use super::super::probe::Parameter;
use super::super::world::Served;
use super::Grammar;

const KEYS: [&str; 12] = [
    "app",
    "app",
    "app",
    "tier",
    "env",
    "touched",
    "example.com/part",
    "kubernetes.io/metadata.name",
    "none",
    "a/b/c",
    "-bad",
    "",
];
const VALUES: [&str; 12] = ["x", "x", "y", "prod", "1", "yes", "", "-bad", "with.dots-and_more", "yes", "a b", "world"];

/// Label selectors with common mistakes.
const LABELS: [&str; 22] = [
    "a in",
    "a=b c",
    "a===b",
    "-a=b",
    "app=-x",
    "a/b/c=d",
    "app in x",
    "app in (x",
    "app notin x)",
    "(app)",
    "app,,tier",
    ",app",
    "app,",
    "!",
    "!!app",
    "app>x",
    "app>1.5",
    "app in (x,,y)",
    "in in (in)",
    "app\t=\nx",
    "app = x , tier",
    "app=x\u{e9}",
];

/// Field selectors for any resource, supported or not.
const FIELDS: [&str; 44] = [
    "metadata.name=p1",
    "metadata.name==p1",
    "metadata.name!=p1",
    "metadata.name=red",
    "metadata.namespace=world",
    "metadata.namespace=world-a",
    "metadata.namespace!=world",
    "metadata.namespace=",
    "spec.nodeName=n1",
    "spec.nodeName=",
    "spec.nodeName!=n1",
    "spec.host=n1",
    "spec.serviceAccountName=default",
    "spec.schedulerName=default-scheduler",
    "spec.restartPolicy=Always,spec.nodeName=n1",
    "spec.hostNetwork=false",
    "status.phase=Pending",
    "status.phase=Active",
    "status.phase!=Running",
    "status.podIP=10.1.2.3",
    "status.podIPs=10.1.2.3",
    "status.nominatedNodeName=n2",
    "spec.unschedulable=false",
    "spec.unschedulable=true",
    "spec.clusterIP=None",
    "spec.type=ClusterIP",
    "type=Opaque",
    "type!=Opaque",
    "reason=Started,type=Normal",
    "involvedObject.kind=Pod",
    "regarding.kind=Pod",
    "reportingComponent=kubelet",
    "status.successful=1",
    "status.replicas=2",
    "spec.signerName=example.com/signer",
    "spec.driver=gpu.example.com",
    "spec.color=red",
    "spec.color!=red,spec.on=false",
    "spec.size=3",
    "spec.level=7",
    "name=p1",
    "metadata.uid=1",
    "status.foo=1",
    "foo=bar",
];

const MALFORMED: [&str; 12] = [
    "foo",
    "metadata.name",
    "metadata.name=a\\q",
    "metadata.name=a=b",
    "metadata.name=a\\=b",
    "metadata.name=p1,metadata.name=p2",
    ",,metadata.name=p1",
    "metadata.name = p1",
    "=",
    "!=x",
    "metadata.name=..",
    "metadata.name=a/b",
];

const SHARD_FIELDS: [&str; 5] = [
    "object.metadata.uid",
    "object.metadata.namespace",
    "object . metadata.uid",
    "object.metadata.name",
    "metadata.uid",
];

/// Replacements that make a shard selector malformed, or valid in a form that is rarely used.
const MALFORMED_SHARDS: [(&str, &str); 14] = [
    ("shardRange(", "(shardRange("),
    ("shardRange", "range"),
    ("shardRange", ".shardRange"),
    ("'0x", "'0X"),
    ("'0x", "r'0x"),
    ("'0x", "\"0x"),
    ("'0x", "0x"),
    ("'0x0", "'0x"),
    ("', '", "','0x1', '"),
    ("||", "&&"),
    ("||", "|| ||"),
    (")", ") // all"),
    (")", ")\u{a0}"),
    ("0x", "\\x30x"),
];

impl Grammar<'_> {
    pub(super) fn selectors(&mut self, query: &mut Vec<Parameter>, resource: &Served) {
        if self.one_in(4) {
            let selector = self.labels();
            query.push(Parameter::Value("labelSelector", selector));
        }
        if self.one_in(4) {
            let selector = self.fields(resource);
            query.push(Parameter::Value("fieldSelector", selector));
        }
        if self.one_in(4) {
            let selector = self.shards();
            query.push(Parameter::Value("shardSelector", selector));
        }
    }

    /// Ranges of hashes. Some bounds are near each other, so that a shard may be empty.
    fn shards(&mut self) -> String {
        let field = self.pick(&SHARD_FIELDS[..if self.careful { 2 } else { SHARD_FIELDS.len() }]);
        let mut ranges = vec![self.shard_range(field)];
        while self.one_in(3) {
            let other = if self.careful || !self.one_in(8) { field } else { "object.metadata.namespace" };
            ranges.push(self.shard_range(other));
        }
        let mut selector = ranges.join(self.pick(&["||", " || ", "\t||\n"]));
        if !self.careful && self.one_in(4) {
            let (from, to) = MALFORMED_SHARDS[self.random.usize(..MALFORMED_SHARDS.len())];
            selector = selector.replacen(from, to, 1);
        }
        if !self.careful && self.one_in(20) {
            selector.truncate(self.random.usize(..=selector.len()));
        }
        selector
    }

    fn shard_range(&mut self, field: &str) -> String {
        let step = 1_u128 << 64 >> self.random.u32(..9);
        let steps = (1_u128 << 64) / step;
        let start = self.random.u128(..steps);
        let end = self.random.u128(start + 1..=steps);
        format!("shardRange({field}, '{:#018x}', '{:#018x}')", start * step, end * step)
    }

    fn labels(&mut self) -> String {
        if !self.careful && self.one_in(3) {
            return self.pick(&LABELS).to_owned();
        }
        let mut terms = vec![self.requirement()];
        while self.one_in(3) {
            terms.push(self.requirement());
        }
        let mut selector = terms.join(self.pick(&[",", ",", ", ", " ,\t"]));
        if !self.careful && self.one_in(8) {
            selector.truncate(self.random.usize(..=selector.len()));
        }
        selector
    }

    fn requirement(&mut self) -> String {
        // The first entries of both arrays are well-formed.
        let (keys, values) = if self.careful { (&KEYS[..7], &VALUES[..7]) } else { (&KEYS[..], &VALUES[..]) };
        let (key, value) = (self.pick(keys), self.pick(values));
        match self.random.u32(..12) {
            0..=2 => format!("{key}={value}"),
            3 => format!("{key}=={value}"),
            4..=5 => format!("{key}!={value}"),
            6 => key.to_owned(),
            7 => format!("!{key}"),
            8 => format!("{key} in ({value},{})", self.pick(values)),
            9 => format!("{key} notin ({value}, {})", self.pick(values)),
            10 => format!("{key}>{}", self.pick(&["1", "0", "-5", "x"][..if self.careful { 3 } else { 4 }])),
            _ => format!("{key}<{}", self.pick(&["1", "99"])),
        }
    }

    fn fields(&mut self, resource: &Served) -> String {
        if !self.careful && self.one_in(4) {
            return self.pick(&MALFORMED).to_owned();
        }
        let (_, own) = match resource.objects.as_slice() {
            [] => (String::new(), "p1".to_owned()),
            objects => objects[self.random.usize(..objects.len())].clone(),
        };
        if self.careful {
            return self.careful_fields(resource, &own);
        }
        let mut terms = vec![match self.random.u32(..6) {
            0..=1 => format!("metadata.name={own}"),
            2 => format!("metadata.name!={own}"),
            _ => self.pick(&FIELDS).to_owned(),
        }];
        while self.one_in(4) {
            terms.push(self.pick(&FIELDS).to_owned());
        }
        terms.join(",")
    }

    /// A selector for fields that the resource supports.
    fn careful_fields(&mut self, resource: &Served, own: &str) -> String {
        let more: &[&str] = match resource.name.as_str() {
            "pods" => &FIELDS[8..22],
            "nodes" => &["spec.unschedulable=false", "spec.unschedulable=true", "spec.unschedulable!=true"],
            "namespaces" => &["status.phase=Active", "status.phase!=Active"],
            "services" => &["spec.clusterIP=None", "spec.type=ClusterIP", "spec.type!=ClusterIP"],
            "secrets" => &["type=Opaque", "type!=Opaque"],
            "events" => &["reason=Started,type=Normal", "type!=Normal", "reason!=Started"],
            "jobs" => &["status.successful=1", "status.successful!=0"],
            "widgets" => &["spec.color=red", "spec.color!=red", "spec.on=false", "spec.size=3,spec.color=red"],
            "gadgets" => &["spec.level=7", "spec.level!=7", "spec.level="],
            _ => &[],
        };
        let any =
            [format!("metadata.name={own}"), format!("metadata.name!={own}"), "metadata.namespace=world".to_owned()];
        let mut terms: Vec<_> =
            any.iter().filter(|term| resource.namespaced || !term.contains("space=")).cloned().collect();
        terms.extend(more.iter().map(|term| (*term).to_owned()));
        let first = terms.swap_remove(self.random.usize(..terms.len()));
        if self.one_in(4) { format!("{first},{}", terms[self.random.usize(..terms.len())]) } else { first }
    }
}
