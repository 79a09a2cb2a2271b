//! Prints the events of a watch.

use std::fmt::Write as _;
use std::io::Write as _;

use serde::Deserialize;

use super::explain::escaped;
use super::server::{ApiserverConnection, ApiserverOptions, refused};
use super::table::printable;
use super::{InspectError, is_read, resource};
use probe::{StreamFrameSplitter, StreamFraming};

/// The resource to watch, and the proxy that serves it.
#[derive(Debug, Clone)]
pub struct TailOptions {
    pub resource: String,
    pub namespace: Option<String>,
    pub labels: Option<String>,
    pub fields: Option<String>,
    /// The resourceVersion to resume after; without it, the watch starts with the existing objects.
    pub from: Option<String>,
    /// The number of seconds after which the output stops.
    pub seconds: Option<u64>,
    pub proxy: ApiserverOptions,
    /// Whether frames are printed unchanged.
    pub json: bool,
}

#[derive(Deserialize)]
struct TailFrame {
    #[serde(rename = "type")]
    kind: String,
    object: TailObject,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TailObject {
    metadata: TailMetadata,
    message: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct TailMetadata {
    namespace: String,
    name: String,
    resource_version: String,
}

/// Watches until the watch ends, and prints a line for each event.
///
/// # Errors
/// If the watch fails, or standard output is closed.
pub async fn tail(order: &TailOptions) -> Result<(), InspectError> {
    let server = ApiserverConnection::at(&order.proxy).await?;
    let path = order.path(&resource::path(&server, &order.resource, order.namespace.as_deref()).await?);
    let mut answer = server.stream(&path, "application/json").await?;
    if !answer.status.is_success() {
        let (body, _) = answer.body.read(1 << 20).await.unwrap_or_default();
        return Err(refused(&path, answer.status, &body));
    }
    let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
    let served = match (header("kube-fanout-served"), header("kube-fanout-reason")) {
        (Some(_), _) => "from the cache".to_owned(),
        (None, Some(reason)) => format!("by upstream ({reason})"),
        (None, None) => "by a server that is not kube-fanout".to_owned(),
    };
    let about = if order.json { String::new() } else { format!("# {}{path}: served {served}\n", server.name) };
    if !is_read(print(&about))? {
        return Ok(());
    }
    let mut frames = StreamFrameSplitter::new(StreamFraming::Lines);
    while let Some(chunk) = answer.body.chunk().await {
        let chunk = chunk.map_err(|error| InspectError::of(&path, error))?;
        let mut text = String::new();
        let fed = frames.feed(&chunk, |frame| text.push_str(&line(frame, order.json)));
        fed.map_err(|_| InspectError::of(&path, "the frame is too long"))?;
        if !is_read(print(&text))? {
            return Ok(());
        }
    }
    Ok(())
}

impl TailOptions {
    fn path(&self, collection: &str) -> String {
        let mut path = format!("{collection}?watch=true&allowWatchBookmarks=true");
        let seconds = self.seconds.map(|seconds| seconds.to_string());
        for (name, value) in [
            ("labelSelector", &self.labels),
            ("fieldSelector", &self.fields),
            ("resourceVersion", &self.from),
            ("timeoutSeconds", &seconds),
        ] {
            if let Some(value) = value {
                let _ = write!(path, "&{name}={}", escaped(value));
            }
        }
        path
    }
}

fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn line(frame: &[u8], json: bool) -> String {
    let text = String::from_utf8_lossy(frame);
    if json {
        return format!("{text}\n");
    }
    match serde_json::from_slice::<TailFrame>(frame) {
        Ok(TailFrame { kind, object: TailObject { metadata, message } }) => {
            let TailMetadata { namespace, name, resource_version } = metadata;
            let key = if namespace.is_empty() { name } else { format!("{namespace}/{name}") };
            let text = format!("{kind:<9} {resource_version:<12} {key}{message}");
            printable(&text).trim_end().to_owned() + "\n"
        }
        Err(error) => format!("cannot parse the event: {error}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_event_prints_as_one_line() {
        let added =
            br#"{"type":"ADDED","object":{"metadata":{"namespace":"a","name":"b","resourceVersion":"7"},"spec":{}}}"#;
        assert_eq!(line(added, false), "ADDED     7            a/b\n");
        let hostile = br#"{"type":"ADDED","object":{"metadata":{"name":"\u001b[2J","resourceVersion":"7"}}}"#;
        assert_eq!(line(hostile, false), "ADDED     7            \u{fffd}[2J\n");
        let gone = br#"{"type":"ERROR","object":{"kind":"Status","message":"too old","code":410}}"#;
        assert_eq!(line(gone, false), "ERROR                  too old\n");
        assert_eq!(line(gone, true).as_bytes().last(), Some(&b'\n'));
    }
}
