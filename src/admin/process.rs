//! The resource usage and the health of the process, under the names of Prometheus' own client libraries. The values
//! are read when scraped.

#[cfg(target_os = "linux")]
mod linux;

use std::fmt::Write;
use std::sync::OnceLock;

use rustix::process::{Resource, getrlimit};
use tracing_appender::non_blocking::ErrorCounter;

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

/// Counts the log lines that were dropped. Not set if a log that is not read blocks the program instead.
static LOG_LINES: OnceLock<ErrorCounter> = OnceLock::new();

/// Shows the log lines that this counter counts as dropped.
pub fn show_dropped_log_lines(counter: ErrorCounter) {
    // A process has one log.
    let _ = LOG_LINES.set(counter);
}

/// Appends the metrics in Prometheus' text format.
pub(super) fn write(heartbeat: &RuntimeHeartbeat, is_ready: bool, out: &mut String) {
    #[cfg(target_os = "linux")]
    let usage = linux::read();
    // Other systems have no `/proc`.
    #[cfg(not(target_os = "linux"))]
    let usage = ProcessResourceUsage::default();
    let ProcessResourceUsage { cpu_seconds, resident_bytes, virtual_bytes, open_files, started } = usage;
    let dropped_log_lines = LOG_LINES.get().map(|counter| counter.dropped_lines() as f64);
    let open_files_max = getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |max| max as f64);
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", "counter", "user and system time", cpu_seconds),
        ("process_resident_memory_bytes", "gauge", "resident memory", resident_bytes),
        ("process_virtual_memory_bytes", "gauge", "virtual memory", virtual_bytes),
        ("process_open_fds", "gauge", "open file descriptors", open_files),
        ("process_max_fds", "gauge", "limit of open file descriptors", Some(open_files_max)),
        ("process_start_time_seconds", "gauge", "start time of the process, in seconds since 1970", started),
        (
            "kube_fanout_log_lines_dropped_total",
            "counter",
            "log lines dropped because the log was not read in time",
            dropped_log_lines,
        ),
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
    use std::io::{self, Write as _};
    use std::sync::mpsc;
    use std::time::Duration;

    use tracing_appender::non_blocking::NonBlockingBuilder;

    use super::*;

    /// A log whose reader hangs.
    struct Unread(mpsc::Receiver<()>);

    impl io::Write for Unread {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.recv().map_or(Ok(line.len()), |()| Ok(line.len()))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn dropped_log_lines_are_counted() {
        const LINES: usize = 10;
        let (read, unread) = mpsc::channel();
        let log = NonBlockingBuilder::default().buffered_lines_limit(1).lossy(true).finish(Unread(unread));
        let (mut lines, _written_at_exit) = log;
        (0..LINES).for_each(|_| lines.write_all(b"line\n").expect("no error"));
        show_dropped_log_lines(lines.error_counter());
        let mut text = String::new();
        write(&RuntimeHeartbeat::default(), true, &mut text);
        let dropped = text.lines().find_map(|line| line.strip_prefix("kube_fanout_log_lines_dropped_total "));
        let dropped: usize = dropped.and_then(|dropped| dropped.parse().ok()).expect("it is there");
        // One line waits, and the thread may have taken another.
        assert!((LINES - 2..LINES).contains(&dropped), "{dropped}");
        drop(read);
    }

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
