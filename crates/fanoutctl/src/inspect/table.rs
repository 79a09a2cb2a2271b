use std::borrow::Cow;

/// Replaces characters that control a terminal, change the writing direction or are invisible.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_mischief = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(letter, '\u{e0000}'..='\u{e007f}')
    };
    if text.contains(is_mischief) { text.replace(is_mischief, "\u{fffd}").into() } else { text.into() }
}

/// Formats rows as lines with aligned columns.
pub(crate) fn lines(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<_>> = rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|cell| cell.len())).max().unwrap_or_default()
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(head.to_vec());
    rows.iter().for_each(|row| text.push_str(&line(row.iter().map(AsRef::as_ref).collect())));
    text
}

/// Formats a number with separators: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join(",")
}

/// Formats a number of bytes in binary units.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut left = number as f64;
    while left >= 1024.0 && unit + 1 < UNITS.len() {
        (left, unit) = (left / 1024.0, unit + 1);
    }
    let digits = usize::from(unit > 0 && left < 10.0);
    format!("{left:.digits$} {}", UNITS[unit])
}

/// Formats seconds in the largest fitting unit.
pub(super) fn seconds(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_separators() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1_023, 1_536, 20 << 20].map(bytes), ["0 B", "1023 B", "1.5 KiB", "20 MiB"]);
        assert_eq!([0, 119, 120, 7_200, 200_000].map(seconds), ["0 s", "119 s", "2 min", "2 h", "2 d"]);
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(printable("kubelet/v1 (ä 日本) ≥"), "kubelet/v1 (ä 日本) ≥");
        let texts = ["\x1b[2J", "\u{9b}2J", "a\nb", "a\u{202e}b", "\u{200b}", "\u{7f}", "\u{2066}x"];
        let printed = texts.map(|text| printable(text).into_owned());
        assert_eq!(printed, ["�[2J", "�2J", "a�b", "a�b", "�", "�", "�x"]);
        let rows = [vec!["\x1b]0;owned\x07".to_owned(), "x".to_owned()]];
        assert_eq!(lines(&["N", "W"], &rows), "N           W\n�]0;owned�  x\n");
    }

    #[test]
    fn table_columns_are_aligned() {
        let rows = [vec!["a".to_owned(), "x".to_owned()], vec!["long".to_owned(), "y".to_owned()]];
        assert_eq!(lines(&["N", "W"], &rows), "N     W\na     x\nlong  y\n");
    }
}
