use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::metrics::MetricsText;
use super::rows::{feed_name, number, text};
use super::table::{bytes, grouped, lines};
use super::{InspectError, InspectReport, ProxyTarget};
use base::WallClock;

/// The status of one proxy.
pub(super) struct ProxyStatus {
    pub(super) name: String,
    /// The names of the failed readiness checks.
    pub(super) pending: Vec<String>,
    pub(super) feeds: Vec<Value>,
    pub(super) version: String,
    pub(super) watches: u64,
    pub(super) streams: u64,
    pub(super) held_bytes: u64,
    pub(super) budget_bytes: u64,
    pub(super) resident_bytes: u64,
    pub(super) restart_required: Vec<String>,
    pub(super) last_error: Option<String>,
    /// The problems with other files, one sentence each.
    pub(super) files: Vec<String>,
    pub(super) metrics: MetricsText,
}

/// Reports the status of each proxy. All are asked at once, because each that does not respond takes a timeout.
pub async fn status(proxies: &[ProxyTarget]) -> InspectReport {
    let (mut text, mut json, mut is_well, mut failures) = (String::new(), Vec::new(), true, Vec::new());
    for of in join_all(proxies.iter().map(ProxyStatus::of)).await {
        let of = match of {
            Ok(of) => of,
            Err(error) => {
                failures.push(error);
                continue;
            }
        };
        if !text.is_empty() {
            text.push('\n');
        }
        of.write(&mut text);
        is_well &= of.is_well();
        json.push(of.json());
    }
    InspectReport { text, json: json.into(), is_well, failures }
}

impl ProxyStatus {
    pub(super) async fn of(proxy: &ProxyTarget) -> Result<Self, InspectError> {
        let fetch = async |path: &str| {
            let response = proxy.page(path).await?;
            response.map_err(|not| {
                InspectError::of(&format!("{} {path}", proxy.name), format!("{} {}", not.status, not.why))
            })
        };
        let ready = fetch("/readyz").await?;
        let metrics = MetricsText(fetch("/metrics").await?);
        let parsed = |path: &str, text: String| {
            serde_json::from_str::<Value>(&text)
                .map_err(|error| InspectError::of(&format!("{} {path}", proxy.name), error))
        };
        let feeds = parsed("/debug/feeds", fetch("/debug/feeds").await?)?;
        // Proxies of earlier releases do not have this page.
        let config = proxy.json("/debug/config").await?.unwrap_or_default();
        let pending = ready
            .lines()
            .filter_map(|line| line.strip_prefix("[-]"))
            // Lines about single feeds do not contain this text, and are skipped.
            .filter_map(|line| line.split_once(" not ready"))
            .map(|(what, reason)| match reason.strip_prefix(": ") {
                Some(reason) => format!("{what} ({reason})"),
                None => what.to_owned(),
            });
        let restart = config["restartRequired"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Ok(Self {
            name: proxy.name.clone(),
            pending: pending.collect(),
            feeds: feeds.as_array().cloned().unwrap_or_default(),
            version: metrics.label("kube_fanout_build_info", "version").unwrap_or_default().to_owned(),
            watches: metrics.sum("kube_fanout_watches_open"),
            streams: metrics.sum("kube_fanout_upstream_streams_open"),
            held_bytes: metrics.sum("kube_fanout_memory_used_bytes"),
            budget_bytes: metrics.sum("kube_fanout_memory_budget_bytes"),
            resident_bytes: metrics.sum("process_resident_memory_bytes"),
            restart_required: restart.map(str::to_owned).collect(),
            last_error: config["lastError"].as_str().map(str::to_owned),
            files: troubles(&metrics, WallClock::default().now()),
            metrics,
        })
    }

    /// Whether the proxy is ready, all feeds are live, and the configuration and certificates are usable.
    fn is_well(&self) -> bool {
        let are_files_well = self.last_error.is_none() && self.files.is_empty();
        self.pending.is_empty() && are_files_well && self.feeds.iter().all(|feed| feed["state"] == "live")
    }

    /// Returns the first line of the status: address, readiness and release.
    pub(super) fn headline(&self) -> String {
        let ready = if self.pending.is_empty() {
            "ready".to_owned()
        } else {
            format!("not ready: {}", self.pending.join(", "))
        };
        format!("{}: {ready}, kube-fanout {}", self.name, self.version)
    }

    pub(super) fn write(&self, text: &mut String) {
        let _ = writeln!(text, "{}", self.headline());
        let _ = writeln!(
            text,
            "  {} client watches, {} upstream streams; cache {} of {}, resident memory {}",
            grouped(self.watches),
            grouped(self.streams),
            bytes(self.held_bytes),
            bytes(self.budget_bytes),
            bytes(self.resident_bytes),
        );
        if let Some(error) = &self.last_error {
            let _ = writeln!(text, "  configuration reload failed; keeping the previous one: {error}");
        }
        for trouble in &self.files {
            let _ = writeln!(text, "  {trouble}");
        }
        if !self.restart_required.is_empty() {
            let _ = writeln!(text, "  restart required for: {}", self.restart_required.join(", "));
        }
        let rows: Vec<_> = self.feeds.iter().map(row).collect();
        text.push_str(&if rows.is_empty() {
            "  no feeds: no client has read a cacheable resource yet\n".to_owned()
        } else {
            lines(&HEAD, &rows)
        });
    }

    fn json(&self) -> Value {
        json!({
            "proxy": self.name, "ready": self.pending.is_empty(), "pending": self.pending, "version": self.version,
            "watches": self.watches, "upstreamStreams": self.streams, "heldBytes": self.held_bytes,
            "budgetBytes": self.budget_bytes, "residentBytes": self.resident_bytes, "feeds": self.feeds,
            "configuration": {"lastError": self.last_error, "restartRequired": self.restart_required}, "files": self.files,
        })
    }
}

/// Returns failed preloads, failed reloads and expired certificates. The configuration file is excluded, because its
/// own page has more details.
fn troubles(metrics: &MetricsText, now: SystemTime) -> Vec<String> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let failing = metrics.by_label("kube_fanout_reload_failing", "what");
    let failing = failing.filter(|(what, failing)| *failing > 0.0 && *what != "configuration");
    let expiry = metrics.by_label("kube_fanout_certificate_expiry_timestamp_seconds", "what");
    let expired = expiry.filter(|(_, expiry)| *expiry <= now);
    let preloads = metrics.by_label("kube_fanout_preload_failing", "resource").filter(|(_, failing)| *failing > 0.0);
    preloads
        .map(|(resource, _)| format!("preload {resource}: cannot be cached; its requests pass through"))
        .chain(failing.map(|(what, _)| format!("{what}: reload failed; keeping the previous one")))
        .chain(expired.map(|(what, _)| format!("{what}: expired")))
        .collect()
}

/// The column heads of the table of feeds.
pub(super) const HEAD: [&str; 7] = ["  FEED", "STATE", "OBJECTS", "VERSION", "READERS", "HISTORY", "MEMORY"];

/// Formats a feed as a row.
pub(super) fn row(feed: &Value) -> Vec<String> {
    let name = format!("  {} ({})", feed_name(feed), text(feed, "encoding"));
    let state = match feed["staleSeconds"].as_u64() {
        Some(seconds) => format!("{} for {seconds} s", text(feed, "state")),
        None => text(feed, "state"),
    };
    let [objects, readers, events] = ["objects", "readers", "windowEvents"].map(|key| grouped(number(feed, key)));
    vec![name, state, objects, text(feed, "resourceVersion"), readers, events, bytes(number(feed, "memoryBytes"))]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::AdminPageAddress;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// A proxy that does not respond takes 15 s.
    #[tokio::test]
    async fn silent_proxies_are_asked_at_the_same_time() {
        let bind = async || TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let listeners = [bind().await, bind().await];
        let targets = listeners.each_ref().map(|listener| {
            let address = listener.local_addr().expect("bound").to_string();
            ProxyTarget { name: address.clone(), place: AdminPageAddress::Tcp(address), token: None }
        });
        let accepting = async {
            let connections = (listeners[0].accept().await, listeners[1].accept().await);
            drop((connections, listeners));
        };
        let asked = async { tokio::join!(status(&targets), accepting) };
        let (report, ()) = timeout(Duration::from_secs(10), asked).await.expect("the second one is asked at once");
        assert_eq!(report.failures.len(), 2);
    }

    #[test]
    fn failed_reload_and_expired_certificate_are_reported() {
        let text = "kube_fanout_preload_failing{resource=\"nodes\"} 0\n\
                    kube_fanout_preload_failing{resource=\"pods\"} 1\n\
                    kube_fanout_reload_failing{what=\"client_ca\"} 0\n\
                    kube_fanout_reload_failing{what=\"listener_certificate\"} 1\n\
                    kube_fanout_reload_failing{what=\"configuration\"} 1\n\
                    kube_fanout_certificate_expiry_timestamp_seconds{what=\"listener_certificate\"} 1000\n";
        let troubles = |now| troubles(&MetricsText(text.to_owned()), UNIX_EPOCH + Duration::from_secs(now));
        let preload = "preload pods: cannot be cached; its requests pass through";
        let failing = "listener_certificate: reload failed; keeping the previous one";
        assert_eq!(troubles(999), [preload, failing]);
        assert_eq!(troubles(1000), [preload, failing, "listener_certificate: expired"]);
    }
}
