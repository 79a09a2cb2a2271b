//! The files of the repository, as a checkout contains them.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that are made, not written.
const MADE: [&str; 4] = ["target", ".git", "node_modules", "__pycache__"];

/// A file and its text.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the repository, with slashes.
    pub(crate) name: String,
    pub(crate) text: String,
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every text file, in the order of the names.
pub(crate) fn all() -> Vec<File> {
    let mut names = Vec::new();
    collect(&root(), &mut names);
    names.sort();
    names.into_iter().filter_map(|path| read(&path)).collect()
}

/// Our Rust sources: the crate, its tests, its benches.
pub(crate) fn rust() -> Vec<File> {
    of_kind("rs")
}

/// Every file whose name ends so.
pub(crate) fn of_kind(kind: &str) -> Vec<File> {
    all().into_iter().filter(|file| Path::new(&file.name).extension().is_some_and(|of| of == kind)).collect()
}

/// The text of one file, which must be there.
pub(crate) fn text(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the checkout is readable").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && !MADE.iter().any(|made| name == *made) {
            collect(&path, found);
        } else if !is_folder {
            found.push(path);
        }
    }
}

/// `None` for what is not text.
fn read(path: &Path) -> Option<File> {
    let name = path.strip_prefix(root()).ok()?.to_str()?.to_owned();
    Some(File { name, text: fs::read_to_string(path).ok()? })
}
