use std::borrow::Cow;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use crate::inspect::table::printable;
use crate::inspect::top::columns::TextHighlight;

/// The styles of the screen. The text carries all information that colours do. Without colours, bold and reversed
/// text is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct TerminalPalette {
    pub(super) has_colours: bool,
}

/// The style of the title bar.
pub(super) const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);
/// The style of table heads.
pub(super) const HEAD: Style = Style::new().add_modifier(Modifier::BOLD.union(Modifier::UNDERLINED));

impl TerminalPalette {
    pub(super) fn strong(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn picture(self) -> Style {
        self.coloured(Color::Green)
    }

    pub(super) fn tone(self, tone: TextHighlight) -> Style {
        match tone {
            TextHighlight::Plain => Style::new(),
            TextHighlight::Good => self.coloured(Color::Green),
            TextHighlight::Warning => self.coloured(Color::Yellow).add_modifier(Modifier::BOLD),
            TextHighlight::Bad => self.bad(),
        }
    }

    fn coloured(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }
}

/// Makes text from a proxy or a client safe for a terminal.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    printable(text)
}

/// Returns the number of terminal cells that a text occupies.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Fits a text into `room` cells. Short texts are padded, numbers on the left and others on the right. Long ones are
/// shortened with an ellipsis.
pub(super) fn fit(text: &str, room: usize, is_number: bool) -> String {
    let text = clean(text);
    let taken = width(&text);
    let blanks = " ".repeat(room.saturating_sub(taken));
    match (taken <= room, is_number) {
        (true, true) => blanks + &text,
        (true, false) => text.into_owned() + &blanks,
        (false, _) => cut(&text, room),
    }
}

fn cut(text: &str, room: usize) -> String {
    let mut kept = String::new();
    let Some(room) = room.checked_sub(1) else { return kept };
    for letter in text.chars() {
        kept.push(letter);
        if width(&kept) > room {
            kept.pop();
            break;
        }
    }
    let blanks = " ".repeat(room.saturating_sub(width(&kept)));
    format!("{kept}…{blanks}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_padded_or_truncated_to_the_width() {
        let texts =
            [("ab", 4, "ab  ", "  ab"), ("abcdef", 4, "abc…", "abc…"), ("ab", 2, "ab", "ab"), ("ab", 0, "", "")];
        for (text, room, left, right) in texts {
            assert_eq!((fit(text, room, false), fit(text, room, true)), (left.to_owned(), right.to_owned()), "{text}");
        }
        // A character may be two cells wide.
        assert_eq!(
            (fit("日本語", 6, false), fit("日本語", 5, false), fit("日本語", 4, false)),
            ("日本語".to_owned(), "日本…".to_owned(), "日… ".to_owned())
        );
    }

    #[test]
    fn palette_without_colours_sets_no_colour() {
        let palette = TerminalPalette { has_colours: false };
        let styles = [palette.strong(), palette.bad(), palette.picture(), palette.tone(TextHighlight::Warning)];
        assert!(styles.iter().all(|style| style.fg.is_none() && style.bg.is_none()));
    }
}
