//! h2spec, the common HTTP/2 conformance suite, in its strict mode: `make h2spec`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::process::Command;

use super::rows::{print_line, roomy};
use crate::direct::{self, App, Stub, stub};

/// The cases that the server fails today, and why. The list is exact.
const FAILED: [(&str, &str); 1] = [(
    "http2/3.5/2",
    "a preface that is wrong is taken for HTTP/1.1, whose 400 is no frame for h2spec; then it is closed",
)];

/// The server may answer a request after its head alone, because a GET is forwarded without a body. If the client does
/// not run between the head and the invalid frame after it, the response and the stream are complete (RFC 9113 §8.1).
/// If this case fails, the whole suite runs again.
const ANSWERED_SOONER: &str = "http2/6.9.1/3";
const RUNS_MAX: usize = 20;

/// The binary that `make h2spec` and `make test` build. CI requires it.
fn binary() -> Option<PathBuf> {
    let named = std::env::var_os("KUBE_H2SPEC").map(PathBuf::from);
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/testbed/h2spec");
    let path = named.unwrap_or(built);
    if path.is_file() {
        return Some(path);
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "no h2spec");
    print_line("SKIPPED: no h2spec (run `make h2spec`)");
    None
}

/// Names of the failed cases. Fails unless many other cases passed.
async fn run(app: &App, arguments: &[&str]) -> BTreeSet<String> {
    let Some(binary) = binary() else { return BTreeSet::new() };
    let origin = app.origin();
    let (_, port) = origin.rsplit_once(':').expect("a port");
    let mut command = Command::new(binary);
    // Timeout of each response; it ends a hang.
    command.args(["-port", port, "-path", "/any", "-timeout", "120s"]).args(arguments);
    let output = command.output().await;
    let output = output.expect("it runs");
    let (report, people) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{people}");
    let outcomes: Vec<_> = report.lines().filter_map(|line| line.split_once(' ')).collect();
    let with = |expected: &str| outcomes.iter().filter(|(outcome, _)| *outcome == expected).count();
    assert!(with("passed") > 100, "{report}\n{people}");
    print_line(&format!("{} passed, {} failed, {} skipped", with("passed"), with("failed"), with("skipped")));
    let failed = outcomes.iter().filter(|(outcome, _)| *outcome == "failed");
    let failed: BTreeSet<_> = failed.map(|(_, name)| name.split(' ').next().unwrap_or_default().to_owned()).collect();
    if failed != FAILED.iter().map(|(name, _)| (*name).to_owned()).collect() {
        print_line(&people);
    }
    failed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2spec_reports_only_known_failures() {
    if binary().is_none() {
        return;
    }
    // The response follows the complete or aborted request, because an earlier one would hide the server's reaction to
    // its errors.
    let answer = async |request: Request<Incoming>| {
        let _ = request.into_body().collect().await;
        Ok(Stub::reply(200, "an answer of some bytes"))
    };
    let upstream = stub(answer).await;
    let known: BTreeSet<_> = FAILED.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (how, arguments) in [("plain", &[][..]), ("TLS", &["-tls"])] {
        let plan = roomy(direct::in_front_of(&upstream.url()));
        let app = if arguments.is_empty() { plan } else { plan.tls() }.run().await;
        for left in (0..RUNS_MAX).rev() {
            let mut failed = run(&app, arguments).await;
            let again = left > 0 && failed.remove(ANSWERED_SOONER);
            assert_eq!(failed, known, "{how}");
            if !again {
                break;
            }
        }
    }
}
