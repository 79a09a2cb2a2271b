use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::compare::{BenchResults, FigureRatios};
use super::outcome::{BenchRunOutcome, CATALOGUE};

/// Formats benchmark results for a terminal.
pub fn render(results: &BenchResults) -> String {
    let mut out = String::new();
    let BenchResults { scenario, about, machine, cells, ratios, outcomes, .. } = results;
    // Writing to a String does not fail.
    let _ = writeln!(out, "{scenario}{}{about}", if about.is_empty() { "" } else { ": " });
    let _ = writeln!(out, "{machine}");
    let runs = cells.iter().map(|cell| cell.rounds).max().unwrap_or(0);
    if runs > 1 {
        let _ = writeln!(out, "medians of {runs} runs");
    }
    let titles: Vec<_> =
        cells.iter().map(super::VariantFigures::title).chain(ratios.iter().map(|of| title(results, of))).collect();
    let widths: Vec<_> = titles.iter().map(|title| title.chars().count().max(10)).collect();
    let _ = write!(out, "\n{:<32}", "");
    for (title, width) in titles.iter().zip(&widths) {
        let _ = write!(out, "  {title:>width$}");
    }
    out.push('\n');
    for (name, unit, _, what) in CATALOGUE {
        if cells.iter().all(|cell| cell.figures.of(name).is_none()) {
            continue;
        }
        let label = if unit.is_empty() { (*name).to_owned() } else { format!("{name} [{unit}]") };
        let _ = write!(out, "{label:<32}");
        let values = cells.iter().map(|cell| cell.figures.of(name).map(number));
        let values =
            values.chain(ratios.iter().map(|ratio| ratio.figures.of(name).map(|of| format!("× {}", number(of)))));
        for (value, width) in values.zip(&widths) {
            let _ = write!(out, "  {:>width$}", value.unwrap_or_default());
        }
        // With many columns there is no room for descriptions.
        let _ = if titles.len() <= 2 { writeln!(out, "  {what}") } else { writeln!(out) };
    }
    out.push_str(&ciphers(outcomes));
    for outcome in outcomes {
        let of = format!("{} {}", outcome.side, outcome.variant);
        if outcome.interrupted {
            let _ = writeln!(out, "{}: interrupted", of.trim());
        }
        for note in &outcome.notes {
            let _ = writeln!(out, "{} (round {}): {note}", of.trim(), outcome.round + 1);
        }
    }
    out
}

/// Reports the cipher suite, or that of each server if they differ.
fn ciphers(outcomes: &[BenchRunOutcome]) -> String {
    let known: BTreeSet<_> = outcomes.iter().filter_map(|of| Some((of.cipher?, of.side.as_str()))).collect();
    let suites: BTreeSet<_> = known.iter().map(|(cipher, _)| *cipher).collect();
    match Vec::from_iter(&suites)[..] {
        [] => String::new(),
        [one] => format!("TLS cipher suite {one}\n"),
        _ => {
            let each: Vec<_> = known.iter().map(|(cipher, side)| format!("{side} {cipher}")).collect();
            format!("WARNING: the servers use different TLS cipher suites: {}\n", each.join(", "))
        }
    }
}

pub(super) fn title(results: &BenchResults, ratio: &FigureRatios) -> String {
    let (of, over) = (&results.cells[ratio.of], &results.cells[ratio.over]);
    if of.variant == over.variant {
        return match of.variant.as_str() {
            "" => format!("{} / {}", of.side, over.side),
            variant => format!("{} / {} {variant}", of.side, over.side),
        };
    }
    format!("{} {} / {}", of.side, of.variant, over.variant)
}

/// Formats a number with three significant digits, and with thousands separated.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || (100.0..1e15).contains(&size) {
        let digits = format!("{size:.0}");
        let grouped = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", grouped.collect::<Vec<_>>().join(" "));
    }
    match size {
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ if size >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BenchFigures;

    #[test]
    fn different_cipher_suites_print_a_warning() {
        type Sides = [(&'static str, Option<&'static str>)];
        let outcome = |(side, cipher): &(&str, Option<&'static str>)| BenchRunOutcome {
            side: (*side).to_owned(),
            target: String::new(),
            variant: String::new(),
            round: 0,
            interrupted: false,
            figures: BenchFigures::default(),
            percentiles: Vec::new(),
            cipher: *cipher,
            notes: Vec::new(),
        };
        let rows: [(&Sides, &str); 3] = [
            (&[("a", None)], ""),
            (&[("a", Some("X")), ("b", Some("X")), ("a", Some("X"))], "TLS cipher suite X\n"),
            (&[("a", Some("X")), ("b", Some("Y"))], "WARNING: the servers use different TLS cipher suites: a X, b Y\n"),
        ];
        for (sides, expected) in rows {
            assert_eq!(ciphers(&sides.iter().map(outcome).collect::<Vec<_>>()), expected);
        }
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        let rows = [
            (0.0, "0"),
            (1_234_567.0, "1 234 567"),
            (99.94, "99.9"),
            (1.234, "1.23"),
            (0.0512, "0.051"),
            (-300.0, "-300"),
        ];
        for (value, text) in rows {
            assert_eq!(number(value), text);
        }
    }
}
