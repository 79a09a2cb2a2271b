//! The command `try` rejects invalid arguments.

use crate::direct::Dir;
use crate::process::run;

#[test]
fn try_rejects_invalid_arguments() {
    let wrong = run(&["try", "--demo", "--script", "5s etcd"]);
    assert_eq!(wrong.code, Some(64), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("expected apiserver, proxy or quit"), "{}", wrong.stderr);
    assert_eq!(run(&["try", "--demo", "--testbed", "x"]).code, Some(64));
    assert_eq!(run(&["try", "--informers", "0"]).code, Some(64));
    let dir = Dir::new();
    let missing = dir.join("no-such-testbed");
    let void = run(&["try", "--testbed", missing.to_str().expect("a path")]);
    assert_eq!(void.code, Some(2), "{}", void.stderr);
    assert!(void.stderr.contains("no-such-testbed"), "{}", void.stderr);
    let no_plane = dir.file("kube-testbed", "#!/bin/sh\nexit 1\n");
    let void = run(&["try", "--testbed", no_plane.to_str().expect("a path")]);
    assert_eq!(void.code, Some(2), "{}", void.stderr);
}
