use std::borrow::Cow;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use crate::inspect::table::printable;
use crate::inspect::top::columns::Tone;

/// How things look. Colours say nothing that is not also written; without them there is bold and reversed text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    pub(super) has_colours: bool,
}

/// The title.
pub(super) const BAR: Style = Style::new().add_modifier(Modifier::REVERSED);
/// The heads of tables.
pub(super) const HEAD: Style = Style::new().add_modifier(Modifier::BOLD.union(Modifier::UNDERLINED));

impl Palette {
    pub(super) fn strong(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn picture(self) -> Style {
        self.coloured(Color::Green)
    }

    pub(super) fn tone(self, tone: Tone) -> Style {
        match tone {
            Tone::Plain => Style::new(),
            Tone::Good => self.coloured(Color::Green),
            Tone::Warning => self.coloured(Color::Yellow).add_modifier(Modifier::BOLD),
            Tone::Bad => self.bad(),
        }
    }

    fn coloured(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }
}

/// Text from a proxy or a client, made safe for a terminal.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    printable(text)
}

/// The columns of the screen that a text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// A text as wide as it is to be: filled up with blanks, before it if it is a number, or cut with an ellipsis.
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
        // A letter may be two columns wide.
        assert_eq!(
            (fit("日本語", 6, false), fit("日本語", 5, false), fit("日本語", 4, false)),
            ("日本語".to_owned(), "日本…".to_owned(), "日… ".to_owned())
        );
    }

    #[test]
    fn palette_without_colours_sets_no_colour() {
        let palette = Palette { has_colours: false };
        let styles = [palette.strong(), palette.bad(), palette.picture(), palette.tone(Tone::Warning)];
        assert!(styles.iter().all(|style| style.fg.is_none() && style.bg.is_none()));
    }
}
