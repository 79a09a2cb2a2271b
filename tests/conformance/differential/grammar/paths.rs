//! Draws paths of collections and objects, including deprecated and misspelled ones.

use super::super::probe::path_segment;
use super::super::world::{NAMESPACES, Served};
use super::{About, Grammar};

/// Paths that are not resources. `/metrics` and `/debug` are excluded, because they differ between any two answers.
const ELSEWHERE: [&str; 36] = [
    "/",
    "/api",
    "/api/",
    "/apis",
    "/apis/",
    "/api/v1",
    "/api/v1/",
    "/api/v2",
    "/apis/apps",
    "/apis/apps/",
    "/apis/apps/v1",
    "/apis/apps/v9",
    "/apis/nothing.example.com",
    "/apis/nothing.example.com/v1",
    "/apis/nothing.example.com/v1/things",
    "/apis/example.com/v1",
    "/apis/example.com/v9/widgets",
    "/api/v1/watch",
    "/api/v1/watch/",
    "/api/v1/proxy",
    "/apis/apps/v1/watch",
    "/version",
    "/version/",
    "/livez",
    "/readyz/ping",
    "/healthz",
    "/nothing",
    "/nothing/at/all",
    "/openapi/v3",
    "/openapi/v3/api/v1",
    "/openapi/v3/nothing",
    "/.well-known/openid-configuration",
    "/openid/v1/jwks",
    "/swagger.json",
    "//",
    "/api/v1//",
];

impl<'a> Grammar<'a> {
    pub(super) fn non_resource(&mut self) -> String {
        self.pick(&ELSEWHERE).to_owned()
    }

    /// Draws a namespace, mostly one with objects.
    fn namespace(&mut self) -> &'static str {
        match self.random.u32(..12) {
            0..=6 => NAMESPACES[0],
            7..=8 => NAMESPACES[1],
            9 => "default",
            10 => "kube-system",
            _ => "nope",
        }
    }

    /// The namespace and name of an object that may not exist, escaped for a path.
    pub(super) fn object(&mut self, resource: &'a Served) -> (String, String) {
        if resource.objects.is_empty() || self.one_in(if self.careful { 20 } else { 8 }) {
            let name = self.pick(&["missing", "p1", "UPPER", "a.b-c", "-", "system:node", "x%3Ay", "a%20b"]);
            return (self.namespace().to_owned(), name.to_owned());
        }
        let (namespace, name) = &resource.objects[self.random.usize(..resource.objects.len())];
        (namespace.clone(), path_segment(name))
    }

    pub(super) fn path(&mut self, resource: &'a Served) -> (String, About) {
        let namespace = if self.one_in(4) { "" } else { self.namespace() };
        let (within, name) = self.object(resource);
        let one = format!("{}/{name}", resource.collection(&within));
        match self.random.u32(..if self.careful { 54 } else { 64 }) {
            0..=33 => (resource.collection(namespace), About::Collection),
            34..=47 => (one, About::Object),
            48..=50 => (watch_path(&resource.collection(namespace)), About::WatchPath),
            51 => (watch_path(&one), About::WatchPath),
            52..=53 => (format!("{one}/{}", self.subresource(resource)), About::Object),
            _ => self.misspelled(resource, &one),
        }
    }

    fn subresource(&mut self, resource: &Served) -> String {
        // These subresources would wait for a connection to a kubelet or pod that does not exist.
        let dialled = ["proxy", "log", "exec", "attach", "portforward"];
        let mut own: Vec<_> = resource.subresources.iter().map(String::as_str).collect();
        own.retain(|name| !dialled.contains(name));
        own.extend(["status", "scale", "nonsense"]);
        self.pick(&own).to_owned()
    }

    fn misspelled(&mut self, resource: &'a Served, one: &str) -> (String, About) {
        let (prefix, name) = (&resource.prefix, &resource.name);
        let collection = resource.collection(NAMESPACES[0]);
        let of = About::Collection;
        match self.random.u32(..24) {
            0..=1 => (format!("{collection}/"), of),
            2 => (format!("{one}/"), About::Object),
            3 => (format!("/{collection}"), of),
            4 => (collection.replacen("/namespaces/", "//namespaces/", 1), of),
            5 => (format!("{prefix}//{name}"), of),
            6 => (format!("{prefix}/namespaces//{name}"), of),
            7 => (format!("{prefix}/namespaces/{}/{name}", NAMESPACES[0]), of),
            8 => (format!("{prefix}/{name}/{}", one.rsplit('/').next().unwrap_or_default()), About::Object),
            9 => (format!("{prefix}9/{name}"), of),
            10 => (format!("{prefix}/{name}x"), of),
            11 => (format!("{prefix}/{}", name.to_uppercase()), of),
            12 => (format!("{collection}/../{name}"), of),
            13 => (format!("{collection}/./"), of),
            14 => (collection.replacen(name, &format!("%{:02x}{}", name.as_bytes()[0], &name[1..]), 1), of),
            15 => (format!("{collection}%2Fp1"), About::Object),
            16 => (format!("{collection}/a%2Fb"), About::Object),
            17 => (format!("{collection}%zz"), About::Other),
            18 => (format!("{collection};x=y"), of),
            19 => (format!("{one}/status/more"), About::Object),
            20 => (format!("{prefix}/watch//{name}"), About::WatchPath),
            21 => (watch_path(&format!("{prefix}/{name}x")), About::WatchPath),
            22 => (format!("{prefix}/namespaces/{}", NAMESPACES[0]), About::Object),
            _ => (format!("{collection}%00"), of),
        }
    }
}

/// The deprecated form of a path, which is always a watch.
fn watch_path(path: &str) -> String {
    let parts: Vec<_> = path.split('/').collect();
    let after = if path.starts_with("/api/") { 3 } else { 4 };
    let (version, rest) = parts.split_at(after.min(parts.len()));
    format!("{}/watch/{}", version.join("/"), rest.join("/"))
}
