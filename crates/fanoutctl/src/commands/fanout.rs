//! The `fanout` command, and `kubectl fanout`: inspects running proxies.

use std::io::IsTerminal as _;

use futures_util::future::LocalBoxFuture;

use crate::arguments::{AdminArguments, FanoutSubcommand, OutputFormat, ServerArguments, terminal_colours};
use crate::inspect::{
    ApiserverOptions, DiffOptions, ExplainOptions, InspectError, InspectReport, PodPortForward, ProxyPodSelector,
    ProxyTarget, TailOptions, TopOptions, TopOutput, diff, explain, forward, status, tail, top,
};

/// The output of a verb, and whether the exit code is 0.
pub struct CommandOutput {
    pub text: String,
    pub is_well: bool,
    /// The reasons that some proxies are not in the output.
    pub failures: Vec<String>,
}

/// Runs a `fanout` command and returns its output. `top` and `tail` print while they run.
///
/// # Errors
/// A message with the reason that there is no result.
#[inline(never)]
pub fn run(verb: FanoutSubcommand) -> LocalBoxFuture<'static, Result<CommandOutput, String>> {
    Box::pin(async move { run_verb(verb).await })
}

async fn run_verb(verb: FanoutSubcommand) -> Result<CommandOutput, String> {
    let wrong = |error: InspectError| error.to_string();
    match verb {
        FanoutSubcommand::State { admin, output } => {
            let (proxies, _held, failures) = proxies(&admin).await?;
            Ok(output_of(status(&proxies).await, output).with(failures))
        }
        FanoutSubcommand::Top { admin, every, times } => {
            let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
            let form = match terminal_colours() {
                Some(has_colours) if is_terminal && times.is_none() => TopOutput::Screen { has_colours },
                _ => TopOutput::Text,
            };
            let order = TopOptions { every, times, form };
            let (proxies, _held, failures) = proxies(&admin).await?;
            if !proxies.is_empty() {
                top(&proxies, &order).await.map_err(wrong)?;
            }
            Ok(CommandOutput { text: String::new(), is_well: true, failures })
        }
        FanoutSubcommand::Explain { admin, user, agent, resource, limit, output } => {
            let order = ExplainOptions { user, agent, resource, limit };
            let (proxies, _held, failures) = proxies(&admin).await?;
            Ok(output_of(explain(&proxies, &order).await, output).with(failures))
        }
        FanoutSubcommand::Diff { resource, namespace, upstream, server, output } => {
            let (proxy, upstream) = (reach(&server, Some(server.proxy.clone()))?, reach(&server, upstream)?);
            let order = DiffOptions { resource, namespace, proxy, upstream };
            Ok(output_of(diff(&order).await.map_err(wrong)?, output))
        }
        FanoutSubcommand::Tail { resource, namespace, selector, field_selector, from, seconds, server, output } => {
            let proxy = reach(&server, Some(server.proxy.clone()))?;
            let json = output == OutputFormat::Json;
            let (labels, fields) = (selector, field_selector);
            tail(&TailOptions { resource, namespace, labels, fields, from, seconds, proxy, json })
                .await
                .map_err(wrong)?;
            Ok(CommandOutput { text: String::new(), is_well: true, failures: Vec::new() })
        }
    }
}

fn output_of(findings: InspectReport, output: OutputFormat) -> CommandOutput {
    let InspectReport { text, json, is_well, failures } = findings;
    let text = if output == OutputFormat::Json { format!("{json:#}\n") } else { text };
    CommandOutput { text, is_well, failures: failures.iter().map(ToString::to_string).collect() }
}

impl CommandOutput {
    /// Adds the proxies that no port could be forwarded to.
    fn with(mut self, failures: Vec<String>) -> Self {
        self.failures.extend(failures);
        self
    }
}

/// The proxies to inspect, what holds their port-forwards open, and why others cannot be reached.
type ReachedProxies = (Vec<ProxyTarget>, Vec<PodPortForward>, Vec<String>);

async fn proxies(admin: &AdminArguments) -> Result<ReachedProxies, String> {
    let read = |path: &std::path::PathBuf| {
        let token = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<_, String>(token.trim().to_owned())
    };
    let token = admin.token_file.as_ref().map(read).transpose()?;
    if let Some(selector) = admin.pods.clone() {
        let (namespace, node, context) = (admin.namespace.clone(), admin.node.clone(), admin.context.clone());
        let order = ProxyPodSelector { selector, namespace, node, context, port: admin.pod_port, token };
        let (mut targets, mut forwards, mut failures) = ReachedProxies::default();
        for reached in forward(&order).await.map_err(|error| error.to_string())? {
            match reached {
                Ok((target, forward)) => {
                    targets.push(target);
                    forwards.push(forward);
                }
                Err(error) => failures.push(error.to_string()),
            }
        }
        return Ok((targets, forwards, failures));
    }
    let places = admin.places()?;
    if let Some((name, _)) = places.iter().find(|(_, place)| token.is_some() && !place.is_local()) {
        return Err(format!(
            "{name}: --token-file would be sent without TLS; use a port-forward, --pods or a unix socket"
        ));
    }
    let target = |(name, place)| ProxyTarget { name, place, token: token.clone() };
    Ok((places.into_iter().map(target).collect(), Vec::new(), Vec::new()))
}

fn reach(server: &ServerArguments, url: Option<String>) -> Result<ApiserverOptions, String> {
    Ok(ApiserverOptions {
        url,
        kubeconfig: server.kubeconfig()?,
        ca: server.ca.clone(),
        token_file: server.token_file.clone(),
        insecure: server.insecure_skip_tls_verify,
    })
}
