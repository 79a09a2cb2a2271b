use clap::Parser;

use super::file::File;
use super::{Arguments, Command, Problems, Serve};

fn parse(text: &str) -> Vec<String> {
    let mut problems = Problems::default();
    File::parse(text, &mut problems);
    problems.iter().map(str::to_owned).collect()
}

fn serve(flags: &[&str]) -> Result<Serve, Problems> {
    let arguments = Arguments::try_parse_from(["kube-fanout", "serve"].iter().chain(flags)).expect("flags parse");
    match arguments.command {
        Command::Serve(arguments) => arguments.resolve(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_problem_is_reported_at_once() {
    let problems = parse("lisen: [x]\ndrain: soon\nwindow: {events: 0, hours: 3}\nlimits: 7\nlog: {format: xml}\n");
    let expected = [
        "drain:",
        "window.events: 0",
        "window.hours: unknown key",
        "limits: expected a mapping",
        "log.format",
        "lisen: unknown key",
    ];
    for part in expected {
        assert!(problems.iter().any(|problem| problem.starts_with(part)), "{part} is missing in {problems:#?}");
    }
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
}

#[test]
fn what_is_not_yaml_is_one_problem() {
    assert_eq!(parse("listen: [").len(), 1);
    assert_eq!(parse("- a\n- b\n").len(), 1);
    assert!(parse("# nothing but a comment\n").is_empty());
}

#[test]
fn every_file_in_config_is_valid() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    let files: Vec<_> =
        std::fs::read_dir(folder).expect("there are examples").map(|entry| entry.expect("readable").path()).collect();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        assert_eq!(parse(&text), Vec::<String>::new(), "{}", file.display());
    }
}

#[test]
fn flags_override_defaults_and_keep_loopback() {
    let ok = serve(&[
        "--kubeconfig",
        "/k",
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "unix:/tmp/x",
        "--consistency",
        "bounded",
    ]);
    let ok = ok.expect("a valid configuration");
    assert_eq!(ok.listen.len(), 2);
    assert_eq!(ok.door.consistency, crate::serve::Consistency::Bounded);
}

#[test]
fn unsafe_combinations_are_refused_with_the_reason() {
    let refused =
        serve(&["--listen", "0.0.0.0:8001", "--admin", "10.1.1.1:9", "--auth", "delegated", "--consistency", "maybe"]);
    let text = refused.expect_err("four problems").to_string();
    for part in ["auth: \"delegated\"", "consistency: \"maybe\""] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let refused = serve(&["--listen", "0.0.0.0:8001", "--admin", "10.1.1.1:9"]).expect_err("two problems").to_string();
    assert!(refused.contains("0.0.0.0:8001 can be reached from other machines"), "{refused}");
    assert!(refused.contains("admin: 10.1.1.1:9 can be reached"), "{refused}");
}
