//! The command `try` kills an apiserver and a proxy at the times in a script.

use crate::process::run;

#[tokio::test]
async fn try_loses_no_event_when_apiserver_and_proxy_are_killed() {
    let script = "300ms apiserver, 2s proxy, 4s quit";
    let arguments = ["try", "--demo", "--informers", "120", "--pods", "15", "--rate", "40", "--script", script];
    let output = tokio::task::spawn_blocking(move || run(&arguments)).await.expect("no panic");
    let stdout = &output.stdout;
    assert_eq!(output.code, Some(0), "{stdout}\n{}", output.stderr);
    for part in [
        "/#token=",
        "apiserver killed",
        "proxy killed",
        "restarted",
        "The apiserver was killed once, the proxy once.",
        "0 lost, 0 wrong or duplicate",
        "Nothing was lost: each informer received every change, and its state equals upstream.",
    ] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    let lines: Vec<_> = stdout.lines().filter(|line| line.contains("of 120 streams")).collect();
    assert!(lines.len() >= 3 && lines.iter().all(|line| line.contains(" lost 0 ")), "{stdout}");
    assert!(lines.iter().any(|line| line.contains("· 120 of 120 streams")), "{stdout}");
}
