use std::path::Path;

use super::AvailableMemory;

/// The mount points of control groups and the name of the limit's file: version 2, then version 1.
const GROUPS: [(&str, &str); 2] =
    [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
/// The value from which on a limit of version 1 means "no limit". Version 1 writes about the largest multiple of the
/// page size.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// The lowest limit of the process's control group and its visible ancestors, or the machine's memory if that is less.
/// In a container, the process's own group is the visible root, whatever its path is outside.
pub(super) fn available(read: impl Fn(&Path) -> Option<String>) -> Option<AvailableMemory> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| machine_bytes(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let files = GROUPS.iter().zip([false, true]).flat_map(|((mount, file), is_v1)| {
        let paths = groups.lines().filter_map(move |line| path_in(line, is_v1));
        let around = paths.flat_map(|path| Path::new(path).ancestors());
        let inside = around.filter_map(|path| path.strip_prefix("/").ok()).filter(|path| is_inside(path));
        let all = inside.chain([Path::new("")]).map(|path| Path::new(mount).join(path).join(file));
        all.collect::<Vec<_>>()
    });
    let limits =
        files.filter_map(|path| Some(AvailableMemory { bytes: limit_bytes(&read(&path)?)?, limit: Some(path) }));
    let lowest = limits.min_by_key(|available| available.bytes);
    let machine = machine.map(|bytes| AvailableMemory { bytes, limit: None });
    lowest.into_iter().chain(machine).min_by_key(|available| available.bytes)
}

/// Whether a path stays below its root. The path of a control group outside of the visible hierarchy begins with dots.
fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// Parses `MemTotal` of `/proc/meminfo`, in bytes.
fn machine_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the path in a line of `/proc/self/cgroup` (`NUMBER:CONTROLLERS:PATH`) if the line concerns memory in the
/// given version of control groups.
fn path_in(line: &str, is_v1: bool) -> Option<&str> {
    let (number, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let concerns_memory = if is_v1 { controllers.split(',').any(|of| of == "memory") } else { number == "0" };
    concerns_memory.then_some(path)
}

fn limit_bytes(text: &str) -> Option<u64> {
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
    /// The name of the case, the files, and the expected limit in MiB with the file that sets it.
    type Case<'a> = (&'static str, &'a Files, Option<(u64, &'static str)>);

    fn find(files: &Files) -> Option<(u64, String)> {
        let read =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
        let found = available(read)?;
        Some((found.bytes >> 20, found.limit.map_or("the machine".to_owned(), |path| path.display().to_string())))
    }

    #[test]
    fn lowest_visible_cgroup_limit_is_memory_limit() {
        let own = |path| ("/proc/self/cgroup", path);
        let nested = "0::/kubepods/pod1/c1\n";
        let huge = "9223372036854771712\n";
        let hybrid = "4:memory:/system/a\n1:name=systemd:/x\n0::/system/a\n";
        let cases: [Case<'_>; 16] = [
            ("nothing can be read", &[], None),
            ("no control groups", &[MACHINE], Some((16384, "the machine"))),
            ("a container", &[MACHINE, own("0::/\n"), (MAX, "1073741824\n")], Some((1024, MAX))),
            ("a container without its own control group", &[MACHINE, (MAX, "1073741824")], Some((1024, MAX))),
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
            ("an invalid number", &[MACHINE, (MAX, "-1\n"), (V1, "0\n")], Some((16384, "the machine"))),
            ("a broken list", &[("/proc/meminfo", "MemTotal: much kB\n"), own("x\n::\n0:\n"), (MAX, "")], None),
        ];
        for (what, files, expected) in cases {
            let expected = expected.map(|(mebibytes, from)| (mebibytes, from.to_owned()));
            assert_eq!(find(files), expected, "{what}");
        }
    }
}
