//! A grammar of valid and invalid requests. Every draw is one request, and the same seed draws the same requests.

mod headers;
mod parameters;
mod paths;
mod selectors;
mod writes;

use super::probe::{Over, Parameter, Probe};
use super::world::{BULK, Served, World};

pub struct Grammar<'a> {
    world: &'a World,
    random: fastrand::Rng,
    /// Whether to draw a valid request, as for every other one. The rest may have any kind of mistake.
    careful: bool,
}

/// The target of a path, as far as other parts of the request depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    Collection,
    /// A deprecated path that is a watch by its form.
    WatchPath,
    Object,
    /// Not a resource, or one that does not exist.
    Other,
}

/// Two thirds of the requests are for these resources.
const MOSTLY: [&str; 16] = [
    "pods",
    "pods",
    "configmaps",
    "configmaps",
    "services",
    "nodes",
    "widgets",
    "widgets",
    "secrets",
    "deployments",
    "events",
    "leases",
    "endpointslices",
    "namespaces",
    "jobs",
    "gadgets",
];

impl<'a> Grammar<'a> {
    pub fn new(world: &'a World, seed: u64) -> Self {
        Self { world, random: fastrand::Rng::with_seed(seed), careful: false }
    }

    pub fn draw(&mut self) -> Probe {
        let resource = self.resource();
        self.careful = self.one_in(2);
        let mut probe = match self.random.u32(..100) {
            0..=9 => self.write(resource),
            10..=12 => self.other_method(resource),
            13..=16 => self.elsewhere(),
            17..=20 => self.compressible(),
            21..=26 => self.reduced(resource),
            _ => self.read(resource),
        };
        documented(&mut probe);
        probe
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.u32(..n) == 0
    }

    fn pick<'b, T: ?Sized>(&mut self, from: &[&'b T]) -> &'b T {
        from[self.random.usize(..from.len())]
    }

    fn resource(&mut self) -> &'a Served {
        let world = self.world;
        if self.one_in(3) {
            return &world.resources[self.random.usize(..world.resources.len())];
        }
        let name = self.pick(&MOSTLY);
        let served: Vec<_> = world.resources.iter().filter(|resource| resource.name == name).collect();
        served[self.random.usize(..served.len())]
    }

    fn read(&mut self, resource: &'a Served) -> Probe {
        let (path, about) = self.path(resource);
        let mut query = Vec::new();
        let watch = about != About::Object && self.watch(&mut query, about);
        self.versions(&mut query, watch, about, resource);
        if about != About::Object || self.one_in(20) {
            self.selectors(&mut query, resource);
        }
        self.oddities(&mut query);
        self.random.shuffle(&mut query);
        ends(&mut query, about);
        let headers = self.headers(watch, about == About::Collection);
        let over = match self.random.u32(..20) {
            0..=3 if watch => Over::WebSocket,
            0 if self.one_in(4) => Over::WebSocket,
            4..=10 => Over::H1,
            _ => Over::H2,
        };
        let mut probe = Probe { method: "GET", path, query, headers, body: String::new(), over };
        if over == Over::WebSocket {
            self.handshake(&mut probe.headers);
        } else if !self.careful && self.one_in(40) {
            "{}".clone_into(&mut probe.body);
        }
        probe
    }

    /// A list or a watch-list that is long enough to be compressed.
    fn compressible(&mut self) -> Probe {
        self.careful = true;
        let maps = self.world.resources.iter().find(|resource| resource.name == "configmaps").expect("there are some");
        let path = maps.collection(self.pick(&["", BULK.0]));
        let watch = self.one_in(2);
        let value = |name, value: &str| Parameter::Value(name, value.to_owned());
        let query = if watch {
            let names = ["watch", "sendInitialEvents", "allowWatchBookmarks"];
            let mut query = vec![value("timeoutSeconds", "2"), value("resourceVersionMatch", "NotOlderThan")];
            query.extend(names.map(|name| value(name, "true")));
            query
        } else {
            let version = self.pick(&["", "0"]);
            vec![value("resourceVersion", version)]
        };
        let mut headers = self.headers(watch, true);
        headers.retain(|(name, _)| *name != "accept-encoding");
        headers.push(("accept-encoding", self.pick(&["gzip", "gzip, deflate, br", "identity, gzip"]).to_owned()));
        let over = if self.one_in(2) { Over::H1 } else { Over::H2 };
        Probe { method: "GET", path, query, headers, body: String::new(), over }
    }

    /// A read that leaves managedFields out. Its response has fewer bytes, so compression is not compared.
    fn reduced(&mut self, resource: &'a Served) -> Probe {
        self.careful = true;
        let mut probe = self.read(resource);
        let is_watch = probe.query.iter().any(|parameter| parameter.is("watch")) || probe.path.contains("/watch/");
        let accept = self.reduced_accept(is_watch);
        probe.headers.retain(|(name, _)| !matches!(*name, "accept" | "accept-encoding"));
        probe.headers.push(("accept", accept));
        probe
    }

    /// HEAD, OPTIONS and invalid methods.
    fn other_method(&mut self, resource: &'a Served) -> Probe {
        let mut probe = self.read(resource);
        probe.method = self.pick(&["HEAD", "HEAD", "HEAD", "OPTIONS", "OPTIONS", "TRACE", "PROPFIND", "get"]);
        probe.over = if probe.over == Over::H1 { Over::H1 } else { Over::H2 };
        probe
    }

    /// Discovery, health, OpenAPI, and paths that do not exist.
    fn elsewhere(&mut self) -> Probe {
        let path = self.non_resource();
        let mut query = Vec::new();
        self.oddities(&mut query);
        let mut headers = self.headers(false, false);
        if self.one_in(3) {
            let form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            headers.retain(|(name, _)| *name != "accept");
            headers.push(("accept", form.to_owned()));
        }
        let over = if self.one_in(2) { Over::H1 } else { Over::H2 };
        Probe { method: "GET", path, query, headers, body: String::new(), over }
    }
}

/// Removes combinations whose difference is documented in docs/DIFFERENCES.md.
fn documented(probe: &mut Probe) {
    // Over HTTP/2 the apiserver does not answer a malformed percent-encoding.
    if probe.path.contains("%zz") && probe.over == Over::H2 {
        probe.over = Over::H1;
    }
    // Continue tokens of all namespaces with a selector for one namespace.
    if probe.first("fieldSelector").is_some_and(|fields| fields.contains("metadata.namespace=")) {
        probe.query.retain(|parameter| !parameter.is("limit"));
    }
    // Initial events of `events` at a version that no object has.
    let initial = probe.query.iter().any(|parameter| parameter.is("sendInitialEvents"));
    if initial && probe.path.contains("/events") {
        probe.query.retain(|parameter| !parameter.is("resourceVersion"));
    }
}

/// Gives every watch a timeout. A watch whose initial events may be refused after three seconds gets a longer one.
fn ends(query: &mut Vec<Parameter>, about: About) {
    let watches = about == About::WatchPath || query.iter().any(|parameter| parameter.is("watch"));
    if !watches || query.first().is_some_and(|parameter| parameter.is("timeoutSeconds")) {
        return;
    }
    let future = query.iter().any(|parameter| match parameter {
        Parameter::Value("resourceVersion", value) => value.len() >= 8,
        _ => false,
    });
    let initial = query.iter().any(|parameter| parameter.is("sendInitialEvents"));
    // A watch with a shorter timeout may end before a server has sent the state.
    let seconds = if future && initial { "6" } else { "2" };
    // Inserted at the front, because the first value counts.
    query.insert(0, Parameter::Value("timeoutSeconds", seconds.to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> World {
        let served = |name: &&str| Served {
            prefix: "/api/v1".to_owned(),
            name: (*name).to_owned(),
            kind: "Kind".to_owned(),
            namespaced: *name != "nodes",
            watchable: true,
            listable: true,
            subresources: vec!["status".to_owned()],
            objects: vec![("world".to_owned(), "odd:name \u{e4}".to_owned())],
            example: Some(serde_json::json!({"metadata": {"name": "a"}})),
        };
        World { resources: MOSTLY.iter().map(served).collect(), versions: vec![7, 8] }
    }

    #[test]
    fn request_generator_is_deterministic_per_seed() {
        let world = world();
        let drawn = |seed| {
            let mut grammar = Grammar::new(&world, seed);
            (0..200).map(|_| grammar.draw()).collect::<Vec<_>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn generated_requests_are_valid_read_only_and_time_limited() {
        let world = world();
        let mut grammar = Grammar::new(&world, 1);
        for _ in 0..5000 {
            let probe = grammar.draw();
            let target = probe.request_spec().path;
            assert!(format!("https://localhost{target}").parse::<http::Uri>().is_ok(), "{target}");
            assert!(!probe.writes() || probe.first("dryRun") == Some("All"), "{probe:?}");
            let watches = probe.first("watch").is_some() || probe.path.trim_end_matches('/').contains("/watch/");
            assert!(!watches || probe.query[0].is("timeoutSeconds"), "{probe:?}");
        }
    }
}
