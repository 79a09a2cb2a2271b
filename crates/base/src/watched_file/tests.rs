use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;

use super::*;

/// A temporary directory that is removed on drop.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("kube-fanout-reloaded-{}", fastrand::u64(..)));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The sum of the numbers in the files; each number ends with a full stop, so that half of a file is invalid.
fn sum(contents: &[Vec<u8>]) -> Result<u32, String> {
    let number = |bytes: &Vec<u8>| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let whole = text.strip_suffix('.').ok_or_else(|| format!("{text:?} is not whole"))?;
        whole.parse::<u32>().map_err(|error| error.to_string())
    };
    contents.iter().map(number).sum()
}

fn load(files: Vec<PathBuf>) -> WatchedFile<u32> {
    WatchedFile::load("numbers", files, sum).expect("they are good")
}

#[test]
fn unusable_file_at_startup_returns_an_error() {
    let dir = Dir::new();
    let (good, half, missing) = (dir.file("good", "1."), dir.file("half", "1"), dir.0.join("missing"));
    let error = |files| WatchedFile::load("numbers", files, sum).expect_err("not usable").to_string();
    assert!(error(vec![good.clone(), missing]).contains("missing: "));
    assert_eq!(error(vec![good, half]), "\"1\" is not whole");
}

/// A value that a program returned may have ended although the file that names the program is the same.
#[tokio::test]
async fn expired_value_is_loaded_again_from_unchanged_files() {
    let dir = Dir::new();
    let mut sum = load(vec![dir.file("one", "1.")]);
    sum.expire();
    assert!(!sum.value.has_changed().unwrap(), "only a check loads it");
    for is_loaded in [true, false] {
        sum.check_now().await;
        assert_eq!(sum.value.has_changed().unwrap(), is_loaded);
        sum.value.mark_unchanged();
    }
}

/// As long as it cannot be loaded, that is reported, however often it expires.
#[tokio::test]
async fn expired_value_that_cannot_be_loaded_stays_failing() {
    let dir = Dir::new();
    let fails = Arc::new(AtomicBool::new(false));
    let program = fails.clone();
    let read = move |_: &[Vec<u8>]| if program.load(Ordering::Relaxed) { Err("refused") } else { Ok(()) };
    let value = WatchedFile::load("numbers", vec![dir.file("one", "1.")], read).expect("usable");
    fails.store(true, Ordering::Relaxed);
    for _ in 0..4 {
        value.expire();
        value.check_now().await;
        assert_eq!(value.last_error().as_deref(), Some("refused"));
    }
    fails.store(false, Ordering::Relaxed);
    value.check_now().await;
    assert_eq!(value.last_error(), None);
}

#[tokio::test]
async fn rewritten_file_is_reloaded() {
    let dir = Dir::new();
    let (one, two) = (dir.file("one", "1."), dir.file("two", "20."));
    let mut sum = load(vec![one, two]);
    sum.check_now().await;
    assert!(!sum.value.has_changed().unwrap(), "nothing did");
    dir.file("two", "40.");
    let snapshot = sum.current();
    sum.check_now().await;
    sum.changed().await;
    assert_eq!((*snapshot, *sum.current()), (21, 41), "a snapshot keeps the old value");
}

#[tokio::test]
async fn partial_file_keeps_the_last_good_value() {
    let dir = Dir::new();
    let sum = load(vec![dir.file("one", "1.")]);
    dir.file("one", "2");
    sum.check_now().await;
    assert_eq!((*sum.current(), sum.last_error().as_deref()), (1, Some("\"2\" is not whole")));
    dir.file("one", "23.");
    sum.check_now().await;
    assert_eq!((*sum.current(), sum.last_error()), (23, None));
}

#[tokio::test]
async fn restored_file_with_same_content_is_not_a_change() {
    let dir = Dir::new();
    let path = dir.file("one", "1.");
    let sum = load(vec![path.clone()]);
    std::fs::remove_file(&path).unwrap();
    sum.check_now().await;
    let last_error = sum.last_error().expect("it is not there");
    assert!(last_error.starts_with(&path.display().to_string()), "{last_error}");
    dir.file("one", "1.");
    sum.check_now().await;
    assert_eq!((sum.value.has_changed().unwrap(), sum.last_error()), (false, None));
}

#[tokio::test]
async fn replaced_symlink_is_followed_on_reload() {
    // As when mounted Secrets are updated: the files are links through a link that is replaced.
    let dir = Dir::new();
    for (version, text) in [("v1", "1."), ("v2", "2.")] {
        std::fs::create_dir(dir.0.join(version)).unwrap();
        dir.file(&format!("{version}/one"), text);
    }
    symlink("v1", dir.0.join("data")).unwrap();
    symlink("data/one", dir.0.join("one")).unwrap();
    let sum = load(vec![dir.0.join("one")]);
    symlink("v2", dir.0.join("data.new")).unwrap();
    std::fs::rename(dir.0.join("data.new"), dir.0.join("data")).unwrap();
    sum.check_now().await;
    assert_eq!(*sum.current(), 2);
}

#[tokio::test]
async fn directory_or_oversized_file_keeps_the_last_good_value() {
    let dir = Dir::new();
    let path = dir.file("one", "1.");
    let sum = load(vec![path.clone()]);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    sum.check_now().await;
    assert!(sum.last_error().is_some());
    std::fs::remove_dir(&path).unwrap();
    File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
    sum.check_now().await;
    assert!(sum.last_error().is_some_and(|why| why.contains("larger than")));
    assert_eq!(*sum.current(), 1);
}

#[tokio::test]
async fn files_listed_in_another_file_are_watched() {
    let dir = Dir::new();
    let (list, one, two) = (dir.0.join("list"), dir.file("one", "1."), dir.file("two", "2."));
    std::fs::write(&list, one.display().to_string()).unwrap();
    let named = move || vec![PathBuf::from(std::fs::read_to_string(&list).unwrap())];
    let sum = WatchedFile::load_listed("numbers", named, sum).expect("they are good");
    dir.file("list", &two.display().to_string());
    sum.check_now().await;
    assert_eq!(*sum.current(), 2);
    dir.file("two", "3.");
    sum.check_now().await;
    assert_eq!(*sum.current(), 3);
}

#[tokio::test]
async fn fixed_value_is_never_reloaded() {
    let fixed = WatchedFile::fixed(7);
    fixed.check_now().await;
    fixed.clone().watch(Duration::from_secs(1)).await;
    assert_eq!((*fixed.current(), fixed.last_error()), (7, None));
}

#[test]
fn set_updates_all_clones_but_not_earlier_snapshots() {
    let here = Reloadable::new(1);
    let (there, taken) = (here.clone(), here.get());
    assert_eq!(here.replaced(&taken).now_or_never(), None);
    there.set(2);
    assert_eq!((*taken, *here.get()), (1, 2));
    assert_eq!(here.replaced(&taken).now_or_never(), Some(()));
}
