//! Documents that stand by themselves.

use std::path::PathBuf;

use clap::Parser as _;
use kube_fanout::auth::Authorities;
use kube_fanout::config::{Arguments, Command, ConfigCommand};
use kube_fanout::kube::{ContinueToken, PageStore, Status};

use super::text;

/// A Status that is read is written so that it is read as the same, in both encodings.
pub fn statuses(input: &[u8]) {
    for status in [Status::from_json(input), Status::from_protobuf(input)].into_iter().flatten() {
        assert_eq!(Status::from_json(&status.to_json()).expect("ours"), status);
        assert_eq!(Status::from_json(&status.to_json_indented()).expect("ours, on many lines"), status);
        assert_eq!(Status::from_protobuf(&status.to_protobuf()).expect("ours, in protobuf"), status);
        assert!((100..=999).contains(&status.http_code()), "{status:?}");
        let _ = (status.is_expired(), status.retry_after_seconds());
    }
}

/// A continue token that is read is written so that it is read as the same, by servers of every release.
pub fn tokens(input: &[u8]) {
    let text = text(input);
    let legible = ContinueToken::is_legible(&text);
    let Ok(token) = ContinueToken::decode(&text) else { return };
    assert!(legible, "what is read is legible");
    for pages in [PageStore::FromStorage, PageStore::FromCache] {
        let encoded = token.encode(pages);
        assert_eq!(ContinueToken::decode(&encoded).as_ref(), Ok(&token), "{encoded}");
    }
    assert_eq!(token.at_latest().start, token.start);
}

/// A bundle of certificates is one, or is refused in words.
pub fn authorities(input: &[u8]) {
    match Authorities::from_pem(input) {
        Ok(authorities) => assert!(authorities.shares_with(&authorities), "it has keys"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A configuration is one, or each of its problems is a line; the same text has the same ones.
pub fn configurations(input: &[u8]) {
    std::thread_local! {
        static FILE: PathBuf = std::env::temp_dir().join(format!(
            "kube-fanout-fuzz-{}-{:?}.yaml",
            std::process::id(),
            std::thread::current().id(),
        ));
    }
    FILE.with(|file| {
        std::fs::write(file, input).expect("a temporary file");
        let problems = || {
            let arguments = Arguments::try_parse_from(
                ["kube-fanout", "config", "check", "--config"]
                    .into_iter()
                    .map(std::ffi::OsStr::new)
                    .chain([file.as_os_str()]),
            )
            .expect("a command");
            let Command::Config { command: ConfigCommand::Check(check) } = arguments.command else {
                unreachable!("it was said")
            };
            match check.resolve() {
                Ok(_) => Vec::new(),
                Err(problems) => {
                    assert!(!problems.is_empty(), "nothing is refused without a reason");
                    problems.iter().map(str::to_owned).collect::<Vec<_>>()
                }
            }
        };
        assert_eq!(problems(), problems());
        let _ = std::fs::remove_file(file);
    });
}
