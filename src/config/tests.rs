mod manual;
mod reference;

use clap::Parser;

use super::configuration::Configuration;
use super::{CliArguments, CliCommand, ConfigProblems, DelegatedAuthKeys, ServeArguments, ServeSettings};
use crate::net::Http2Codec;
use crate::serve::SensitiveKind;

fn parse(text: &str) -> Vec<String> {
    let mut problems = ConfigProblems::default();
    Configuration::parse(text, &mut problems);
    problems.iter().map(str::to_owned).collect()
}

fn serve(flags: &[&str]) -> Result<ServeSettings, ConfigProblems> {
    let arguments = CliArguments::try_parse_from(["kube-fanout", "serve"].iter().chain(flags)).expect("flags parse");
    match arguments.command {
        CliCommand::Serve(arguments) => arguments.resolve(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_config_problems_are_reported_at_once() {
    let problems = parse("lisen: [x]\ndrain: soon\nwindow: {events: 0, hours: 3}\nlimits: 7\nlog: {format: xml}\n");
    let expected = [
        "drain:",
        "window.events: 0",
        "window.hours: unknown key",
        "limits: invalid type: integer `7`",
        "log.format",
        "lisen: unknown key",
    ];
    for part in expected {
        assert!(problems.iter().any(|problem| problem.starts_with(part)), "{part} is missing in {problems:#?}");
    }
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
}

#[test]
fn invalid_log_level_is_reported_with_other_problems() {
    let text = "log: {level: debugg}\nlisten: nowhere\n";
    let problems = ServeArguments::default().resolve_text(text).expect_err("two problems");
    let found: Vec<_> = problems.iter().collect();
    assert!(found.len() == 2 && found.iter().any(|problem| problem.starts_with("listen: ")), "{found:?}");
    let expected =
        "log.level: \"debugg\": \"debugg\" is not a level; expected one of off, error, warn, info, debug, trace";
    assert!(found.iter().any(|problem| problem.starts_with(expected)), "{found:?}");
}

#[test]
fn listen_accepts_single_address_without_list() {
    for text in ["listen: unix:/run/x.sock", "listen: [unix:/run/x.sock]"] {
        let mut problems = ConfigProblems::default();
        let file = Configuration::parse(text, &mut problems);
        assert_eq!((file.listen, problems.is_empty()), (vec!["unix:/run/x.sock".to_owned()], true), "{text}");
    }
}

#[test]
fn config_problems_name_whole_key() {
    let text =
        "apiVersion: v2\nlimits:\n  watches: 0\n  wachtes: 5\nlisten: [a, {}, 7]\nwindow:\n  age: 5\nadmin: on\n";
    let problems = parse(text);
    let expected = [
        "admin: true is not supported (expected an address or off)",
        "apiVersion: unknown variant `v2`",
        "limits.watches: 0 is out of range (expected 1 to ",
        "listen: invalid type: map",
        "listen: invalid type: integer `7`",
        "window.age: 5 is not a duration",
        "limits.wachtes: unknown key",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:#?}");
    for (problem, part) in problems.iter().zip(expected) {
        assert!(problem.starts_with(part), "{part} is missing in {problems:#?}");
    }
}

/// A flag is validated like its key, and does not hide a problem of the file.
#[test]
fn problems_of_overridden_keys_are_reported() {
    let file = std::env::temp_dir().join(format!("kube-fanout-overridden-{}", fastrand::u64(..)));
    std::fs::write(&file, "consistency: maybe\nupstream: 7\nlisten: [a]\n").expect("written");
    let config = file.to_str().expect("a path");
    let flags = ["--config", config, "--consistency", "perhaps", "--kubeconfig", "/k", "--listen", "unix:/run/x"];
    let problems = serve(&flags).expect_err("problems");
    let found: Vec<_> = problems.iter().map(|problem| problem.split(',').next().unwrap_or_default()).collect();
    let expected = [
        "consistency: unknown variant `maybe`",
        "upstream: invalid type: integer `7`",
        "consistency: unknown variant `perhaps`",
    ];
    assert_eq!(found, expected);
    std::fs::remove_file(&file).expect("removed");
}

#[cfg(unix)]
#[test]
fn path_that_is_not_utf8_is_refused() {
    use std::os::unix::ffi::OsStringExt as _;

    let path = std::ffi::OsString::from_vec(b"/k\xff".to_vec());
    let arguments = CliArguments::try_parse_from(["kube-fanout".into(), "serve".into(), "--client-ca".into(), path]);
    let CliCommand::Serve(arguments) = arguments.expect("flags parse").command else { panic!("another command") };
    let problems = arguments.resolve().expect_err("a problem").to_string();
    assert!(problems.contains("delegated.clientCA: path contains invalid UTF-8"), "{problems}");
}

#[test]
fn empty_section_and_known_version_are_accepted() {
    let text = "apiVersion: kube-fanout.io/v1alpha1\nkind: Configuration\nupstream:\n  # kubeconfig: x\nnode: ~\n";
    assert_eq!(parse(text), Vec::<String>::new());
    assert_eq!(parse("kind: Pod\n").len(), 1);
}

#[test]
fn duplicate_key_is_refused() {
    let problems = parse("drain: 5s\ndrain: 6s\n");
    assert!(problems.len() == 1 && problems[0].contains("drain"), "{problems:?}");
}

#[test]
fn invalid_yaml_is_reported_as_one_problem() {
    assert_eq!(parse("listen: [").len(), 1);
    assert_eq!(parse("- a\n- b\n").len(), 1);
    assert!(parse("# nothing but a comment\n").is_empty());
}

#[test]
fn example_config_files_are_valid() {
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
fn flags_override_defaults_on_local_listeners() {
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
    assert_eq!(ok.serve.consistency, crate::serve::ReadConsistency::Bounded);
}

#[test]
fn flags_set_node_name_and_sensitive_resources() {
    let ok = serve(&[
        "--kubeconfig",
        "/k",
        "--listen",
        "unix:/run/x",
        "--node-name",
        "n7",
        "--cache-sensitive",
        "secrets,configmaps",
    ]);
    let coverage = ok.expect("a valid configuration").serve.coverage;
    assert_eq!((coverage.node.as_deref(), coverage.sensitive), (Some("n7"), SensitiveKind::ALL.to_vec()));
    let refused = serve(&["--node-name", "", "--cache-sensitive", "pods"]).expect_err("two problems").to_string();
    for part in
        ["node: \"\" is not a node name", "feeds.sensitive: unknown variant `pods`, expected `secrets` or `configmaps`"]
    {
        assert!(refused.contains(part), "{part} is missing in {refused}");
    }
}

#[test]
fn codec_of_http2_is_a_key() {
    let codec = |text: &str| {
        let mut problems = ConfigProblems::default();
        let codec = Configuration::parse(text, &mut problems).connections().http2_codec;
        assert!(problems.is_empty(), "{problems}");
        codec
    };
    assert_eq!((codec(""), codec("http2: {codec: hyper}")), (Http2Codec::Own, Http2Codec::Hyper));
    assert_eq!(parse("http2: {codec: nghttp2}").len(), 1);
}

#[test]
fn unsafe_configuration_is_refused_with_the_reason() {
    let refuse = |flags: &[&str]| serve(flags).expect_err("a problem").to_string();
    let refused = refuse(&["--listen", "0.0.0.0:8001", "--admin", "10.1.1.1:9", "--consistency", "maybe"]);
    for part in [
        "0.0.0.0:8001 is reachable from other machines, and with auth: none",
        "admin: 10.1.1.1:9 is reachable",
        "consistency: unknown variant `maybe`",
    ] {
        assert!(refused.contains(part), "{part} is missing in {refused}");
    }
    let refused = refuse(&["--auth", "delegated", "--listen", "0.0.0.0:8001", "--client-ca", "/nowhere"]);
    for part in ["without TLS tokens would be sent", "delegated.clientCA: /nowhere", "certificates require TLS"] {
        assert!(refused.contains(part), "{part} is missing in {refused}");
    }
    assert!(
        refuse(&["--auth", "delegate"]).contains("auth: unknown variant `delegate`, expected `none` or `delegated`")
    );
    assert!(refuse(&["--impersonator-kubeconfig", "/k"]).contains("delegated.* requires auth: delegated"));
    let filtered = ServeArguments::default().resolve_text("reads: {filter: {users: [ada]}}").expect_err("a problem");
    assert!(filtered.to_string().contains("reads.filter requires auth: delegated"), "{filtered}");
    for (drop, problem) in [
        ("users: [ada]", "reads.drop.groups and reads.drop.users require auth: delegated"),
        ("groups: [agents]", "reads.drop.groups and reads.drop.users require auth: delegated"),
        ("userAgents: ['']", "reads.drop.userAgents: an empty prefix matches every client"),
        ("listeners: ['127.0.0.1:1']", "reads.drop.listeners: 127.0.0.1:1 is not in `listen`"),
        ("fields: [spec]", "fields"),
    ] {
        let refused = ServeArguments::default().resolve_text(&format!("reads: {{drop: {{{drop}}}}}"));
        let refused = refused.expect_err("a problem").to_string();
        assert!(refused.contains(problem), "{refused}");
    }
    let reduced = "listen: ['localhost:8001']\nreads: {drop: {userAgents: [a/], listeners: ['127.0.0.1:8001']}}";
    let reduced = ServeArguments::default().resolve_text(reduced).expect("no problem").serve.reduced;
    assert_eq!((reduced.user_agents, reduced.callers.listeners.len()), (vec!["a/".to_owned()], 1));
    let listeners = |named: &str| {
        let listen = "auth: delegated\nlisten: ['localhost:8001', 'unix:/run/x']";
        ServeArguments::default().resolve_text(&format!("{listen}\nreads: {{filter: {{listeners: [{named}]}}}}"))
    };
    assert!(
        listeners("'127.0.0.1:8001', 'unix:/run/x'").is_ok_and(|settings| settings.serve.filter.listeners.len() == 2)
    );
    for (named, problem) in [
        ("'127.0.0.1:8002'", "reads.filter.listeners: 127.0.0.1:8002 is not in `listen`"),
        ("tenants", "reads.filter.listeners: \"tenants\" is not an address"),
    ] {
        let refused = listeners(named).expect_err("a problem").to_string();
        assert!(refused.contains(problem), "{refused}");
    }
}

/// The row for nodes in the table of modes in docs/SECURITY.md.
#[test]
fn node_mode_without_authentication_requires_unix_sockets() {
    let node = ["--node-name", "n7"];
    let with = |more: &[&str]| serve(&[&node[..], more].concat());
    for tcp in [&[][..], &["--listen", "127.0.0.1:0"], &["--listen", "unix:/run/x", "--listen", "[::1]:8001"]] {
        let refused = with(tcp).expect_err("a problem").to_string();
        assert!(refused.contains("node: every process on the node") && refused.contains("unix:PATH"), "{refused}");
    }
    let tls = with(&["--tls-self-signed"]).expect_err("a problem").to_string();
    assert!(tls.contains("node: every process"), "{tls}");
    for fine in [&["--listen", "unix:/run/x"][..], &["--auth", "delegated"]] {
        assert!(with(fine).is_ok(), "{fine:?}");
    }
}

#[test]
fn impersonator_kubeconfig_with_node_name_is_refused() {
    let delegated = ["--auth", "delegated", "--impersonator-kubeconfig", "/k"];
    let refused = serve(&[&["--node-name", "n7"], &delegated[..]].concat()).expect_err("a problem").to_string();
    assert!(refused.contains("delegated.impersonator: not allowed with node"), "{refused}");
    assert!(serve(&delegated).is_ok());
}

#[test]
fn invalid_origins_are_all_reported() {
    let file = std::env::temp_dir().join(format!("kube-fanout-origins-{}", fastrand::u64(..)));
    let of = |list: &str| {
        std::fs::write(&file, format!("allowedOrigins: [{list}]\n")).expect("written");
        serve(&["--config", file.to_str().expect("a path")])
    };
    assert_eq!(of(r#""https://a.example", "tauri://localhost""#).expect("valid").allowed_origins.len(), 2);
    let refused = of(r#""*", "null", "https://*.example", "https://a.example/", "a.example""#).expect_err("problems");
    assert_eq!(refused.iter().count(), 5, "{refused}");
    assert!(
        refused.iter().all(|problem| problem.starts_with("allowedOrigins: ") && problem.contains("is not an origin"))
    );
    std::fs::remove_file(&file).expect("removed");
}

#[test]
fn invalid_upstream_servers_are_all_reported() {
    let file = std::env::temp_dir().join(format!("kube-fanout-servers-{}", fastrand::u64(..)));
    let of = |list: &str| {
        std::fs::write(&file, format!("upstream: {{servers: [{list}]}}\n")).expect("written");
        serve(&["--kubeconfig", "/k", "--config", file.to_str().expect("a path")])
    };
    let named = of(r#""https://10.0.0.1:6443", "http://127.0.0.1:8001""#).expect("valid").endpoints.servers;
    assert_eq!(
        named.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["https://10.0.0.1:6443", "http://127.0.0.1:8001"]
    );
    assert!(of("").expect("valid").endpoints.servers.is_empty(), "the kubeconfig's");
    let refused = of(r#""a:6443", "http://10.0.0.1:8080", "https://a", "https://a/""#).expect_err("problems");
    assert_eq!(refused.iter().count(), 3, "{refused}");
    for part in
        ["\"a:6443\" is not a server URL", "http://10.0.0.1:8080/ does not use TLS", "https://a is listed twice"]
    {
        assert!(refused.to_string().contains(part), "{part} is missing in {refused}");
    }
    let many: Vec<_> = (0..9).map(|n| format!("https://s{n}")).collect();
    assert!(of(&many.join(", ")).expect_err("a problem").to_string().contains("more than 8"));
    std::fs::remove_file(&file).expect("removed");
}

/// Only front proxies may assert another identity, so ordinary client CAs must not be trusted for it
/// (docs/SECURITY.md, "Deployment modes").
#[test]
fn client_ca_and_front_proxy_ca_must_differ() {
    let folder = std::env::temp_dir().join(format!("kube-fanout-authorities-{}", fastrand::u64(..)));
    std::fs::create_dir_all(&folder).expect("a folder");
    let authority = |name: &str| {
        let path = folder.join(name);
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
        std::fs::write(&path, made.cert.pem()).expect("written");
        path
    };
    let (clients, proxies) = (authority("clients"), authority("proxies"));
    let checked = |front: &std::path::Path| {
        let mut problems = ConfigProblems::default();
        let delegated = DelegatedAuthKeys {
            client_ca: Some(clients.clone()),
            front_proxy_ca: Some(front.to_owned()),
            ..DelegatedAuthKeys::default()
        };
        delegated.check(&mut problems);
        problems
    };
    assert!(checked(&proxies).is_empty(), "{}", checked(&proxies));
    assert!(checked(&clients).to_string().contains("every client could claim any identity"));
    std::fs::remove_dir_all(&folder).expect("removed");
}
