//! Upstream's version and discovery documents.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::BackoffBounds;
use kube_fanout::upstream::{
    ApiDefinitionKind, CredentialSource, DocumentRefusalBackoff, InMemoryUpstream, ResourceCatalog, ResourceOrigin,
    ServerBuild, UpstreamClient, UpstreamCostTotals, UpstreamResource,
};
use kube_fanout::wire::{FeedEncoding, JsonLayout, ObjectReader};
use kubeapi::FieldSelector;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout};

use super::choice;

/// An object in which field paths resolve.
const SAMPLE: &str = concat!(
    r#"{"apiVersion":"g/v1","kind":"K","metadata":{"name":"n","namespace":"a","resourceVersion":"5"},"#,
    r#""spec":{"color":"red","size":1.5,"is":true,"none":null,"list":[1,{"x":"y"}],"deep":{"er":{"x":"y"}}}}"#,
);
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const PATIENCE: Duration = Duration::from_secs(20);

/// The documents of an upstream.
#[derive(Default)]
struct Documents {
    /// `/api`, `/apis`, the definitions, the APIServices and `/version`.
    bodies: [Vec<u8>; 5],
    /// The paths that the proxy may not read.
    denied: Vec<&'static str>,
    protobuf: bool,
}

impl Documents {
    /// Returns the response to a GET with this head.
    fn answer(&self, head: &str) -> Vec<u8> {
        let path = head.split(' ').nth(1).expect("a request line");
        let at = ["/api", "/apis", DEFINITIONS, SERVICES, "/version"].iter().position(|known| *known == path);
        let body = &self.bodies[at.expect("a known path")];
        let status = if self.denied.contains(&path) { "403 Forbidden" } else { "200 OK" };
        let is_protobuf = self.protobuf && head.contains("application/vnd.kubernetes.protobuf");
        let encoding = if is_protobuf { "vnd.kubernetes.protobuf" } else { "json" };
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\ncontent-type: application/{encoding}\r\ncontent-length: {length}\r\n\r\n");
        [head.as_bytes(), body].concat()
    }
}

/// An upstream within this thread, and a client of it.
struct Upstream {
    runtime: Runtime,
    client: UpstreamClient,
    documents: Arc<Mutex<Documents>>,
}

impl Upstream {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let documents = Arc::new(Mutex::new(Documents::default()));
        let (served, serving) = (documents.clone(), runtime.handle().clone());
        let connect = move || {
            let (near, far) = duplex(64 << 10);
            serving.spawn(serve(far, served.clone()));
            Some(near)
        };
        let source = CredentialSource::Memory(InMemoryUpstream::new(connect, false));
        let entered = runtime.enter();
        let client = UpstreamClient::connect(&source, UpstreamCostTotals::default()).expect("nothing is read");
        drop(entered);
        Self { runtime, client, documents }
    }

    /// Returns the resources that a server of these documents serves; none if it serves no aggregated discovery.
    fn resources(&self) -> Vec<Arc<UpstreamResource>> {
        let policy = DocumentRefusalBackoff::central(BackoffBounds::REFUSED);
        let catalog = ResourceCatalog::new(self.client.clone(), policy);
        let refreshing = async { timeout(PATIENCE, catalog.refresh(Instant::now())).await };
        let _ = self.runtime.block_on(refreshing).expect("an answer");
        catalog.all()
    }
}

/// Answers the requests of one connection.
async fn serve(mut io: DuplexStream, documents: Arc<Mutex<Documents>>) {
    let (mut head, mut read) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = io.read(&mut read).await {
        head.extend_from_slice(&read[..length]);
        // A GET has no body, and the client sends one request at a time.
        if head.ends_with(b"\r\n\r\n") {
            let answer = documents.lock().expect("no panic").answer(&String::from_utf8_lossy(&head));
            head.clear();
            if io.write_all(&answer).await.is_err() {
                return;
            }
        }
    }
}

/// Documents, one per line: `/api`, `/apis`, the definitions, the APIServices, `/version`. Custom or aggregated
/// resources never count as the server's own.
pub fn discovery(input: &[u8]) {
    std::thread_local! {
        static UPSTREAM: Upstream = Upstream::start();
    }
    let (first, rest) = choice(input);
    let mut lines = rest.split(|byte| *byte == b'\n');
    let bodies = [(); 5].map(|()| lines.next().unwrap_or_default());
    let build = bodies[4];
    let denied = [(first & 1 != 0).then_some(DEFINITIONS), (first & 2 != 0).then_some(SERVICES)];
    let documents = Documents {
        bodies: bodies.map(<[u8]>::to_vec),
        denied: denied.into_iter().flatten().collect(),
        protobuf: first & 4 == 0,
    };
    assert!(ServerBuild::parse(build).is_none_or(|known| ServerBuild::parse(build) == Some(known)));
    let resources = UPSTREAM.with(|upstream| {
        *upstream.documents.lock().expect("no panic") = documents;
        let resources = upstream.resources();
        assert_eq!(resources.len(), upstream.resources().len(), "the same documents say the same");
        resources
    });
    for resource in resources {
        assert!(resource.has_name(&resource.gvr.to_string()), "{resource:?}");
        let is_builtin = resource.origin == ResourceOrigin::BuiltIn;
        assert!(is_builtin || resource.encoding == FeedEncoding::Json, "{resource:?}");
        assert!(resource.origin == ResourceOrigin::Custom || resource.edition.is_none(), "{resource:?}");
        // Field paths come from definitions, and resolve inside objects.
        let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::Custom, resource.fields.clone());
        let object = reader.object(SAMPLE.as_bytes()).expect("an object");
        let Some(selector) = FieldSelector::parse("metadata.name=n") else { unreachable!("it is one") };
        let matcher = selector.compile(&resource.fields).expect("every resource has names");
        assert!(matcher.matches(&object.key, &object.attributes), "{resource:?}");
    }
    for document in rest.split(|byte| *byte == b'\n') {
        for declaring in ApiDefinitionKind::ALL {
            assert_eq!(declaring.read(document), declaring.read(document));
        }
    }
}
