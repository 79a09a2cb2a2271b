use std::sync::OnceLock;

use kube_client::config::{ExecConfig, Kubeconfig};

/// A command that runs another command, which follows its own arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialPluginRunner {
    pub program: String,
    pub arguments: Vec<String>,
}

static RUNNER: OnceLock<CredentialPluginRunner> = OnceLock::new();

/// Runs all exec plugins through this command. Child processes inherit the limits of this process; the command restores
/// the limits that the process was started with (R-HOST-2).
pub fn run_plugins_by(runner: CredentialPluginRunner) {
    // The original limits are determined once, so a second call is ignored.
    let _ = RUNNER.set(runner);
}

/// Changes the plugins of a kubeconfig to run through the runner.
pub(super) fn set_runner(kubeconfig: &mut Kubeconfig) {
    let Some(runner) = RUNNER.get() else { return };
    let users = kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut());
    users.filter_map(|user| user.exec.as_mut()).for_each(|plugin| runner.wrap(plugin));
}

impl CredentialPluginRunner {
    fn wrap(&self, plugin: &mut ExecConfig) {
        // A plugin without a command is refused when it is run.
        let Some(command) = plugin.command.take() else { return };
        let own = plugin.args.take().unwrap_or_default();
        plugin.command = Some(self.program.clone());
        plugin.args = Some(self.arguments.iter().cloned().chain([command]).chain(own).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_command_and_arguments_follow_runner_arguments() {
        let runner =
            CredentialPluginRunner { program: "runner".to_owned(), arguments: vec!["run".to_owned(), "--".to_owned()] };
        for (plugin, expected) in [
            ("{command: aws}", Some("runner run -- aws")),
            ("{command: aws, args: [eks, --, get-token]}", Some("runner run -- aws eks -- get-token")),
            ("{args: [eks]}", None),
        ] {
            let user = format!("users:\n- name: u\n  user:\n    exec: {plugin}\n");
            let mut kubeconfig = Kubeconfig::from_yaml(&user).expect("a kubeconfig");
            let user = kubeconfig.auth_infos[0].auth_info.as_mut().expect("it is there");
            let plugin = user.exec.as_mut().expect("a plugin");
            runner.wrap(plugin);
            let command = plugin.command.take().into_iter();
            let arguments: Vec<_> = command.chain(plugin.args.take().unwrap_or_default()).collect();
            match expected {
                Some(expected) => assert_eq!(arguments.join(" "), expected),
                None => assert_eq!(arguments, ["eks"], "there is nothing to run"),
            }
        }
    }
}
