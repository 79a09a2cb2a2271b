//! Stand-alone documents.

use std::path::PathBuf;

use clap::Parser as _;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use kube_fanout::auth::{CaOverlapChecker, CertificateAuthorities, CertificateAuthorityRole};
use kube_fanout::config::{CliArguments, CliCommand, ConfigCommand, ServeArguments};
use kube_fanout::upstream::read_status;
use kubeapi::{ContinueToken, ListPageSource, Status};

use super::text;

/// A parsed Status is encoded so that it parses as the same, in both encodings.
pub fn statuses(input: &[u8]) {
    refusal(input);
    for status in [Status::from_json(input), Status::from_protobuf(input)].into_iter().flatten() {
        assert_eq!(Status::from_json(&status.to_json()).expect("ours"), status);
        assert_eq!(Status::from_json(&status.to_json_indented()).expect("ours, on many lines"), status);
        assert_eq!(Status::from_protobuf(&status.to_protobuf()).expect("ours, in protobuf"), status);
        assert!((100..=999).contains(&status.http_code()), "{status:?}");
        let _ = (status.is_expired(), status.retry_after_seconds());
    }
}

/// The body of a refusal is a Status, or one is made of the code.
fn refusal(body: &[u8]) {
    let (mut head, ()) = Response::new(()).into_parts();
    head.status = [StatusCode::FORBIDDEN, StatusCode::GONE, StatusCode::TOO_MANY_REQUESTS][body.len() % 3];
    head.headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
    let status = read_status(&head, body);
    assert!(status.code != 0 && (100..=999).contains(&status.http_code()), "{status:?}");
    assert!(status.retry_after_seconds().is_some(), "{status:?}");
}

/// A parsed continue token is encoded so that it parses as the same, for servers of every release.
pub fn tokens(input: &[u8]) {
    let text = text(input);
    let Some(token) = ContinueToken::decode(&text) else { return };
    for pages in [ListPageSource::FromStorage, ListPageSource::FromCache] {
        let encoded = token.encode(pages);
        assert_eq!(ContinueToken::decode(&encoded).as_ref(), Some(&token), "{encoded}");
    }
}

/// A certificate bundle is valid, or is refused with a message.
pub fn authorities(input: &[u8]) {
    match CertificateAuthorities::from_pem(input) {
        Ok(authorities) => {
            let checker = CaOverlapChecker::default();
            let [first, second] = [CertificateAuthorityRole::Client, CertificateAuthorityRole::FrontProxy]
                .map(|role| checker.set_authorities(role, &authorities));
            assert!(first.is_ok() && second.is_err(), "it has keys");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A configuration is valid, or each of its problems is one line; the same text has the same problems.
pub fn configurations(input: &[u8]) {
    std::thread_local! {
        static CHECK: (PathBuf, Box<ServeArguments>) = check();
    }
    CHECK.with(|(file, check)| {
        std::fs::write(file, input).expect("a temporary file");
        let problems = || match check.clone().resolve() {
            Ok(_) => Vec::new(),
            Err(problems) => {
                assert!(!problems.is_empty(), "nothing is refused without a reason");
                problems.iter().map(str::to_owned).collect::<Vec<_>>()
            }
        };
        assert_eq!(problems(), problems());
        let _ = std::fs::remove_file(file);
    });
}

/// A file, and the command that checks it. The command line is parsed once, because that costs as much as parsing a
/// file.
fn check() -> (PathBuf, Box<ServeArguments>) {
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let file = std::env::temp_dir().join(format!("kube-fanout-fuzz-{process}-{thread:?}.yaml"));
    let command_line = ["kube-fanout", "config", "check", "--config"].into_iter().map(std::ffi::OsStr::new);
    let arguments = CliArguments::try_parse_from(command_line.chain([file.as_os_str()])).expect("a command");
    let CliCommand::Config { command: ConfigCommand::Check(check) } = arguments.command else {
        unreachable!("the command line is fixed")
    };
    (file, check)
}
