//! The files of the repository, as in a checkout.

use std::fs;
use std::path::{Path, PathBuf};

/// Generated entries. In a linked worktree `.git` is a file.
const MADE: [&str; 4] = ["target", ".git", "node_modules", "__pycache__"];

/// A file and its text.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the repository, with slashes.
    pub(crate) name: String,
    pub(crate) text: String,
}

impl File {
    /// Whether it is part of a crate's sources, including unit tests.
    pub(crate) fn is_source(&self) -> bool {
        self.module().is_some()
    }

    /// The crate's folder and the path below its `src`: `("", "serve/route.rs")`, `("crates/demo", "store.rs")`.
    pub(crate) fn module(&self) -> Option<(&str, &str)> {
        if let Some(path) = self.name.strip_prefix("src/") {
            return Some(("", path));
        }
        let (folder, path) = self.name.split_once("/src/")?;
        folder.starts_with("crates/").then_some((folder, path))
    }
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every text file, ordered by name.
pub(crate) fn all() -> Vec<File> {
    let mut names = Vec::new();
    collect(&root(), &mut names);
    names.sort();
    names.into_iter().filter_map(|path| read(&path)).collect()
}

/// All Rust sources: the crates, their tests and benches.
pub(crate) fn rust() -> Vec<File> {
    of_kind("rs")
}

/// Every file with this extension.
pub(crate) fn of_kind(kind: &str) -> Vec<File> {
    all().into_iter().filter(|file| Path::new(&file.name).extension().is_some_and(|of| of == kind)).collect()
}

/// Text of one file, which must exist.
pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the checkout is readable").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if MADE.iter().any(|made| name == *made) {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Returns `None` if the file is not text.
fn read(path: &Path) -> Option<File> {
    let name = path.strip_prefix(root()).ok()?.to_str()?.to_owned();
    Some(File { name, text: fs::read_to_string(path).ok()? })
}
