//! Manual pages, one per command, generated from `--help`.

use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// A manual page in roff.
#[derive(Debug)]
pub struct ManPage {
    /// The file name of a manual page, such as `kube-fanout-serve.1`.
    pub file: String,
    pub text: Vec<u8>,
}

/// Returns the pages of a program and its commands, the program's first. Hidden commands have no page.
///
/// # Errors
/// None is expected, because the pages are written to memory.
pub fn manual_pages(program: Command) -> io::Result<Vec<ManPage>> {
    let mut root = without_help(program);
    root.build();
    let mut pages = Vec::new();
    for command in visible(&root) {
        let man = Man::new(command.clone());
        pages.push(ManPage { file: man.get_filename(), text: text(&man, command)? });
    }
    Ok(pages)
}

/// Writes all pages to a directory, and creates it if necessary.
///
/// # Errors
/// The directory or a file cannot be written.
pub fn write_manual(program: Command, dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    manual_pages(program)?.into_iter().try_for_each(|page| std::fs::write(dir.join(page.file), page.text))
}

/// Removes the command `help`, which clap adds to each command that has subcommands.
fn without_help(program: Command) -> Command {
    program.disable_help_subcommand(true)
}

/// Returns a command and its subcommands that `--help` lists.
fn visible(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    std::iter::once(command).chain(below.flat_map(visible)).collect()
}

fn text(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    // Without a date, so that the same version generates the same pages. clap_mangen would omit the empty field, and
    // the next word would take its place.
    let title = format!(".TH {name} 1 \"\" \"kube-fanout {}\" \"kube-fanout manual\"\n", env!("CARGO_PKG_VERSION"));
    let mut text = title.into_bytes();
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(after) = command.get_after_help() {
        examples(&after.to_string()).to_writer(&mut text)?;
    }
    Ok(text)
}

/// Returns the end of `--help` as sections of a manual page. `clap_mangen` would fill the text and join the lines of an
/// example.
fn examples(after: &str) -> Roff {
    let mut roff = Roff::new();
    let mut has_notes = false;
    for paragraph in after.split("\n\n") {
        if let Some(lines) = paragraph.strip_prefix("Examples:\n") {
            roff.control("SH", ["EXAMPLES"]).control("nf", []);
            for line in lines.lines() {
                roff.text([roman(line)]);
            }
            roff.control("fi", []);
        } else if let Some(codes) = paragraph.strip_prefix("Exit codes: ") {
            roff.control("SH", ["EXIT STATUS"]).text([roman(codes.replace('\n', " "))]);
        } else {
            if std::mem::replace(&mut has_notes, true) {
                roff.control("PP", []);
            } else {
                roff.control("SH", ["NOTES"]);
            }
            roff.text([roman(paragraph.replace('\n', " "))]);
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use clap::CommandFactory as _;

    use super::*;
    use crate::config::CliArguments;

    /// The pages by file name, with roff's escapes of dashes and apostrophes replaced.
    fn pages() -> HashMap<String, String> {
        let read = |text: Vec<u8>| {
            String::from_utf8(text).expect("text").replace("\\-", "-").replace("\\*(Aq", "'").replace("\\*[Aq]", "'")
        };
        manual_pages(CliArguments::command())
            .expect("they are written")
            .into_iter()
            .map(|page| (page.file, read(page.text)))
            .collect()
    }

    #[test]
    fn each_command_has_manual_page_with_all_flags() {
        let mut pages = pages();
        let mut root = without_help(CliArguments::command());
        root.build();
        for command in visible(&root) {
            let name = command.get_display_name().unwrap_or(command.get_name());
            let page = pages.remove(&format!("{name}.1")).unwrap_or_else(|| panic!("{name} has no page"));
            assert!(page.starts_with(&format!(".TH {name} 1 \"\" \"kube-fanout ")), "{name}: {page}");
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

    #[test]
    fn manual_has_verbatim_examples_and_exit_status_section() {
        let pages = pages();
        let page = &pages["kube-fanout-serve.1"];
        let (_, examples) = page.split_once(".SH EXAMPLES\n.nf\n").expect("examples");
        let (examples, rest) = examples.split_once(".fi\n").expect("their end");
        assert!(examples.contains("\n    kube-fanout serve --kubeconfig ~/.kube/config "), "{examples}");
        assert!(rest.starts_with(".SH \"EXIT STATUS\"\n0 stopped by SIGTERM"), "{rest}");
        assert!(pages["kube-fanout-check.1"].contains(".SH NOTES\n`check` takes the flags of `serve`"));
        for (name, page) in &pages {
            assert!(!page.contains("Exit codes: "), "{name} has them in a section");
        }
    }

    #[test]
    fn manual_names_environment_variable_without_its_value() {
        let page = &pages()["kube-fanout-serve.1"];
        assert!(page.contains("\\fBKUBECONFIG\\fR environment variable"), "{page}");
    }
}
