//! How much memory there is, and the share of it that feeds may take.

use std::fmt;
use std::path::{Path, PathBuf};

/// What feeds may hold together, and why so much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    budget_bytes: usize,
    /// The configuration names the budget.
    is_said: bool,
    room: Option<Room>,
}

/// What this process may use before it is killed, or the machine swaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Room {
    bytes: u64,
    /// The limit of a control group; otherwise it is what the machine has.
    limit: Option<PathBuf>,
}

/// The other half is for what is on its way to clients, for connections, and for what the allocator has not given back.
const BUDGET_SHARE: u64 = 2;
const BUDGET_BYTES_MIN: usize = 16 << 20;
const BUDGET_BYTES_MAX: usize = 8 << 30;
/// Of each four bytes of the budget, those that may be charged. The fourth is for what an allocator takes besides where
/// small objects change all the time: two thirds on top of what is charged were measured, and a tenth of large ones.
const CHARGED_OF_4: usize = 3;
/// Of LISTs on their way, which are part of that other half.
const LISTS_SHARE: u64 = 8;
const LISTS_BYTES_MIN: usize = 16 << 20;
const LISTS_BYTES_MAX: usize = 1 << 30;

/// Where control groups are, and the name of the limit: version 2 and version 1.
const GROUPS: [(&str, &str); 2] =
    [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
/// Version 1 writes "no limit" as a number, the largest that is a whole page or about that.
const UNLIMITED_BYTES: u64 = 1 << 60;

impl MemoryLimit {
    /// The budget that was said, or a share of the room.
    pub(super) fn new(said_bytes: Option<usize>, room: Option<Room>) -> Self {
        let share = share(room.as_ref(), BUDGET_SHARE, BUDGET_BYTES_MIN, BUDGET_BYTES_MAX);
        Self { budget_bytes: said_bytes.unwrap_or(share), is_said: said_bytes.is_some(), room }
    }

    pub fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// What may be charged to it, so that the resident memory stays near the budget.
    pub(super) fn charged_bytes(&self) -> usize {
        self.budget_bytes / 4 * CHARGED_OF_4
    }

    /// What LISTs on their way may hold together where nobody has said it.
    pub(super) fn lists_bytes(&self) -> usize {
        share(self.room.as_ref(), LISTS_SHARE, LISTS_BYTES_MIN, LISTS_BYTES_MAX)
    }

    /// What is wrong with it, if it is more than there is.
    pub fn warning(&self) -> Option<String> {
        let room = self.room.as_ref().filter(|room| self.budget_bytes as u64 > room.bytes)?;
        let budget = self.budget_bytes >> 20;
        Some(format!("feeds.memoryMebibytes is {budget}, and there is less ({room}): the process may be killed for it"))
    }
}

fn share(room: Option<&Room>, of: u64, min: usize, max: usize) -> usize {
    room.map_or(max, |room| usize::try_from(room.bytes / of).unwrap_or(max).clamp(min, max))
}

/// Where the budget comes from.
impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.room, self.is_said) {
            (_, true) => f.write_str("feeds.memoryMebibytes"),
            (None, false) => f.write_str("how much memory there is cannot be read"),
            (Some(room), false) => write!(f, "half of {room}, from 16 to 8192 MiB"),
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.bytes >> 20;
        match &self.limit {
            Some(limit) => write!(f, "{mebibytes} MiB, the limit in {}", limit.display()),
            None => write!(f, "{mebibytes} MiB, the memory of the machine"),
        }
    }
}

impl Room {
    /// Of this process, on this machine.
    pub(super) fn of_this_process() -> Option<Self> {
        Self::find(|path| std::fs::read_to_string(path).ok())
    }

    /// The lowest limit of the process's control group and of those around it, as far as they can be seen, or what the
    /// machine has if that is less. In a container its own group is the root of what can be seen, whatever its path is
    /// outside.
    fn find(read: impl Fn(&Path) -> Option<String>) -> Option<Self> {
        let machine = read(Path::new("/proc/meminfo")).and_then(|text| total(&text));
        let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        let files = GROUPS.iter().zip([false, true]).flat_map(|((mount, file), is_v1)| {
            let paths = groups.lines().filter_map(move |line| path_in(line, is_v1));
            let around = paths.flat_map(|path| Path::new(path).ancestors());
            let inside = around.filter_map(|path| path.strip_prefix("/").ok()).filter(|path| is_inside(path));
            let all = inside.chain([Path::new("")]).map(|path| Path::new(mount).join(path).join(file));
            all.collect::<Vec<_>>()
        });
        let limits = files.filter_map(|path| Some(Self { bytes: limit(&read(&path)?)?, limit: Some(path) }));
        let lowest = limits.min_by_key(|room| room.bytes);
        let machine = machine.map(|bytes| Self { bytes, limit: None });
        lowest.into_iter().chain(machine).min_by_key(|room| room.bytes)
    }
}

/// Whether a path stays below its root. That of a group outside of what can be seen begins with dots.
fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// `MemTotal` of `/proc/meminfo`.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The path in a line of `/proc/self/cgroup` (`NUMBER:CONTROLLERS:PATH`) if it is about memory in that version.
fn path_in(line: &str, is_v1: bool) -> Option<&str> {
    let (number, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let is_it = if is_v1 { controllers.split(',').any(|of| of == "memory") } else { number == "0" };
    is_it.then_some(path)
}

fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| (1..UNLIMITED_BYTES).contains(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1 kB\n");
    const MAX: &str = "/sys/fs/cgroup/memory.max";
    const V1: &str = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
    const V1_NESTED: &str = "/sys/fs/cgroup/memory/system/memory.limit_in_bytes";

    type Files = [(&'static str, &'static str)];
    /// What it is, what files say, and the MiB and the file that decide.
    type Case<'a> = (&'static str, &'a Files, Option<(u64, &'static str)>);

    fn find(files: &Files) -> Option<(u64, String)> {
        let read =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
        let found = Room::find(read)?;
        Some((found.bytes >> 20, found.limit.map_or("the machine".to_owned(), |path| path.display().to_string())))
    }

    #[test]
    fn the_lowest_limit_that_can_be_seen_is_the_room() {
        let own = |path| ("/proc/self/cgroup", path);
        let nested = "0::/kubepods/pod1/c1\n";
        let huge = "9223372036854771712\n";
        let hybrid = "4:memory:/system/a\n1:name=systemd:/x\n0::/system/a\n";
        let cases: [Case<'_>; 16] = [
            ("nothing can be read", &[], None),
            ("no control groups", &[MACHINE], Some((16384, "the machine"))),
            ("a container", &[MACHINE, own("0::/\n"), (MAX, "1073741824\n")], Some((1024, MAX))),
            ("a container that says nothing of itself", &[MACHINE, (MAX, "1073741824")], Some((1024, MAX))),
            ("no limit", &[MACHINE, own("0::/\n"), (MAX, "max\n")], Some((16384, "the machine"))),
            (
                "a limit of a group around it",
                &[
                    MACHINE,
                    own(nested),
                    ("/sys/fs/cgroup/kubepods/pod1/c1/memory.max", "max\n"),
                    ("/sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
                    ("/sys/fs/cgroup/kubepods/memory.max", "8589934592\n"),
                ],
                Some((512, "/sys/fs/cgroup/kubepods/pod1/memory.max")),
            ),
            (
                "a narrower limit inside",
                &[
                    MACHINE,
                    own(nested),
                    ("/sys/fs/cgroup/kubepods/pod1/c1/memory.max", "268435456\n"),
                    ("/sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
                ],
                Some((256, "/sys/fs/cgroup/kubepods/pod1/c1/memory.max")),
            ),
            ("its path outside of the container", &[MACHINE, own(nested), (MAX, "1073741824")], Some((1024, MAX))),
            ("a group beside the root", &[MACHINE, own("0::/../../a\n"), (MAX, "1073741824")], Some((1024, MAX))),
            ("version 1", &[MACHINE, own("5:cpu,memory:/docker/c\n"), (V1, "1073741824\n")], Some((1024, V1))),
            ("version 1, no limit", &[MACHINE, own("5:memory:/\n"), (V1, huge)], Some((16384, "the machine"))),
            ("version 1, no limit, no machine", &[own("5:memory:/\n"), (V1, huge)], None),
            (
                "version 1, nested",
                &[MACHINE, own(hybrid), (V1, huge), (V1_NESTED, "134217728")],
                Some((128, V1_NESTED)),
            ),
            ("a limit beyond the machine", &[MACHINE, (MAX, "1099511627776\n")], Some((16384, "the machine"))),
            ("what is no number", &[MACHINE, (MAX, "-1\n"), (V1, "0\n")], Some((16384, "the machine"))),
            ("a broken list", &[("/proc/meminfo", "MemTotal: much kB\n"), own("x\n::\n0:\n"), (MAX, "")], None),
        ];
        for (what, files, expected) in cases {
            let expected = expected.map(|(mebibytes, from)| (mebibytes, from.to_owned()));
            assert_eq!(find(files), expected, "{what}");
        }
    }

    fn room(mebibytes: u64) -> Room {
        Room { bytes: mebibytes << 20, limit: Some(MAX.into()) }
    }

    #[test]
    fn feeds_have_half_of_the_room_and_lists_an_eighth() {
        for (room, budget, lists) in [
            (Some(room(1)), 16, 16),
            (Some(room(64)), 32, 16),
            (Some(room(1024)), 512, 128),
            (Some(room(4096)), 2048, 512),
            (Some(room(1 << 20)), 8192, 1024),
            (Some(Room { bytes: u64::MAX, limit: None }), 8192, 1024),
            (None, 8192, 1024),
        ] {
            let memory = MemoryLimit::new(None, room);
            assert_eq!((memory.budget_bytes() >> 20, memory.lists_bytes() >> 20), (budget, lists), "{memory:?}");
        }
        assert_eq!(MemoryLimit::new(Some(7 << 20), Some(room(1024))).budget_bytes(), 7 << 20, "what is said holds");
        assert_eq!(
            MemoryLimit::new(Some(8 << 20), None).charged_bytes(),
            6 << 20,
            "and leaves something to the allocator"
        );
    }

    #[test]
    fn a_budget_says_where_it_comes_from_and_whether_it_is_too_much() {
        let of = |said: Option<usize>, room| MemoryLimit::new(said.map(|mebibytes| mebibytes << 20), room);
        let words = "half of 1024 MiB, the limit in /sys/fs/cgroup/memory.max, from 16 to 8192 MiB";
        assert_eq!(of(None, Some(room(1024))).to_string(), words);
        assert_eq!(of(Some(1), Some(room(1024))).to_string(), "feeds.memoryMebibytes");
        for (said, room, warns) in [
            (Some(8192), Some(room(1024)), true),
            (Some(1025), Some(room(1024)), true),
            (Some(1024), Some(room(1024)), false),
            (Some(8192), None, false),
            (None, Some(room(1024)), false),
        ] {
            assert_eq!(of(said, room).warning().is_some(), warns, "{said:?}");
        }
        let warning = of(Some(8192), Some(room(1024))).warning().expect("it is too much");
        assert!(warning.contains("8192") && warning.contains("1024 MiB, the limit in /sys/fs/cgroup"), "{warning}");
    }
}
