//! The `estimate` command: estimates from an audit log how much load a proxy would remove.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::arguments::EstimateArguments;
use crate::estimate::{AgentLoadRow, EstimateOptions, LoadEstimate, estimate};
use crate::inspect::printable;

/// Reads the log and formats the estimate.
///
/// # Errors
/// If the log cannot be read, or has no completed request.
pub fn run(arguments: &EstimateArguments) -> Result<String, String> {
    let order = EstimateOptions {
        proxies: arguments.proxies.max(1),
        sensitive: arguments.cache_sensitive.iter().cloned().collect(),
    };
    let path = &arguments.audit_log;
    let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
    let log: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        Box::new(BufReader::with_capacity(1 << 20, File::open(path).map_err(wrong)?))
    };
    let found = estimate(log, &order).map_err(wrong)?;
    if found.requests == 0 {
        let why =
            "no completed request found (expected audit.k8s.io/v1 events of stage ResponseComplete as JSON lines)";
        return Err(format!("{}: {why}; {} lines cannot be parsed", path.display(), found.unreadable_lines));
    }
    if arguments.json {
        let json = serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?;
        return Ok(json + "\n");
    }
    Ok(text(&found, arguments))
}

fn write_row(text: &mut String, AgentLoadRow { agent, resource, lists, watches, gets, rest }: &AgentLoadRow) {
    // Clients choose their user agents.
    let cut = |text: &str, to: usize| printable(text).chars().take(to).collect::<String>();
    let (agent, resource) = (cut(agent, 40), cut(resource, 36));
    let _ = writeln!(text, "{agent:<40} {resource:<36} {lists:>9} {watches:>9} {gets:>9} {rest:>9}");
}

fn text(found: &LoadEstimate, arguments: &EstimateArguments) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} requests in {:.0} s ({:.2}/s), {} of them watches, {:.1} open on average",
        found.requests, found.seconds, found.requests_per_second_before, found.watches, found.watches_open
    );
    let _ = writeln!(
        text,
        "{:<40} {:<36} {:>9} {:>9} {:>9} {:>9}",
        "USER AGENT", "RESOURCE", "LISTS", "WATCHES", "GETS", "OTHER"
    );
    for row in found.rows.iter().take(arguments.rows) {
        write_row(&mut text, row);
    }
    let left = found.rows.len().saturating_sub(arguments.rows);
    if left > 0 {
        let _ = writeln!(text, "({left} more rows; use --rows or --json)");
    }
    write_row(&mut text, &found.total);
    if found.of_apiserver > 0 {
        let _ = writeln!(text, "ignored: {} requests of the apiserver to itself", found.of_apiserver);
    }
    let part = 100.0 * found.from_memory as f64 / found.requests as f64;
    let _ = writeln!(text, "served from the cache: {} of {} requests, {part:.1} %", found.from_memory, found.requests);
    let _ = writeln!(
        text,
        "upstream, before: {:.2} requests/s, {:.1} open watches\n\
         upstream, after:  {:.2} requests/s, including at most {} requests in total by the prox{}; {} open watches",
        found.requests_per_second_before,
        found.watches_open,
        found.requests_per_second_after,
        found.proxy_requests,
        if arguments.proxies > 1 { "ies" } else { "y" },
        found.streams
    );
    let (asked, compared) = (found.reviews_asked, found.reviews_compared);
    let _ = writeln!(
        text,
        "reviews with auth: delegated: at most {:.2} TokenReviews/s and {:.2} SubjectAccessReviews/s; {:.3} and {:.3} with \
         identify: local and decide: rbac",
        asked.tokens, asked.accesses, compared.tokens, compared.accesses
    );
    if found.unreadable_lines > 0 {
        let _ = writeln!(text, "{} lines cannot be parsed", found.unreadable_lines);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_user_agent_does_not_control_the_terminal() {
        let row = AgentLoadRow { agent: "a\u{9b}2J\u{202e}b".to_owned(), ..AgentLoadRow::default() };
        let mut text = String::new();
        write_row(&mut text, &row);
        assert!(text.starts_with("a\u{fffd}2J\u{fffd}b "), "{text:?}");
    }
}
