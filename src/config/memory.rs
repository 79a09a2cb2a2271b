//! Available memory, and the share of it that feeds may use.

#[cfg(target_os = "linux")]
mod linux;

use std::fmt;
use std::path::PathBuf;

/// The memory budget of all feeds, and the reason for its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    budget_bytes: usize,
    /// Whether the configuration sets the budget.
    is_configured: bool,
    available: Option<AvailableMemory>,
}

/// The memory that this process may use before it is killed or the machine swaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AvailableMemory {
    bytes: u64,
    /// The limit of a control group; `None` if the machine's memory is the limit.
    limit: Option<PathBuf>,
}

/// The divisor of the available memory that gives the budget. The other half is for responses being sent, for
/// connections, and for memory that the allocator has not returned.
const BUDGET_SHARE: u64 = 2;
const BUDGET_BYTES_MIN: usize = 16 << 20;
const BUDGET_BYTES_MAX: usize = 8 << 30;
/// The chargeable part of each four bytes of the budget. The fourth byte is allocator overhead. Measured overhead is
/// two thirds of the charged bytes if small objects change all the time, and a tenth for large objects.
const CHARGED_QUARTERS: usize = 3;
/// The divisor of the available memory that gives the share of LIST responses being sent, which is part of the other
/// half.
const LISTS_SHARE: u64 = 8;
const LISTS_BYTES_MIN: usize = 16 << 20;
const LISTS_BYTES_MAX: usize = 1 << 30;

impl MemoryLimit {
    /// Uses the configured budget or, without one, a share of the available memory.
    pub(super) fn new(configured_bytes: Option<usize>, available: Option<AvailableMemory>) -> Self {
        let default = share_of(available.as_ref(), BUDGET_SHARE, BUDGET_BYTES_MIN, BUDGET_BYTES_MAX);
        Self { budget_bytes: configured_bytes.unwrap_or(default), is_configured: configured_bytes.is_some(), available }
    }

    pub fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// Returns how many bytes may be charged so that resident memory stays near the budget.
    pub(super) fn charged_bytes(&self) -> usize {
        self.budget_bytes / 4 * CHARGED_QUARTERS
    }

    /// Returns the default limit on the bytes of all LIST responses being sent.
    pub(super) fn lists_bytes(&self) -> usize {
        share_of(self.available.as_ref(), LISTS_SHARE, LISTS_BYTES_MIN, LISTS_BYTES_MAX)
    }

    /// Returns a warning if the budget exceeds the available memory.
    pub fn warning(&self) -> Option<String> {
        let available = self.available.as_ref().filter(|available| self.budget_bytes as u64 > available.bytes)?;
        let budget = self.budget_bytes >> 20;
        Some(format!("feeds.memoryMebibytes={budget} exceeds the available memory ({available})"))
    }
}

fn share_of(available: Option<&AvailableMemory>, of: u64, min: usize, max: usize) -> usize {
    available.map_or(max, |available| usize::try_from(available.bytes / of).unwrap_or(max).clamp(min, max))
}

/// Explains where the budget comes from.
impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.available, self.is_configured) {
            (_, true) => f.write_str("feeds.memoryMebibytes"),
            (None, false) => f.write_str("cannot read the available memory"),
            (Some(available), false) => write!(f, "half of {available}, from 16 to 8192 MiB"),
        }
    }
}

impl fmt::Display for AvailableMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.bytes >> 20;
        match &self.limit {
            Some(limit) => write!(f, "{mebibytes} MiB, the limit in {}", limit.display()),
            None => write!(f, "{mebibytes} MiB, the memory of the machine"),
        }
    }
}

impl AvailableMemory {
    /// Returns the memory limit of this process on this machine; `None` if the system does not expose it.
    pub(super) fn of_this_process() -> Option<Self> {
        #[cfg(target_os = "linux")]
        let available = linux::available(|path| std::fs::read_to_string(path).ok());
        #[cfg(not(target_os = "linux"))]
        let available = None;
        available
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: &str = "/sys/fs/cgroup/memory.max";

    fn available_memory(mebibytes: u64) -> AvailableMemory {
        AvailableMemory { bytes: mebibytes << 20, limit: Some(MAX.into()) }
    }

    #[test]
    fn feeds_get_half_of_memory_limit_and_lists_an_eighth() {
        for (available, budget, lists) in [
            (Some(available_memory(1)), 16, 16),
            (Some(available_memory(64)), 32, 16),
            (Some(available_memory(1024)), 512, 128),
            (Some(available_memory(4096)), 2048, 512),
            (Some(available_memory(1 << 20)), 8192, 1024),
            (Some(AvailableMemory { bytes: u64::MAX, limit: None }), 8192, 1024),
            (None, 8192, 1024),
        ] {
            let memory = MemoryLimit::new(None, available);
            assert_eq!((memory.budget_bytes() >> 20, memory.lists_bytes() >> 20), (budget, lists), "{memory:?}");
        }
        assert_eq!(
            MemoryLimit::new(Some(7 << 20), Some(available_memory(1024))).budget_bytes(),
            7 << 20,
            "the configured budget is used"
        );
        assert_eq!(
            MemoryLimit::new(Some(8 << 20), None).charged_bytes(),
            6 << 20,
            "a quarter is for allocator overhead"
        );
    }

    #[test]
    fn memory_budget_names_its_source_and_warns_above_limit() {
        let of = |configured: Option<usize>, available| {
            MemoryLimit::new(configured.map(|mebibytes| mebibytes << 20), available)
        };
        let text = "half of 1024 MiB, the limit in /sys/fs/cgroup/memory.max, from 16 to 8192 MiB";
        assert_eq!(of(None, Some(available_memory(1024))).to_string(), text);
        assert_eq!(of(Some(1), Some(available_memory(1024))).to_string(), "feeds.memoryMebibytes");
        for (configured, available, warns) in [
            (Some(8192), Some(available_memory(1024)), true),
            (Some(1025), Some(available_memory(1024)), true),
            (Some(1024), Some(available_memory(1024)), false),
            (Some(8192), None, false),
            (None, Some(available_memory(1024)), false),
        ] {
            assert_eq!(of(configured, available).warning().is_some(), warns, "{configured:?}");
        }
        let warning = of(Some(8192), Some(available_memory(1024))).warning().expect("it is too much");
        assert!(warning.contains("8192") && warning.contains("1024 MiB, the limit in /sys/fs/cgroup"), "{warning}");
    }
}
