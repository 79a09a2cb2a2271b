//! Command and configuration blocks of the documents, run as a reader runs them. Tests on a real control plane also use
//! this.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The blocks of a document that this test runs, in order. An HTML comment after each block names its test
/// (tests/tidy/blocks.rs).
pub fn blocks<const N: usize>(document: &str, test: &str) -> [String; N] {
    let text = fs::read_to_string(repository().join(document)).expect("the document is there");
    let mut found = Vec::new();
    // Text outside and inside of blocks alternates.
    let parts: Vec<_> = text.split("\n```").collect();
    for pair in parts[1..].chunks(2) {
        let [block, behind] = pair else { break };
        let claim = first_sentence(behind);
        if claim.starts_with("Run by `tests/") && claim.contains(&format!("::{test}`")) {
            let (_, commands) = block.split_once('\n').expect("the first line is the kind of block");
            found.push(commands.to_owned());
        }
    }
    let count = found.len();
    found.try_into().unwrap_or_else(|_| panic!("{count} blocks of {document} are run by {test}"))
}

/// The first sentence of the HTML comment after a block. A dot in a file name does not end it.
fn first_sentence(after: &str) -> &str {
    let Some(behind) = after.trim_start().strip_prefix("<!-- ") else { return "" };
    let ends = [" -->", "\n\n", ". ", ".\n", "; ", ";\n"].into_iter().filter_map(|end| behind.find(end));
    &behind[..ends.min().unwrap_or(behind.len())]
}

/// The block with replacements for names, addresses and paths that the test machine lacks. Each replaced text must
/// occur in the block.
pub fn with(block: &str, table: &[(&str, &str)]) -> String {
    table.iter().fold(block.to_owned(), |block, (documented, actual)| {
        assert!(block.contains(documented), "{documented:?} is not in\n{block}");
        block.replace(documented, actual)
    })
}

pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns whether this machine has the programs that documents name. If one is missing, prints to stderr that the test
/// is skipped (tests/run.sh installs those that every machine can have).
pub fn has(programs: &[&str]) -> bool {
    let there = |program: &&&str| Command::new("sh").args(["-c", "command -v \"$0\" >&2", program]).output();
    let missing = programs.iter().find(|program| !there(program).is_ok_and(|output| output.status.success()));
    missing.inspect(|program| skipped(&format!("there is no {program} on this machine"))).is_none()
}

/// Prints to stderr that a test is skipped, and why. The line is visible even if the test passes.
pub fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(std::io::stderr().lock(), "{test}: SKIPPED: {why}");
}

/// A reader's shell, with a folder of its own that is also its home directory.
pub struct Shell {
    pub home: PathBuf,
    variables: Vec<(String, String)>,
}

impl Shell {
    /// Creates the folder and a shell in it.
    pub fn new(home: PathBuf) -> Self {
        fs::create_dir_all(home.join("bin")).expect("a folder");
        Self { home, variables: Vec::new() }
    }

    /// A shell with the binaries under test in its `PATH` and the folders of a checkout in its working directory.
    pub fn in_checkout(home: PathBuf) -> Self {
        let shell = Self::new(home);
        let daemon = Path::new(env!("CARGO_BIN_EXE_kube-fanout"));
        shell.link("bin/kube-fanout", daemon);
        shell.link("bin/fanoutctl", &daemon.with_file_name("fanoutctl"));
        for folder in ["deploy", "config"] {
            shell.link(folder, &repository().join(folder));
        }
        shell
    }

    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        path
    }

    pub fn link(&self, name: &str, to: &Path) {
        symlink(to, self.home.join(name)).expect("a link");
    }

    /// Adds a shell script to the `PATH` as a program.
    pub fn program(&self, name: &str, script: &str) {
        let path = self.file(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    /// A process that runs commands and stops at the first failure.
    pub fn command(&self, commands: &str) -> Command {
        let path = format!("{}:{}", self.home.join("bin").display(), std::env::var("PATH").expect("a path"));
        let mut command = Command::new("sh");
        command.args(["-eu", "-c", commands]).current_dir(&self.home).stdin(Stdio::null());
        for name in ["KUBE_FANOUT_CONFIG", "KUBERNETES_SERVICE_HOST", "NODE_NAME", "RUST_LOG"] {
            command.env_remove(name);
        }
        command.env("PATH", path).env("HOME", &self.home).env("KUBECONFIG", self.home.join(".kube/config"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn output(&self, commands: &str) -> Output {
        self.command(commands).output().expect("a shell")
    }

    /// Output of commands, all of which must succeed.
    pub fn run(&self, commands: &str) -> String {
        let output = self.output(commands);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{commands}\n{stdout}\n{errors}");
        stdout
    }
}

/// The commands of a block one by one, with continuation lines joined.
pub fn commands(block: &str) -> Vec<String> {
    block.replace("\\\n", " ").lines().map(str::to_owned).collect()
}
