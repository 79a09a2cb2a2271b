use std::io;
use std::path::Path;

use super::html::{escaped, put};
use super::record::GroundTruthSource;
use super::timeline_page::timeline;
use super::{GuaranteeVerdict, GuaranteeViolation, RunVerdict, VerifyOutcome};

const TEMPLATE: &str = include_str!("report.html");
/// The maximum number of violations of a guarantee in the report.
const VIOLATIONS_SHOWN_MAX: usize = 3;

/// Formats the verdict as one self-contained page with a timeline of the first violation. `record` is the record of the
/// run, `notes` are other problems.
///
/// # Errors
/// If the record cannot be read again.
pub fn page(verdict: &RunVerdict, record: &Path, notes: &[String]) -> io::Result<String> {
    let around = match verdict.first() {
        Some(first) => timeline(record, &first.lines, first.op)?,
        None => String::new(),
    };
    let notes = notes.iter().fold(String::new(), |mut out, note| {
        put(&mut out, format_args!("<p><b>Note.</b> {}</p>\n", escaped(note)));
        out
    });
    let notes = verdict.refused.iter().fold(notes, |mut out, refused| {
        put(&mut out, format_args!("<p><b>Not covered by a guarantee.</b> {}</p>\n", escaped(&refused.to_string())));
        out
    });
    let (word, class) = word(verdict);
    let counts = verdict.counts.named().map(|(name, count)| format!("{count} {name}"));
    let parts = [
        ("{{title}}", escaped(&format!("fanoutctl verify: {}", verdict.run.url))),
        ("{{about}}", escaped(&about(verdict))),
        ("{{counts}}", escaped(&counts.join(", "))),
        ("{{verdict}}", escaped(&word)),
        ("{{class}}", class.to_owned()),
        ("{{notes}}", notes),
        ("{{table}}", table(&verdict.judged)),
        ("{{violations}}", violations(&verdict.judged)),
        ("{{command}}", escaped(&verdict.run.command)),
        ("{{timeline}}", around),
    ];
    Ok(parts.into_iter().fold(TEMPLATE.to_owned(), |page, (place, text)| page.replace(place, &text)))
}

fn about(verdict: &RunVerdict) -> String {
    let truth = match verdict.run.truth {
        GroundTruthSource::Etcd => "compared with etcd",
        GroundTruthSource::Direct => {
            "compared with an apiserver's own watch (weaker: events that it misses are not detected)"
        }
    };
    format!("Seed {}; {truth}.", verdict.run.seed)
}

/// Returns the verdict as text, and the CSS class of its colour.
fn word(verdict: &RunVerdict) -> (String, &'static str) {
    match (verdict.outcome(), verdict.first()) {
        (VerifyOutcome::Violated, Some(first)) => (format!("Violated: {}", first.promise), "violated"),
        (VerifyOutcome::Violated, None) => ("Violated".to_owned(), "violated"),
        (VerifyOutcome::Passed, _) => ("Passed: all guarantees that could be checked hold".to_owned(), "held"),
        (VerifyOutcome::Inconclusive, _) => (format!("Inconclusive: {}", verdict.lacks.join("; ")), "void"),
    }
}

fn violation_text(violation: &GuaranteeViolation) -> String {
    let GuaranteeViolation { promise, op, expected, got, lines } = violation;
    let of = op.map(|op| format!(", operation {op}")).unwrap_or_default();
    let lines: Vec<_> = lines.iter().map(u32::to_string).collect();
    format!("{promise}{of} (lines {})\n  expected {expected}\n  got      {got}\n", lines.join(", "))
}

fn table(judged: &[GuaranteeVerdict]) -> String {
    let mut out = "<table><tr><th>guarantee</th><th>checks</th><th>violations</th></tr>\n".to_owned();
    for GuaranteeVerdict { promise, instances, broken, .. } in judged {
        let class = match (instances, broken) {
            (0, 0) => "dim",
            (_, 0) => "held",
            _ => "violated",
        };
        let cells = format!("<td>{promise}</td><td>{instances}</td><td>{broken}</td>");
        put(&mut out, format_args!("<tr class=\"{class}\">{cells}</tr>\n"));
    }
    out.push_str("</table>");
    out
}

fn violations(judged: &[GuaranteeVerdict]) -> String {
    let all = judged.iter().flat_map(|judged| judged.violations.iter().take(VIOLATIONS_SHOWN_MAX));
    all.fold(String::new(), |mut out, violation| {
        put(&mut out, format_args!("<pre>{}</pre>\n", escaped(&violation_text(violation))));
        out
    })
}

#[cfg(test)]
mod tests;
