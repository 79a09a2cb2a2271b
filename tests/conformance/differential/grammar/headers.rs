//! Draws headers, mostly those that choose a representation.

use super::Grammar;
use crate::reduced::DROP;

type Headers = Vec<(&'static str, String)>;

const MEDIA: [&str; 16] = [
    "application/json",
    "application/json",
    "application/json",
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf",
    "application/yaml",
    "application/cbor",
    "application/cbor-seq",
    "application/*",
    "*/*",
    "*",
    "text/plain",
    "text/html",
    "nonsense",
];

/// Accept values of common clients.
const WHOLE: [&str; 14] = [
    "application/json",
    "application/json",
    "application/json, */*",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf,application/json",
    "application/vnd.kubernetes.protobuf, */*",
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;\
     g=meta.k8s.io;v=v1,application/json",
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;\
     as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;\
     as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "*/*",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];

const KINDS: [&str; 9] = [
    "Table",
    "Table",
    "PartialObjectMetadata",
    "PartialObjectMetadata",
    "PartialObjectMetadataList",
    "PartialObjectMetadataList",
    "PartialObjectMetadataList",
    "Nonsense",
    "",
];

const PARAMETERS: [&str; 14] = [
    ";q=0.5",
    ";q=0.1",
    ";q=1",
    ";q=0",
    ";q=x",
    "; q=0.9",
    ";stream=watch",
    ";stream=nonsense",
    ";pretty=1",
    ";pretty=0",
    ";charset=utf-8",
    ";sv=v1",
    ";sv=v2",
    ";profile=x",
];

const AGENTS: [&str; 7] = [
    "curl/8.5.0",
    "Wget/1.21",
    "Mozilla/5.0 (X11; Linux x86_64)",
    "kubectl/v1.37.1 (linux/amd64) kubernetes/abcdef",
    "Go-http-client/2.0",
    "curly",
    "mozilla/5.0",
];

impl Grammar<'_> {
    pub(super) fn headers(&mut self, watch: bool, list: bool) -> Headers {
        let mut headers = Headers::new();
        if !self.one_in(16) {
            let accept = if self.careful { self.careful_accept(watch, list) } else { self.accept(watch) };
            headers.push(("accept", accept));
        }
        if !self.careful && self.one_in(20) {
            let accept = self.accept(watch);
            headers.push(("accept", accept));
        }
        let agent = if self.one_in(5) { self.pick(&AGENTS) } else { "conformance" };
        headers.push(("user-agent", agent.to_owned()));
        if self.one_in(6) {
            let codings =
                ["gzip", "gzip", "gzip", "gzip, deflate, br", "gzip;q=1.0", "*", "identity", "br", "", "GZIP"];
            headers.push(("accept-encoding", self.pick(&codings).to_owned()));
        }
        if !self.careful && self.one_in(12) {
            let (name, value) = self.pick_header();
            headers.push((name, value.to_owned()));
        }
        headers
    }

    fn pick_header(&mut self) -> (&'static str, &'static str) {
        let others = [
            ("audit-id", "11111111-2222-3333-4444-555555555555"),
            ("audit-id", "anything"),
            ("if-none-match", "\"1\""),
            ("if-modified-since", "Sat, 01 Jan 2000 00:00:00 GMT"),
            ("range", "bytes=0-10"),
            ("content-type", "application/json"),
            ("content-type", "nonsense"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("x-forwarded-for", "192.0.2.1"),
            ("cache-control", "max-age=0"),
            ("accept-language", "de"),
            ("te", "trailers"),
            ("origin", "http://localhost"),
            ("impersonate-user", "somebody"),
            ("impersonate-group", "nobody"),
            ("x-remote-user", "somebody"),
            ("kube-fanout-served", "cache"),
        ];
        others[self.random.usize(..others.len())]
    }

    /// A supported representation.
    fn careful_accept(&mut self, watch: bool, list: bool) -> String {
        let kind = if list && !watch { "PartialObjectMetadataList" } else { "PartialObjectMetadata" };
        let version = self.pick(&["v1", "v1", "v1beta1"]);
        let (json, protobuf) = ("application/json", "application/vnd.kubernetes.protobuf");
        match self.random.u32(..16) {
            0..=4 => json.to_owned(),
            5..=7 => protobuf.to_owned(),
            8..=9 => format!("{protobuf},{json}"),
            10..=11 => format!("{json};as={kind};g=meta.k8s.io;v={version}"),
            12..=13 => format!("{protobuf};as={kind};g=meta.k8s.io;v={version}"),
            14 => format!("{json};as=Table;g=meta.k8s.io;v={version}"),
            _ if watch => format!("{json};stream=watch"),
            _ => "application/yaml".to_owned(),
        }
    }

    /// A representation of which the tests know how it looks without managedFields.
    pub(super) fn reduced_accept(&mut self, watch: bool) -> String {
        let media = if watch || self.one_in(2) { "application/json" } else { "application/vnd.kubernetes.protobuf" };
        let metadata = ["PartialObjectMetadataList", "PartialObjectMetadata"]
            .map(|kind| format!("{media};as={kind};g=meta.k8s.io;v=v1{DROP}"))
            .join(",");
        if media == "application/json" && self.one_in(2) { format!("{media}{DROP}") } else { metadata }
    }

    fn accept(&mut self, watch: bool) -> String {
        if !self.one_in(3) {
            let plain = if watch { "application/json" } else { "application/vnd.kubernetes.protobuf" };
            return if self.one_in(3) { plain.to_owned() } else { self.pick(&WHOLE).to_owned() };
        }
        let mut clauses = vec![self.clause()];
        while self.one_in(3) {
            clauses.push(self.clause());
        }
        clauses.join(self.pick(&[",", ",", ", ", " , "]))
    }

    fn clause(&mut self) -> String {
        let mut clause = self.pick(&MEDIA).to_owned();
        if self.one_in(2) {
            let kind = self.pick(&KINDS);
            let version = self.pick(&["v1", "v1", "v1", "v1beta1", "v1beta1", "v2"]);
            let group = if self.one_in(12) { "apps" } else { "meta.k8s.io" };
            let mut parts = [format!(";as={kind}"), format!(";v={version}"), format!(";g={group}")];
            self.random.shuffle(&mut parts);
            let kept = if self.one_in(16) { 2 } else { 3 };
            clause.push_str(&parts[..kept].concat());
        }
        if self.one_in(4) {
            clause.push_str(self.pick(&PARAMETERS));
        }
        clause
    }

    /// Draws the other headers of a WebSocket handshake, mostly valid ones.
    pub(super) fn handshake(&mut self, headers: &mut Headers) {
        headers.retain(|(name, _)| *name != "origin");
        if !self.one_in(20) {
            let origin = self.pick(&["http://localhost", "http://localhost", "https://elsewhere.example"]);
            headers.push(("origin", origin.to_owned()));
        }
        if self.one_in(3) {
            let protocols =
                ["base64.binary.k8s.io", "binary.k8s.io", "base64.channel.k8s.io", "anything", "a, b", "a,"];
            headers.push(("sec-websocket-protocol", self.pick(&protocols).to_owned()));
        }
    }
}
