//! Reads process and machine figures from `/proc`.

use std::fs;
use std::time::Duration;

use super::{MachineInfo, ServerUsageSample};

pub(super) const NAME: &str = "Linux";
/// The unit of CPU times in `/proc`, which Linux has fixed at a hundred ticks a second.
const TICKS_PER_SECOND: u64 = 100;

/// Returns the process's resource usage so far, as far as it is readable.
pub(super) fn sample(pid: u32) -> ServerUsageSample {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let rollup = read("smaps_rollup").unwrap_or_default();
    let status = read("status").unwrap_or_default();
    ServerUsageSample {
        cpu: read("stat").and_then(|stat| cpu_of_stat(&stat)),
        resident_bytes: kilobytes(&rollup, "Rss:").or_else(|| kilobytes(&status, "VmRSS:")),
        proportional_bytes: kilobytes(&rollup, "Pss:"),
        peak_bytes: kilobytes(&status, "VmHWM:"),
    }
}

/// Returns only the user and system time, which are read without disturbing the process.
pub(super) fn cpu(pid: u32) -> Option<Duration> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok().as_deref().and_then(cpu_of_stat)
}

/// Resets the peak memory; returns `false` without the permission to do so.
pub(super) fn reset_peak(pid: u32) -> bool {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").is_ok()
}

pub(super) fn machine(cores: usize) -> MachineInfo {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (cpus, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    MachineInfo {
        cores,
        processor: model.map(|(_, model)| model.trim().to_owned()).unwrap_or_default(),
        memory_mib: kilobytes(&memory, "MemTotal:").unwrap_or(0) >> 20,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
    }
}

/// Parses user and system time. The fields are counted from the end of the name, which may contain any character.
fn cpu_of_stat(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let sum = ticks.next()?.ok()? + ticks.next()?.ok()?;
    Some(Duration::from_millis(sum * 1000 / TICKS_PER_SECOND))
}

fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_memory_are_parsed_from_proc() {
        let stat = "42 (a) name) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 9 0 1 2 3";
        assert_eq!(cpu_of_stat(stat), Some(Duration::from_secs(2)));
        assert_eq!(kilobytes("Name: x\nVmHWM:\t  2048 kB\n", "VmHWM:"), Some(2 << 20));
        let own = sample(std::process::id());
        assert!(own.cpu.is_some() && own.resident_bytes > Some(1 << 20), "{own:?}");
    }
}
