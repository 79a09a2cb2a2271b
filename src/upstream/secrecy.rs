//! Error messages about unavailable credentials. Libraries quote the input that they could not parse, which here are
//! credentials: a plugin's output, its environment, a line of a kubeconfig. The proxy's messages include none of that.

use std::error::Error;
use std::io;

use kube_client::client::AuthError;
use kube_client::config::KubeconfigError;

use super::error::causes;

const UNKNOWN: &str = "the configured credentials cannot be used";
/// The exit code of shells and [`CredentialPluginRunner`](super::CredentialPluginRunner)s if the program cannot be
/// executed.
const CANNOT_RUN: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Returns the reason that credentials are unavailable, as text for operators.
pub(super) fn describe(error: &(dyn Error + 'static)) -> String {
    let reason = |cause: &(dyn Error + 'static)| {
        let auth = cause.downcast_ref().map(describe_auth);
        auth.or_else(|| cause.downcast_ref().map(describe_kubeconfig))
    };
    causes(error).find_map(reason).unwrap_or_else(|| UNKNOWN.to_owned())
}

fn describe_auth(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecRun { out, .. } if matches!(out.status.code(), Some(CANNOT_RUN | NOT_FOUND)) => {
            format!("the exec plugin cannot be run or reported that ({})", out.status)
        }
        AuthError::AuthExecRun { out, .. } => {
            let (stdout, stderr) = (out.stdout.len(), out.stderr.len());
            format!(
                "the exec plugin failed with {} (its output, {stdout} and {stderr} bytes, may contain a credential and \
                 is not shown)",
                out.status
            )
        }
        AuthError::AuthExecStart(error) => format!("the exec plugin cannot be run: {}", os_error(error)),
        AuthError::AuthExecParse(_) => "the exec plugin printed no ExecCredential".to_owned(),
        AuthError::ExecPluginFailed => "the exec plugin printed an ExecCredential without a status".to_owned(),
        AuthError::AuthExecSerialize(_) | AuthError::AuthExec(_) => "the exec plugin failed".to_owned(),
        AuthError::MissingCommand => "the exec plugin has no command".to_owned(),
        AuthError::MalformedTokenExpirationDate(_) => {
            "the credential's expirationTimestamp is not an RFC 3339 time".to_owned()
        }
        AuthError::InvalidBasicAuth(_) | AuthError::InvalidBearerToken(_) => {
            "the credential contains characters that are not allowed in a header".to_owned()
        }
        AuthError::ReadTokenFile(error, path) => {
            format!("cannot read token file {}: {}", path.display(), os_error(error))
        }
        AuthError::UnrefreshableTokenResponse | AuthError::ExecMissingClusterInfo => error.to_string(),
        _ => UNKNOWN.to_owned(),
    }
}

/// Returns the text of an error of the system; other errors may quote a credential.
fn os_error(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.kind().to_string(), |code| io::Error::from_raw_os_error(code).to_string())
}

fn describe_kubeconfig(error: &KubeconfigError) -> String {
    match error {
        // The error quotes the lines around the problem.
        KubeconfigError::Parse(_) => "not a kubeconfig in YAML".to_owned(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{ExitStatus, Output};

    use super::*;

    const CANARY: &str = "CANARY-6f1d";

    #[test]
    fn exec_plugin_output_is_never_in_errors() {
        let run = |code: i32| {
            let (status, output) = (ExitStatus::from_raw(code << 8), CANARY.as_bytes().to_vec());
            let out = Box::new(Output { status, stdout: output.clone(), stderr: output });
            AuthError::AuthExecRun { cmd: format!("TOKEN={CANARY} plugin"), out }
        };
        assert!(run(1).to_string().contains(CANARY), "this is what it is about");
        for (error, expected) in [
            (run(1), "failed with exit status: 1"),
            (run(126), "cannot be run or reported that (exit status: 126)"),
            (run(127), "cannot be run or reported that (exit status: 127)"),
            (AuthError::AuthExec(CANARY.to_owned()), "the exec plugin failed"),
            (AuthError::AuthExecStart(std::io::Error::other(CANARY)), "cannot be run"),
            (
                AuthError::AuthExecStart(std::io::Error::from_raw_os_error(2)),
                "cannot be run: No such file or directory",
            ),
            (AuthError::ReadTokenFile(std::io::Error::other(CANARY), "/run/token".into()), "/run/token"),
        ] {
            let boxed: Box<dyn Error + Send + Sync> = Box::new(kube_client::Error::Auth(error));
            let text = describe(&*boxed);
            assert!(text.contains(expected) && !text.contains(CANARY), "{text}");
        }
        let unknown = describe(&std::io::Error::other(CANARY));
        assert!(!unknown.contains(CANARY), "{unknown}");
    }

    #[test]
    fn kubeconfig_content_is_never_in_errors() {
        let broken = format!("users:\n- name: u\n  user: {{token: {CANARY}, :\n");
        let error = kube_client::config::Kubeconfig::from_yaml(&broken).expect_err("it is broken");
        let text = describe(&error);
        assert!(text.contains("not a kubeconfig") && !text.contains(CANARY), "{text}");
    }
}
