//! Code that needs Linux is in a file `linux.rs`, or in an item with `#[cfg(target_os = "linux")]`. So the demo, the
//! bench and the client commands also build on macOS, which `make macos` checks with the compiler.

use crate::source::{Kind, Source, is};

/// Names that other systems lack, from socket2, rustix and the standard library's traits.
const NAMES: [&str; 46] = [
    "SockFilter",
    "attach_filter",
    "detach_filter",
    "accept4",
    "cloexec",
    "nonblocking",
    "is_listener",
    "bind_device",
    "set_busy_poll",
    "set_cpu_affinity",
    "set_freebind_v4",
    "set_freebind_v6",
    "set_ip_transparent_v4",
    "set_ip_transparent_v6",
    "original_dst_v4",
    "original_dst_v6",
    "set_mark",
    "set_passcred",
    "set_priority",
    "set_tcp_congestion",
    "set_tcp_cork",
    "set_tcp_notsent_lowat",
    "set_tcp_quickack",
    "set_quickack",
    "set_tcp_thin_linear_timeouts",
    "set_tcp_user_timeout",
    "tcp_user_timeout",
    "DumpableBehavior",
    "set_dumpable_behavior",
    "dumpable_behavior",
    "set_parent_process_death_signal",
    "set_child_subreaper",
    "prlimit",
    "pidfd_open",
    "pidfd_send_signal",
    "memfd_create",
    "eventfd",
    "timerfd_create",
    "sched_setaffinity",
    "sched_getaffinity",
    "splice",
    "copy_file_range",
    "epoll",
    "inotify",
    "io_uring",
    "set_thread_name",
];
/// Prefixes of files that other systems lack.
const FOLDERS: [&str; 2] = ["/proc/", "/sys/"];

/// Lines with Linux-only names outside of Linux-only items, and the names.
pub(crate) fn violations(file: &str, text: &str) -> Vec<(usize, String)> {
    if file.ends_with("/linux.rs") {
        return Vec::new();
    }
    let source = Source::parse(file, text);
    let linux = source.on_linux();
    let mut found = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        if token.test || linux.iter().any(|region| region.contains(&at)) {
            continue;
        }
        let is_linux = match token.kind {
            Kind::Word => NAMES.contains(&token.text.as_str()) || source.reads(at, &["os", ":", ":", "linux"]),
            Kind::Text => FOLDERS.iter().any(|folder| token.text.starts_with(folder)),
            Kind::Mark => false,
        };
        let is_module = is(token, "mod") && source.reads(at + 1, &["linux", ";"]);
        if is_linux || is_module {
            let what = if is_module { "mod linux" } else { &token.text };
            found.push((token.line, format!("{what}: behind #[cfg(target_os = \"linux\")], or in a file linux.rs")));
        }
    }
    found
}

#[test]
fn linux_only_code_without_cfg_is_reported() {
    let planted = [
        "use socket2::{SockFilter, SockRef};",
        "fn f() { socket.set_tcp_user_timeout(None); }",
        "use std::os::linux::fs::MetadataExt;",
        "fn f() { let type_ = Type::STREAM.nonblocking(); }",
        "fn f() { read(&format!(\"/proc/{pid}/stat\")) }",
        "const LIMIT: &str = \"/sys/fs/cgroup\";",
        "mod linux;",
        "#[cfg(target_os = \"linux\")]\nfn f() {}\nfn g() { pidfd_open() }",
        "#[cfg(not(target_os = \"linux\"))]\nfn f() { pidfd_open() }",
        "#[cfg(unix)]\nfn f() { pidfd_open() }",
    ];
    for text in planted {
        assert_eq!(violations("src/net/listener.rs", text).len(), 1, "{text}");
    }
}

#[test]
fn linux_only_code_with_cfg_is_allowed() {
    let fine = [
        ("src/net/linux.rs", "use socket2::SockFilter; const STAT: &str = \"/proc/self/stat\";"),
        (
            "src/net.rs",
            "#[cfg(target_os = \"linux\")]\nmod linux;\n#[cfg(target_os = \"linux\")]\nuse linux as system;",
        ),
        ("src/app.rs", "#[cfg(target_os = \"linux\")]\n#[inline]\nfn f() { set_dumpable_behavior(no); }"),
        ("src/app.rs", "fn f() { #[cfg(target_os = \"linux\")] let dump = read(\"/proc/self/stat\"); }"),
        ("src/app.rs", "// SockFilter, /proc/self\nfn f() { socket.set_nonblocking(true) }"),
        ("src/app.rs", "#[cfg(test)]\nmod tests { const STAT: &str = \"/proc/self/stat\"; }"),
        ("src/app/tests.rs", "const STAT: &str = \"/proc/self/stat\";"),
    ];
    for (file, text) in fine {
        assert_eq!(violations(file, text), [], "{file}: {text}");
    }
}
