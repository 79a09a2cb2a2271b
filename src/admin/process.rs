//! The resource usage and the health of the process, under the names of Prometheus' own client libraries. The values
//! are read when scraped.

#[cfg(target_os = "linux")]
mod linux;

use std::fmt::Write;

use rustix::process::{Resource, getrlimit};

use super::series::head;
use base::RuntimeHeartbeat;

/// The resource usage of the process. Values that cannot be read are omitted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct ProcessResourceUsage {
    cpu_seconds: Option<f64>,
    resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    open_files: Option<f64>,
    /// The start time of the process, in seconds since 1970.
    started: Option<f64>,
}

const RUNTIME_SILENT: &str = "how long the worker threads that serve clients have run no task";

const TASKS: &str = "tasks, without those of the admin address";

/// Appends the metrics in Prometheus' text format.
pub(super) fn write(heartbeat: &RuntimeHeartbeat, is_ready: bool, out: &mut String) {
    #[cfg(target_os = "linux")]
    let usage = linux::read();
    // Other systems have no `/proc`.
    #[cfg(not(target_os = "linux"))]
    let usage = ProcessResourceUsage::default();
    let ProcessResourceUsage { cpu_seconds, resident_bytes, virtual_bytes, open_files, started } = usage;
    let open_files_max = getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |max| max as f64);
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", "counter", "user and system time", cpu_seconds),
        ("process_resident_memory_bytes", "gauge", "resident memory", resident_bytes),
        ("process_virtual_memory_bytes", "gauge", "virtual memory", virtual_bytes),
        ("process_open_fds", "gauge", "open file descriptors", open_files),
        ("process_max_fds", "gauge", "limit of open file descriptors", Some(open_files_max)),
        ("process_start_time_seconds", "gauge", "start time of the process, in seconds since 1970", started),
        ("kube_fanout_ready", "gauge", "1 while /readyz returns 200", Some(f64::from(u8::from(is_ready)))),
        ("kube_fanout_tasks", "gauge", TASKS, Some(heartbeat.tasks() as f64)),
        ("kube_fanout_runtime_stalled_seconds", "gauge", RUNTIME_SILENT, Some(heartbeat.silent().as_secs_f64())),
    ] {
        if let Some(value) = value {
            head(out, name, kind, help);
            let _ = writeln!(out, "{name} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stalled_runtime_is_reported_in_stalled_seconds_metric() {
        let heartbeat = RuntimeHeartbeat::default();
        let _never_polled = heartbeat.beat();
        let silent = || {
            let mut text = String::new();
            write(&heartbeat, true, &mut text);
            let value = text.lines().find_map(|line| line.strip_prefix("kube_fanout_runtime_stalled_seconds "));
            value.and_then(|value| value.parse::<f64>().ok()).expect("it is there")
        };
        assert!(silent() < 0.1);
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert!((silent() - 20.0).abs() < 0.1, "{}", silent());
    }
}
