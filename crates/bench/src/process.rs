#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod portable;

use std::time::Duration;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(not(target_os = "linux"))]
use portable as system;
use rustix::time::{ClockId, clock_gettime};

use base::BackgroundTasks;
use probe::{TargetServer, UnaryClient, WatchProtocol};

/// The source of a server's CPU and memory figures.
pub(super) enum ServerUsageSource {
    Process(u32),
    Metrics(Box<UnaryClient>, String),
    Unknown,
}

/// A server's resource usage so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ServerUsageSample {
    pub(super) cpu: Option<Duration>,
    pub(super) resident_bytes: Option<u64>,
    /// The proportional set size: shared memory counts only with the process's share.
    pub(super) proportional_bytes: Option<u64>,
    pub(super) peak_bytes: Option<u64>,
}

impl ServerUsageSource {
    /// Selects the process, or the metrics at a URL, as the source.
    pub(super) fn of(pid: Option<u32>, metrics: Option<(&TargetServer, &str)>, tasks: &BackgroundTasks) -> Self {
        match (pid, metrics) {
            (Some(pid), _) => Self::Process(pid),
            (None, Some((target, path))) => {
                Self::Metrics(Box::new(UnaryClient::new(target, WatchProtocol::H1, tasks)), path.to_owned())
            }
            (None, None) => Self::Unknown,
        }
    }

    /// Resets the peak. Returns `false` without the permission to do so; the peak is then unknown.
    pub(super) fn reset_peak(&self) -> bool {
        match self {
            Self::Process(pid) => system::reset_peak(*pid),
            Self::Metrics(..) | Self::Unknown => false,
        }
    }

    /// Returns only the CPU time, which is read without disturbing the process.
    pub(super) async fn cpu(&self) -> Option<Duration> {
        match self {
            Self::Process(pid) => system::cpu(*pid),
            Self::Metrics(..) | Self::Unknown => self.sample().await.cpu,
        }
    }

    pub(super) async fn sample(&self) -> ServerUsageSample {
        match self {
            Self::Process(pid) => system::sample(*pid),
            Self::Metrics(caller, path) => match caller.get(path, "text/plain").await {
                Ok(reply) => of_metrics(&String::from_utf8_lossy(&reply.body)),
                Err(_) => ServerUsageSample::default(),
            },
            Self::Unknown => ServerUsageSample::default(),
        }
    }
}

/// Returns the generator's own CPU time.
pub(super) fn own_cpu() -> Duration {
    cpu_of(ClockId::ProcessCPUTime)
}

/// Returns the CPU time of the current thread.
pub(super) fn thread_cpu() -> Duration {
    cpu_of(ClockId::ThreadCPUTime)
}

fn cpu_of(clock: ClockId) -> Duration {
    let spent = clock_gettime(clock);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Returns the number of available cores.
pub(super) fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// The machine on which the figures were measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MachineInfo {
    pub cores: usize,
    pub processor: String,
    pub memory_mib: u64,
    pub kernel: String,
}

impl MachineInfo {
    pub fn this() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        system::machine(cores)
    }
}

impl std::fmt::Display for MachineInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cores, processor, memory_mib, kernel } = self;
        write!(f, "{cores} cores")?;
        if !processor.is_empty() {
            write!(f, " of {processor}")?;
        }
        if *memory_mib > 0 {
            write!(f, ", {memory_mib} MiB")?;
        }
        write!(f, ", {} {kernel}", system::NAME)
    }
}

fn of_metrics(text: &str) -> ServerUsageSample {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.split_ascii_whitespace().next()?.parse::<f64>().ok().filter(|value| *value >= 0.0)
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of memory")]
    let resident_bytes = value("process_resident_memory_bytes").map(|bytes| bytes as u64);
    let cpu = value("process_cpu_seconds_total").map(Duration::from_secs_f64);
    ServerUsageSample { cpu, resident_bytes, ..ServerUsageSample::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_measures_its_own_cpu_time() {
        assert!(own_cpu() > Duration::ZERO);
    }

    #[test]
    fn cpu_and_memory_are_parsed_from_metrics() {
        let text = "# HELP x\nprocess_cpu_seconds_total 1.5\nprocess_resident_memory_bytes 1.048576e+06\n";
        let sample = of_metrics(text);
        assert_eq!((sample.cpu, sample.resident_bytes), (Some(Duration::from_millis(1500)), Some(1 << 20)));
        assert_eq!(of_metrics(""), ServerUsageSample::default());
    }
}
