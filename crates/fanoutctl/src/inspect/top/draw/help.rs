use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::style::{TerminalPalette, fit, width};
use crate::inspect::top::keys::KEYS;

/// Draws the help over the screen.
pub(super) fn help(frame: &mut Frame<'_>, palette: TerminalPalette) {
    let keys = KEYS.iter().map(|(key, _)| width(key)).max().unwrap_or_default();
    let line = |(key, what): &(&str, &'static str)| {
        Line::from(vec![Span::styled(format!(" {}  ", fit(key, keys, false)), palette.strong()), (*what).into()])
    };
    let lines: Vec<_> = KEYS.iter().map(line).collect();
    let widest = lines.iter().map(Line::width).max().unwrap_or_default();
    let size = |needed: usize| Constraint::Length(u16::try_from(needed).unwrap_or(u16::MAX));
    // Includes the frame, and a space at the end of each line.
    let area: Rect = frame.area().centered(size(widest + 3), size(lines.len() + 2));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" Keys (press any key to close) ")), area);
}
