//! Ages in the cells of a Table. An age is the time from an event to the moment when the server printed the row.
//!
//! Two servers print a row at different moments. Their ages may differ by the time between these, and by no more.

use std::time::Duration;

use serde_json::Value;

/// Removes the ages from a Table, and returns the rest and the ages in order. `text` is the Table as received, `table`
/// the same Table parsed.
pub fn taken_out(text: &str, table: &Value) -> (String, Vec<String>) {
    let mut at = text.find("\"rows\"").unwrap_or(text.len());
    let (mut kept, mut ages) = (text[..at].to_owned(), Vec::new());
    for cell in table["rows"].as_array().into_iter().flatten().filter_map(|row| row["cells"].as_array()).flatten() {
        let Some((before, age)) = cell.as_str().and_then(age_in) else { continue };
        let written = format!("\"{}\"", cell.as_str().expect("it is text"));
        let Some(found) = text[at..].find(&written) else { continue };
        kept += &text[at..at + found];
        kept.extend(["\"", before, "AGE\""]);
        ages.push(age.to_owned());
        at += found + written.len();
    }
    (kept + &text[at..], ages)
}

/// Removes the ages from a Table in YAML, and returns the rest and the ages in order.
pub fn taken_out_of_yaml(text: &str) -> (String, Vec<String>) {
    let mut ages = Vec::new();
    let lines = text.split_inclusive('\n').map(|line| {
        let cell = line.trim().strip_prefix("- ").and_then(age_in);
        let Some((_, age)) = cell else { return line.to_owned() };
        ages.push(age.to_owned());
        line.replacen(age, "AGE", 1)
    });
    (lines.collect(), ages)
}

/// Whether both can be the age of the same object, printed at moments that are at most `between` apart.
pub fn agree(one: &str, other: &str, between: Duration) -> bool {
    let ((Some(one), Some(other)), between) = ((range(one), range(other)), between.as_secs() + 1) else {
        return one == other;
    };
    one.0 <= other.1 + between && other.0 <= one.1 + between
}

/// Whether the ages of two Tables agree pairwise ([`agree`]).
pub fn all_agree(ones: &[String], others: &[String], between: Duration) -> bool {
    ones.len() == others.len() && ones.iter().zip(others).all(|(one, other)| agree(one, other, between))
}

/// The text before the age in a cell, and the age. In `7m12s` the whole cell is the age; in `2 (3s ago)` it is `3s`.
fn age_in(cell: &str) -> Option<(&str, &str)> {
    if range(cell).is_some() {
        return Some(("", cell));
    }
    let (before, rest) = cell.split_once(" (")?;
    let age = rest.strip_suffix(" ago)")?;
    range(age).map(|_| (before, age))
}

/// The smallest and the largest number of seconds that kubectl prints as this age. Its forms are `21s`, `7m12s`,
/// `3h5m`, `2d`, `1y20d`.
fn range(age: &str) -> Option<(u64, u64)> {
    let (mut least, mut unit) = (0, 0);
    for part in age.split_inclusive(|c: char| c.is_ascii_alphabetic()) {
        let (digits, name) = part.split_at_checked(part.len() - 1)?;
        unit = match name {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            "y" => 365 * 86_400,
            _ => return None,
        };
        least = digits.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(least)?;
    }
    // Below ten minutes, kubectl omits the seconds only if they are 0: `2m` is exactly 120 seconds.
    let unit = if (120..600).contains(&least) { 1 } else { unit };
    (unit > 0).then(|| (least, least + unit - 1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ages_match_only_within_the_time_between_responses() {
        let moment = Duration::from_millis(300);
        for (one, other, agrees) in [
            ("9s", "9s", true),
            ("9s", "10s", true),
            ("10s", "9s", true),
            ("9s", "11s", false),
            ("119s", "2m", true),
            ("2m", "2m2s", false),
            ("9m59s", "10m", true),
            ("10m", "11m", true),
            ("10m", "12m", false),
            ("2d", "<unknown>", false),
            ("<unknown>", "<unknown>", true),
        ] {
            assert_eq!(agree(one, other, moment), agrees, "{one} {other}");
        }
        assert!(agree("9s", "12s", Duration::from_secs(2)));
        let ages = |ages: &[&str]| ages.iter().map(|age| (*age).to_owned()).collect::<Vec<_>>();
        assert!(all_agree(&ages(&["9s", "2d"]), &ages(&["10s", "2d"]), moment));
        assert!(!all_agree(&ages(&["9s", "2d"]), &ages(&["10s", "4d"]), moment));
        assert!(!all_agree(&ages(&["9s"]), &ages(&[]), moment));
    }

    #[test]
    fn ages_are_stripped_from_table_cells_only() {
        let row =
            |age: &str| json!({"cells": ["5s-pod", "2 (3s ago)", age, 7], "object": {"metadata": {"name": "5s"}}});
        let table = json!({"columns": "5s", "rows": [row("5s"), row("7m12s")]});
        let (text, ages) = taken_out(&table.to_string(), &table);
        assert_eq!(ages, ["3s", "5s", "3s", "7m12s"]);
        assert_eq!((text.matches("AGE").count(), text.matches("\"5s\"").count()), (4, 3), "{text}");
        let (text, ages) = taken_out_of_yaml("rows:\n- cells:\n  - a\n  - 5s\n  object:\n    name: 5s\n");
        assert_eq!(
            (text.as_str(), ages),
            ("rows:\n- cells:\n  - a\n  - AGE\n  object:\n    name: 5s\n", vec!["5s".to_owned()])
        );
    }
}
