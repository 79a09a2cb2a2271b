//! The commands of docs/GUIDES.md, word for word.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::bed::{self, Plan, Plane, Proxy};

/// The blocks of commands in a section of the guides, in their order.
fn blocks(section: &str) -> Vec<String> {
    let text = fs::read_to_string(bed::repository().join("docs/GUIDES.md")).expect("the file is there");
    let (_, section) = text.split_once(&format!("\n## {section}\n")).expect("the section is there");
    let section = section.split("\n## ").next().expect("it is text");
    let inside = section.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```"));
    inside.map(|(commands, _)| commands.to_owned()).collect()
}

/// Runs commands as a person would, with the test bed's kubectl; what they print.
fn run(commands: &str, plane: &Plane, proxy: &Proxy, home: &Path) -> String {
    let target = proxy.target();
    let path = format!("{}:{}", home.display(), std::env::var("PATH").expect("a path"));
    let output = Command::new("sh")
        .args(["-eu", "-c", commands])
        .current_dir(home)
        .env("PATH", path)
        .env("HOME", home)
        .env("KUBECONFIG", home.join("config"))
        .env("PROXY", &target.url)
        .env("CA", target.ca.unwrap_or_else(|| plane.ca()))
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{commands}\n{said}");
    String::from_utf8(output.stdout).expect("text")
}

/// Requests that the proxy has answered.
async fn answered(proxy: &Proxy) -> i64 {
    let metrics = proxy.metrics().await;
    metrics.sum("kube_fanout_served_total", &[]) + metrics.sum("kube_fanout_forwarded_total", &[])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_for_kubectl_lead_through_the_proxy_and_back() {
    let Some(bed) = bed::alone().await else { return };
    let proxy = Plan::delegated(&bed).start(&bed).await;
    let home = bed.file("guides");
    fs::create_dir_all(&home).expect("a folder");
    fs::copy(bed.kubeconfig(), home.join("config")).expect("a kubeconfig");
    let shim = home.join("kubectl");
    fs::write(&shim, format!("#!/bin/sh\nexec '{}' kubectl \"$@\"\n", bed.binary.display())).expect("a file");
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let [there, back] = blocks("kubectl").try_into().expect("two blocks");
    let before = answered(&proxy).await;
    let said = run(&there, &bed, &proxy, &home);
    assert!(said.contains("\"kind\":\"PodList\""), "{said}");
    let through = answered(&proxy).await;
    assert!(through >= before + 2, "{before} requests, and {through} behind the commands");
    let said = run(&back, &bed, &proxy, &home);
    assert!(said.contains("\"kind\":\"PodList\""), "{said}");
    assert_eq!(answered(&proxy).await, through, "the last one goes to the apiserver");
    proxy.assert_sound();
}
