//! Selection of the kubeconfig.

use std::path::{Path, PathBuf};

use crate::upstream::CredentialSource;

/// The path of kubectl's default kubeconfig, relative to the home directory.
const USER_KUBECONFIG: &str = ".kube/config";

/// Returns the file that a value of `--kubeconfig` or `KUBECONFIG` names; `None` if the value is empty.
///
/// # Errors
/// The value is a list, as kubectl accepts it, and not exactly one of its files exists.
pub fn one_kubeconfig(named: PathBuf) -> Result<Option<PathBuf>, String> {
    if named.as_os_str().is_empty() {
        return Ok(None);
    }
    let Some(list) = named.to_str().filter(|text| text.contains(':') && !named.exists()) else {
        return Ok(Some(named));
    };
    // Like kubectl, ignores files that do not exist.
    let found: Vec<_> = list.split(':').filter(|path| !path.is_empty() && Path::new(path).exists()).collect();
    match found.as_slice() {
        [only] => Ok(Some(PathBuf::from(only))),
        [] => Err(format!("none of these files exists: {list}")),
        _ => Err(format!(
            "only one kubeconfig is supported, and {list} names {}; merge them: KUBECONFIG={list} kubectl config \
             view --flatten --minify > FILE",
            found.len()
        )),
    }
}

/// Returns the credentials to use without a kubeconfig: the pod's, or the user's outside of a cluster.
#[allow(clippy::disallowed_methods, reason = "where a process runs is no setting")]
pub(super) fn default_source() -> CredentialSource {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    source_of(std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(), home.as_deref())
}

fn source_of(is_in_cluster: bool, home: Option<&Path>) -> CredentialSource {
    let user_file = home.map(|home| home.join(USER_KUBECONFIG)).filter(|path| !is_in_cluster && path.is_file());
    user_file.map_or(CredentialSource::InCluster, CredentialSource::File)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_kubeconfig_files_are_refused_with_merge_command() {
        let folder = std::env::temp_dir().join(format!("kube-fanout-kubeconfig-{}", fastrand::u64(..)));
        std::fs::create_dir_all(folder.join(".kube")).expect("a folder");
        let path = |name: &str| folder.join(name).display().to_string();
        let [a, b, gone, user] = ["a", "b", "gone", USER_KUBECONFIG].map(path);
        for file in [&a, &b, &user] {
            std::fs::write(file, "").expect("a file");
        }
        let read = |text: String| one_kubeconfig(text.into());
        assert_eq!(read(String::new()), Ok(None));
        assert_eq!(read(gone.clone()), Ok(Some(PathBuf::from(&gone))), "a single file is refused where it is read");
        for list in [format!("{a}:{gone}"), format!("{gone}:{a}"), format!(":{a}:")] {
            assert_eq!(read(list), Ok(Some(PathBuf::from(&a))));
        }
        let several = read(format!("{a}:{b}")).expect_err("two files");
        assert!(several.contains(&format!("KUBECONFIG={a}:{b} kubectl config view --flatten")), "{several}");
        assert!(read(format!("{gone}:{gone}")).is_err());
        // A process in a cluster has a service account there.
        assert_eq!(source_of(true, Some(&folder)), CredentialSource::InCluster);
        assert_eq!(source_of(false, None), CredentialSource::InCluster);
        assert_eq!(source_of(false, Some(Path::new(&gone))), CredentialSource::InCluster);
        assert_eq!(source_of(false, Some(&folder)), CredentialSource::File(user.into()));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
