use std::fs;
use std::sync::OnceLock;

use super::ProcessResourceUsage;

/// The clock ticks in `/proc`, which Linux fixes at 100 per second.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads the usage from `/proc/self`, which a process may read even if it is not dumpable.
pub(super) fn read() -> ProcessResourceUsage {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ticks = |number| field(&stat, number).map(|ticks| ticks / TICKS_PER_SECOND);
    ProcessResourceUsage {
        cpu_seconds: ticks(14).zip(ticks(15)).map(|(user, system)| user + system),
        resident_bytes: kilobytes(&status, "VmRSS:"),
        virtual_bytes: kilobytes(&status, "VmSize:"),
        open_files: open_files(),
        started: booted().zip(ticks(22)).map(|(boot, since)| boot + since),
    }
}

/// Returns a field of `stat` by its number in proc(5). The position is counted from the end of the process name, which
/// may contain any character.
fn field(stat: &str, number: usize) -> Option<f64> {
    const FIRST_AFTER_NAME: usize = 3;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(number - FIRST_AFTER_NAME)?.parse().ok()
}

fn kilobytes(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}

/// Counts the open files. Since Linux 6.2, the size of the directory is the count; earlier releases require listing it.
fn open_files() -> Option<f64> {
    match fs::metadata("/proc/self/fd").ok()?.len() {
        // One of the descriptors belongs to the listing itself.
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64),
        open => Some(open as f64),
    }
}

/// Returns the boot time. It is cached, because `/proc/stat` is long on machines with many cores.
fn booted() -> Option<f64> {
    static BOOT_TIME: OnceLock<Option<f64>> = OnceLock::new();
    *BOOT_TIME.get_or_init(|| {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_metrics_are_read_from_proc() {
        let stat = "42 (a) name) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 9 0 7700 2 3";
        assert_eq!([14, 15, 22].map(|number| field(stat, number)), [Some(150.0), Some(50.0), Some(7700.0)]);
        assert_eq!(field("", 14), None);
        assert_eq!(kilobytes("Name: x\nVmRSS:\t  2048 kB\n", "VmRSS:"), Some(2_097_152.0));
        let files: Vec<_> = (0..20).map(|_| fs::File::open("/proc/self/stat").expect("a file")).collect();
        let own = read();
        assert!(own.open_files >= Some(files.len() as f64) && own.resident_bytes > Some(1e6), "{own:?}");
        assert!(own.virtual_bytes > own.resident_bytes && own.cpu_seconds.is_some(), "{own:?}");
        let year_2020 = 1_577_836_800.0;
        assert!(own.started > Some(year_2020), "{own:?}");
    }
}
