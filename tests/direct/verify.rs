//! The command `verify`, from outside. It passes a server that keeps its promises, and fails one that breaks them. A
//! run that proves nothing is void.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::direct::{self, Behind, Dir, Failure, Stub, stub};
use crate::process::{Output, run};

/// How a relay falsifies one line of some watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    None,
    Drop,
    Repeat,
    /// Nothing arrives any more.
    Silence,
    /// The stream ends in the middle of the line, as if it were complete.
    Tear,
}

/// Time limit of a run: the checks after a few seconds of work take long on a busy machine.
const RUN_MAX: Duration = Duration::from_secs(120);
/// Index of the falsified change among those that pass.
const VICTIM: usize = 100;

/// A server in front of another one that relays everything except for one line.
async fn relay(url: &str, lie: Lie) -> Stub {
    let (behind, passed) = (Behind::at(url), Arc::new(AtomicUsize::new(0)));
    let answer = move |request: Request<Incoming>| {
        let (behind, passed) = (behind.clone(), passed.clone());
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let answer = behind.answer(request).await?;
            Ok(if is_watch { answer.map(|body| lying(body, lie, passed)) } else { answer })
        }
    };
    stub(answer).await
}

/// The body line by line, with one of the changes dropped or repeated.
fn lying(mut body: UnsyncBoxBody<Bytes, Failure>, lie: Lie, passed: Arc<AtomicUsize>) -> UnsyncBoxBody<Bytes, Failure> {
    let (lines, rest) = mpsc::channel::<Result<Frame<Bytes>, Failure>>(8);
    drop(tokio::spawn(async move {
        let mut partial = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = match frame {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => return drop(lines.send(Err(error)).await),
            };
            partial.extend_from_slice(&data);
            while let Some(at) = partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = partial.drain(..=at).collect();
                let is_change = line.starts_with(br#"{"type":"MODIFIED""#);
                let nth =
                    if is_change { passed.fetch_add(1, Ordering::Relaxed) } else { passed.load(Ordering::Relaxed) };
                let is_victim = is_change && nth == VICTIM;
                let times = match lie {
                    // Repeated periodically, because the affected watch may end at that moment, and receive the change
                    // again.
                    Lie::Drop if is_change && nth >= VICTIM && (nth - VICTIM).is_multiple_of(50) => 0,
                    Lie::Repeat if is_victim => 2,
                    Lie::Silence if nth > VICTIM => 0,
                    _ => 1,
                };
                if lie == Lie::Tear && is_victim {
                    let half = line[..line.len() / 2].to_vec();
                    return drop(lines.send(Ok(Frame::data(half.into()))).await);
                }
                for _ in 0..times {
                    if lines.send(Ok(Frame::data(line.clone().into()))).await.is_err() {
                        return;
                    }
                }
            }
        }
    }));
    let rest = futures_util::stream::unfold(rest, |mut rest| async move { Some((rest.recv().await?, rest)) });
    StreamBody::new(rest).boxed_unsync()
}

/// Runs `verify` against a server, with another one as the source of truth.
async fn verify(url: &str, truth: &str, dir: &Dir, more: &[&str]) -> Output {
    let out = dir.join("out").to_str().expect("a path").to_owned();
    let few = ["--clients", "12", "--objects", "20", "--patience", "5s", "--transports", "h1,h2"];
    let arguments = [&["verify", url, "--truth", truth, "--seed", "7", "--out", &out][..], &few, more].concat();
    let arguments: Vec<_> = arguments.into_iter().map(str::to_owned).collect();
    let running = tokio::task::spawn_blocking(move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    timeout(RUN_MAX, running).await.expect("it ends").expect("no panic")
}

/// Content of a file of the run.
fn file(dir: &Dir, name: &str) -> String {
    std::fs::read_to_string(dir.join("out").join(name)).expect("it was written")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_passes_for_proxy() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    let dir = Dir::new();
    let all = ["--transports", "ws", "--encodings", "json,metadata", "--duration", "5s", "--rate", "100"];
    let output = verify(&app.url(), &up.url(), &dir, &all).await;
    assert_eq!(output.code, Some(0), "{}{}", output.stdout, output.stderr);
    for promise in ["Ordered", "Reliable", "Typed", "InitialEvents", "ListSnapshot", "Consistent", "TypedBytes"] {
        let line = output.stdout.lines().find(|line| line.trim_start().starts_with(promise));
        assert!(line.is_some_and(|line| line.contains("ok in")), "{promise}: {}", output.stdout);
    }
    assert!(output.stderr.contains("writes") && output.stderr.contains("events"), "progress: {}", output.stderr);
    assert!(output.stdout.contains("--seed 7"), "how to repeat it: {}", output.stdout);
    assert!(file(&dir, "report.html").contains("class=\"verdict held\""));
    let left = direct::upstream_client(&up).get("/api/v1/configmaps").await;
    assert!(!left.text().contains("verify-object"), "objects were not deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_detects_lost_repeated_torn_or_silent_watch_events() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    let json = ["--encodings", "json", "--duration", "5s", "--rate", "100"];
    let honest = relay(&app.url(), Lie::None).await;
    let output = verify(&honest.url(), &up.url(), &Dir::new(), &json).await;
    assert_eq!(output.code, Some(0), "the relay itself is clean: {}{}", output.stdout, output.stderr);
    let lies = [(Lie::Drop, "Reliable"), (Lie::Repeat, "Unique"), (Lie::Silence, "Reliable"), (Lie::Tear, "Reliable")];
    for (lie, promise) in lies {
        let (dir, liar) = (Dir::new(), relay(&app.url(), lie).await);
        let output = verify(&liar.url(), &up.url(), &dir, &json).await;
        assert_eq!(output.code, Some(1), "{lie:?}: {}{}", output.stdout, output.stderr);
        assert!(is_broken(&output, promise), "{lie:?}: {}", output.stdout);
        let page = file(&dir, "report.html");
        for part in ["class=\"verdict violated\"", "(violation)", "wrong\"", promise] {
            assert!(page.contains(part), "{lie:?}: {part}");
        }
        judged_again(&dir.join("out").join("records.jsonl"), promise);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_checks_watches_that_move_between_servers() {
    let up = demo::upstream().run().await;
    let zone = direct::app(&up).run().await;
    let leaf = direct::in_front_of(&zone.url()).run().await;
    let liar = relay(&zone.url(), Lie::Drop).await;
    let (zone, up_url, liar) = (zone.url(), up.url(), liar.url());
    let all = ["--also", &zone, "--also", &up_url, "--informers", "--share", "4", "--duration", "4s", "--rate", "100"];
    let dir = Dir::new();
    let output = verify(&leaf.url(), &up_url, &dir, &all).await;
    assert_eq!(output.code, Some(0), "{}{}", output.stdout, output.stderr);
    for promise in ["Reliable", "Resumable", "Unique", "Continuity", "BeginsOnce"] {
        let line = output.stdout.lines().find(|line| line.trim_start().starts_with(promise));
        assert!(line.is_some_and(|line| line.contains("ok in")), "{promise}: {}", output.stdout);
    }
    assert!(output.stdout.contains(" watches moved to http://"), "which went where: {}", output.stdout);
    // One of them that lies is found as the first one would be.
    let lied_to = ["--also", &liar, "--encodings", "json", "--duration", "5s", "--rate", "100"];
    let output = verify(&leaf.url(), &up_url, &Dir::new(), &lied_to).await;
    assert_eq!(output.code, Some(1), "{}{}", output.stdout, output.stderr);
    assert!(is_broken(&output, "Reliable"), "{}", output.stdout);
}

/// Whether the output reports this promise as broken.
fn is_broken(output: &Output, promise: &str) -> bool {
    output.stdout.lines().any(|line| line.trim_start().starts_with(promise) && line.contains("VIOLATED"))
}

/// Asserts that the record alone shows the violation as well.
fn judged_again(record: &Path, promise: &str) {
    let path = record.to_str().expect("a path");
    let output = run(&["verify", "judge", path]);
    assert_eq!(output.code, Some(1), "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("First violation"), "{}", output.stdout);
    assert!(is_broken(&output, promise), "{}", output.stdout);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_is_inconclusive_with_few_events_or_no_history() {
    let up = demo::upstream().run().await;
    let dir = Dir::new();
    let little = ["--rate", "0.2", "--duration", "1s", "--min-events", "2000"];
    let idle = verify(&up.url(), &up.url(), &dir, &little).await;
    assert_eq!(idle.code, Some(2), "{}{}", idle.stdout, idle.stderr);
    assert!(idle.stdout.contains("Inconclusive") && idle.stdout.contains("at least 2000 required"), "{}", idle.stdout);
    let blind = verify(&up.url(), "etcd=http://127.0.0.1:1", &Dir::new(), &["--duration", "1s"]).await;
    assert_eq!(blind.code, Some(2), "{}{}", blind.stdout, blind.stderr);
    assert!(blind.stderr.contains("true history") && blind.stderr.contains("127.0.0.1:1"), "{}", blind.stderr);
}

/// An etcd that has compacted the history after its state.
async fn compacted_etcd() -> Stub {
    stub(|request: Request<Incoming>| async move {
        let answer = match request.uri().path() {
            "/v3/kv/range" => r#"{"header":{"revision":"5"}}"#.to_owned(),
            _ => {
                let created = r#"{"result":{"header":{"revision":"20"},"created":true}}"#;
                let refused = r#"{"result":{"header":{"revision":"20"},"canceled":true,"compact_revision":"9"}}"#;
                format!("{created}\n{refused}\n")
            }
        };
        Ok(Stub::reply(200, answer))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_is_inconclusive_if_etcd_history_is_compacted() {
    let (up, etcd) = (demo::upstream().run().await, compacted_etcd().await);
    let output = verify(&up.url(), &format!("etcd={}", etcd.url()), &Dir::new(), &["--duration", "5s"]).await;
    assert_eq!(output.code, Some(2), "{}{}", output.stdout, output.stderr);
    assert!(output.stderr.contains("compacted up to 9"), "{}", output.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_is_inconclusive_if_every_fault_command_fails() {
    let up = demo::upstream().run().await;
    let fault = ["--duration", "10s", "--fault", "echo no apiserver here >&2; false", "--fault-every", "1s", "1s"];
    let output = verify(&up.url(), &up.url(), &Dir::new(), &fault).await;
    assert_eq!(output.code, Some(2), "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.contains("no apiserver here") && output.stdout.contains("0 faults"), "{}", output.stdout);
}

#[test]
fn verify_exits_with_64_and_all_usage_errors() {
    let wrong = ["verify", "http://127.0.0.1:1", "--clients", "0", "--truth", "etcd=", "--namespaces", "99"];
    let output = run(&wrong);
    assert_eq!(output.code, Some(64), "{}", output.stderr);
    for word in ["clients", "truth", "namespaces"] {
        assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
    }
    for arguments in [&["verify"][..], &["verify", "x", "--transports", "h3"], &["verify", "judge"]] {
        assert_eq!(run(arguments).code, Some(64), "{arguments:?}");
    }
    assert_eq!(run(&["verify", "judge", "no-such-file"]).code, Some(2));
    let help = run(&["verify", "--help"]);
    assert!(help.code == Some(0) && help.stdout.contains("Exit codes") && help.stdout.contains("judge"));
}
