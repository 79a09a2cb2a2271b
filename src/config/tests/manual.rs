//! The manual pages that `clap_mangen` generates from `--help`.

use std::collections::HashMap;

use clap::{Command, CommandFactory as _};

use crate::config::CliArguments;

/// The pages by file name, with roff's escapes of dashes and apostrophes replaced.
fn pages() -> HashMap<String, String> {
    let folder = std::env::temp_dir().join(format!("kube-fanout-man-{}", fastrand::u64(..)));
    std::fs::create_dir_all(&folder).expect("a folder");
    clap_mangen::generate_to(CliArguments::command(), &folder).expect("they are written");
    let page = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("readable").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let text = text.replace("\\-", "-").replace("\\*(Aq", "'").replace("\\*[Aq]", "'");
        (path.file_name().expect("a file").to_string_lossy().into_owned(), text)
    };
    let pages = std::fs::read_dir(&folder).expect("readable").map(page).collect();
    std::fs::remove_dir_all(&folder).expect("removed");
    pages
}

/// A command and its subcommands that `--help` lists.
fn visible(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    std::iter::once(command).chain(below.flat_map(visible)).collect()
}

#[test]
fn each_command_has_manual_page_with_all_flags() {
    let mut pages = pages();
    let mut root = CliArguments::command().disable_help_subcommand(true);
    root.build();
    for command in visible(&root) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let page = pages.remove(&format!("{name}.1")).unwrap_or_else(|| panic!("{name} has no page"));
        assert!(page.contains(&format!("\n.TH {name} 1 ")), "{name}: {page}");
        assert!(page.contains(&command.get_about().expect("it says what it does").to_string()), "{name}");
        for argument in command.get_arguments() {
            let flags = [
                argument.get_long().map(|long| format!("--{long}")),
                argument.get_short().map(|short| format!("-{short}")),
            ];
            for flag in flags.into_iter().flatten() {
                assert!(page.contains(&format!("\\fB{flag}\\fR")), "{name}: {flag} is not named: {page}");
            }
        }
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            assert!(page.contains(&format!("{name}-{}", below.get_name())), "{name}: {below} is not named");
        }
    }
    assert!(pages.is_empty(), "pages of no command: {:?}", pages.keys());
}

/// A line that begins with spaces is not joined with the line before it.
#[test]
fn manual_has_indented_examples_and_exit_codes() {
    let pages = pages();
    let page = &pages["kube-fanout-serve.1"];
    let (_, after) = page.split_once(".SH EXTRA\nExamples:\n").expect("examples");
    assert!(after.contains("\n    kube-fanout serve --kubeconfig ~/.kube/config "), "{after}");
    assert!(after.contains("\nExit codes: 0 stopped by SIGTERM"), "{after}");
    assert!(pages["kube-fanout-check.1"].contains("\n`check` takes the flags of `serve`"));
}

#[test]
fn manual_names_environment_variable_without_its_value() {
    let page = &pages()["kube-fanout-serve.1"];
    assert!(page.contains("\\fBKUBECONFIG\\fR environment variable"), "{page}");
}
