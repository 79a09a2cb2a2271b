//! Lays out the screen. The submodules draw its parts.

mod head;
mod help;
mod rows;
mod style;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use tokio::time::Instant;

use super::poll::OpenWatchesResult;
use super::screen::{InputMode, TopScreen, TopTab, WATCHES_MAX};
use crate::inspect::table::{grouped, seconds};
use style::{TerminalPalette, fit, width};

/// Draws the screen. On a small terminal, parts that do not fit are omitted.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &mut TopScreen, now: Instant) {
    let palette = TerminalPalette { has_colours: screen.has_colours };
    let area = frame.area();
    let (troubles, is_wide) = (head::troubles(screen, now), area.width >= head::WIDE);
    let proxies = head::proxy_lines(screen, area.height);
    let numbers = match (area.height, is_wide) {
        (0..14, _) => 0,
        (_, true) | (14..22, false) => 4,
        (_, false) => 7,
    };
    // A blank line, if the screen is high enough.
    let blank = usize::from(area.height >= 20 && numbers > 0);
    let lines = |count: usize| Constraint::Length(u16::try_from(count).unwrap_or(u16::MAX));
    let heights = [1, troubles.len(), proxies, numbers, blank, 1].map(lines).into_iter();
    let heights = heights.chain([Constraint::Min(1), lines(1)]);
    let [title, trouble, list, summary, _, tabs, table, foot] = Layout::vertical(heights).areas(area);
    head::title(frame, title, screen);
    for (line, at) in troubles.iter().zip(trouble.rows()) {
        frame.render_widget(Line::styled(fit(line, usize::from(at.width), false), palette.bad()), at);
    }
    head::proxies(frame, list, screen, palette);
    head::summary(frame, summary, screen, palette);
    // The table returns the number of rows, which the line above it shows.
    let counted = rows::table(frame, table, screen, palette);
    draw_tabs(frame, tabs, screen, &counted, palette);
    draw_foot(frame, foot, screen, palette);
    if screen.mode == InputMode::Help {
        help::help(frame, palette);
    }
}

fn draw_tabs(frame: &mut Frame<'_>, area: Rect, screen: &TopScreen, counted: &str, palette: TerminalPalette) {
    let look = screen.proxy().look.as_ref();
    let feeds = look.map_or(0, |look| look.status.feeds.len() as u64);
    let watches = match look.map(|look| &look.watches) {
        Some(OpenWatchesResult::Shown { total, .. }) if screen.watches.filter.is_empty() => *total,
        _ => look.map_or(0, |look| look.status.watches),
    };
    let tab = |tab: TopTab, name: &str, count: u64| {
        let text = format!(" {name} {} ", grouped(count));
        // The selected tab is visible without colours, too.
        if screen.tab == tab { Span::styled(format!("[{text}]"), palette.strong()) } else { format!(" {text} ").into() }
    };
    let view = screen.view();
    let arrow = if view.is_up() { "▲" } else { "▼" };
    let filter =
        if view.filter.is_empty() { String::new() } else { format!(" · filter \"{}\"", style::clean(&view.filter)) };
    let left = Line::from(vec![tab(TopTab::Feeds, "Feeds", feeds), tab(TopTab::Watches, "Watches", watches)]);
    let right = format!("by {} {arrow}{filter} · {counted} ", view.order().name);
    let room = usize::from(area.width).saturating_sub(left.width() + 1);
    frame.render_widget(left, area);
    frame.render_widget(Paragraph::new(fit(&right, room.min(width(&right)), false)).alignment(Alignment::Right), area);
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, screen: &TopScreen, palette: TerminalPalette) {
    if screen.mode == InputMode::Filter {
        let filter = style::clean(&screen.view().filter).into_owned();
        let typed = vec![
            Span::styled(" /", palette.strong()),
            filter.into(),
            Span::styled("_", palette.strong()),
            "   Enter applies it, Esc clears it".into(),
        ];
        return frame.render_widget(Line::from(typed), area);
    }
    let other = if screen.tab == TopTab::Feeds { "watches" } else { "feeds" };
    let pause = if screen.is_paused { "resume" } else { "pause" };
    let mut keys = vec![("q", "quit"), ("Tab", other), ("s", "sort"), ("/", "filter"), ("Space", pause), ("?", "help")];
    if screen.proxies.len() > 1 {
        keys.insert(2, ("← →", "proxy"));
    }
    let spans = keys
        .iter()
        .flat_map(|(key, what)| [Span::styled(format!(" {key}"), palette.strong()), format!(" {what} ").into()]);
    frame.render_widget(Line::from(spans.collect::<Vec<_>>()), area);
}

/// Returns the refresh interval, for the title.
fn pace(screen: &TopScreen) -> String {
    match screen.every.as_secs() {
        _ if screen.is_paused => "PAUSED".to_owned(),
        0 => format!("every {} ms", screen.every.as_millis()),
        whole => format!("every {}", seconds(whole)),
    }
}

/// Returns a note with the total number of watches, if more are open than shown.
fn left_out(total: u64) -> String {
    let limit = WATCHES_MAX as u64;
    if total > limit { format!(" of {}; filter to see others", grouped(total)) } else { String::new() }
}

#[cfg(test)]
mod tests;
