//! Compares a proxy's cache with upstream at the same resourceVersion, by object and by byte.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::explain::escaped;
use super::reasons::meaning;
use super::server::{ApiserverConnection, ApiserverOptions};
use super::table::{grouped, printable};
use super::{InspectError, InspectReport, resource};

/// The two servers and the resource to compare.
#[derive(Debug, Clone)]
pub struct DiffOptions {
    pub resource: String,
    pub namespace: Option<String>,
    /// The client address of the proxy, not its admin address.
    pub proxy: ApiserverOptions,
    pub upstream: ApiserverOptions,
}

/// A page of a list; only the compared fields are read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiffListPage<'a> {
    metadata: DiffListMetadata,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct DiffListMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    token: String,
}

#[derive(Deserialize)]
struct DiffObject {
    metadata: DiffObjectMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct DiffObjectMetadata {
    namespace: String,
    name: String,
    resource_version: String,
}

/// A collection at one resourceVersion: for each key, the object's version and a hash of its bytes.
struct CollectionDigest {
    version: String,
    objects: BTreeMap<String, ObjectDigest>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ObjectDigest {
    version: String,
    bytes: usize,
    hash: u64,
}

/// The number of objects per page of a list.
const PAGE_OBJECTS: usize = 500;
/// The maximum number of lines about differences; JSON has all of them.
const LINES_MAX: usize = 50;
const JSON: &str = "application/json";

/// Lists a collection from the proxy's cache, and from upstream at the same resourceVersion, and compares the two.
///
/// # Errors
/// If a request fails, or the proxy does not serve this list from its cache.
pub async fn diff(order: &DiffOptions) -> Result<InspectReport, InspectError> {
    let (proxy, upstream) =
        (ApiserverConnection::at(&order.proxy).await?, ApiserverConnection::at(&order.upstream).await?);
    let path = resource::path(&upstream, &order.resource, order.namespace.as_deref()).await?;
    let hasher = RandomState::new();
    let ours = list(&proxy, &path, "", &hasher, true).await?;
    let exactly = format!("&resourceVersion={}&resourceVersionMatch=Exact", ours.version);
    let theirs = list(&upstream, &path, &exactly, &hasher, false).await?;
    Ok(compared(order, &ours, &theirs))
}

async fn list(
    server: &ApiserverConnection,
    path: &str,
    at: &str,
    hasher: &RandomState,
    from_memory: bool,
) -> Result<CollectionDigest, InspectError> {
    let (mut collection, mut next) =
        (CollectionDigest { version: String::new(), objects: BTreeMap::new() }, at.to_owned());
    loop {
        let page_path = format!("{path}?limit={PAGE_OBJECTS}{next}");
        let what = format!("{}{page_path}", server.name);
        let answer = server.get(&page_path, JSON).await?.success(&what)?;
        if from_memory && answer.header("kube-fanout-served").is_none() {
            let why = match answer.header("kube-fanout-reason") {
                Some(reason) => format!("the proxy forwarded the request: {reason}: {}", meaning(reason)),
                None => "the response is not from a proxy's cache: is this the address of a kube-fanout?".to_owned(),
            };
            return Err(InspectError::of(&what, why));
        }
        let page: DiffListPage<'_> =
            serde_json::from_slice(&answer.body).map_err(|error| InspectError::of(&what, error))?;
        for item in page.items {
            let text = item.get();
            let object: DiffObject = serde_json::from_str(text).map_err(|error| InspectError::of(&what, error))?;
            let DiffObjectMetadata { namespace, name, resource_version } = object.metadata;
            let key = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
            let digest = ObjectDigest { version: resource_version, bytes: text.len(), hash: hasher.hash_one(text) };
            collection.objects.insert(key, digest);
        }
        collection.version = page.metadata.resource_version;
        if page.metadata.token.is_empty() {
            return Ok(collection);
        }
        next = format!("&continue={}", escaped(&page.metadata.token));
    }
}

fn compared(order: &DiffOptions, ours: &CollectionDigest, theirs: &CollectionDigest) -> InspectReport {
    let (mut lines, mut found) = (Vec::new(), Vec::new());
    let mut differs = |key: &str, what: &str, text: String| {
        lines.push(format!("  {}: {text}", printable(key)));
        found.push(json!({"key": key, "difference": what}));
    };
    for (key, theirs) in &theirs.objects {
        match ours.objects.get(key) {
            None => differs(key, "missing", format!("missing in the proxy; upstream has it at {}", theirs.version)),
            Some(ours) if ours.version != theirs.version => {
                differs(
                    key,
                    "version",
                    format!("resourceVersion {} in the proxy, {} upstream", ours.version, theirs.version),
                );
            }
            Some(ours) if ours != theirs => {
                let text = format!(
                    "same resourceVersion {}, different content: {} bytes in the proxy, {} upstream",
                    ours.version, ours.bytes, theirs.bytes
                );
                differs(key, "bytes", text);
            }
            Some(_) => {}
        }
    }
    for (key, ours) in ours.objects.iter().filter(|(key, _)| !theirs.objects.contains_key(*key)) {
        differs(key, "extra", format!("missing upstream; the proxy has it at {}", ours.version));
    }
    let count = lines.len();
    let bytes: usize = ours.objects.values().map(|digest| digest.bytes).sum();
    let mut text = format!(
        "{} at resourceVersion {}: {} objects, {} bytes; ",
        order.resource,
        ours.version,
        grouped(ours.objects.len() as u64),
        grouped(bytes as u64)
    );
    let _ = match count {
        0 => writeln!(text, "identical in the proxy and upstream"),
        1 => writeln!(text, "1 difference"),
        _ => writeln!(text, "{} differences", grouped(count as u64)),
    };
    for line in lines.iter().take(LINES_MAX) {
        let _ = writeln!(text, "{line}");
    }
    if count > LINES_MAX {
        let _ = writeln!(text, "  and {} more; -o json lists all of them", grouped((count - LINES_MAX) as u64));
    }
    let json: Value = json!({
        "resource": order.resource, "resourceVersion": ours.version, "objects": ours.objects.len(), "bytes": bytes,
        "differences": found,
    });
    InspectReport { text, json, is_well: count == 0, failures: Vec::new() }
}
