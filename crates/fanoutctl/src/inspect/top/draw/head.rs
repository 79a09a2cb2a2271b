use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{RenderDirection, Sparkline};
use tokio::time::Instant;

use super::pace;
use super::style::{BAR, TerminalPalette, fit, width};
use crate::inspect::table::{bytes, grouped, seconds};
use crate::inspect::top::proxy::PolledProxy;
use crate::inspect::top::screen::TopScreen;

/// The terminal width in columns from which the chart is beside the numbers, otherwise below them.
pub(super) const WIDE: u16 = 100;
/// The maximum number of listed proxies.
const LISTED_MAX: usize = 6;
const LABEL: usize = 9;
/// The width in columns of the numbers if the chart is beside them.
const NUMBERS: u16 = 66;

/// Draws the selected proxy and its status.
pub(super) fn title(frame: &mut Frame<'_>, area: Rect, screen: &TopScreen) {
    let proxy = screen.proxy();
    let how = match (&proxy.silence, &proxy.look) {
        (Some(_), _) => format!("{}: no response", proxy.name),
        (None, Some(look)) => look.status.headline(),
        (None, None) => format!("{}: connecting", proxy.name),
    };
    let pace = format!(" {} ", pace(screen));
    let room = usize::from(area.width).saturating_sub(width(&pace));
    frame.render_widget(Line::styled(fit(&format!(" {how}"), room, false) + &pace, BAR), area);
}

/// Returns the problems of the selected proxy, one per line.
pub(super) fn troubles(screen: &TopScreen, now: Instant) -> Vec<String> {
    let proxy = screen.proxy();
    let mut lines = Vec::new();
    if let Some(silence) = &proxy.silence {
        let since = seconds(now.saturating_duration_since(silence.since).as_secs());
        // The line above already has the proxy's name.
        let why = silence.why.strip_prefix(&format!("{}: ", proxy.name)).unwrap_or(&silence.why);
        let kept = if proxy.look.is_some() { "; showing the last known state" } else { "" };
        lines.push(format!(" No response for {since}{kept}. {why}"));
    }
    if let Some(status) = proxy.look.as_ref().map(|look| &look.status) {
        let error = status.last_error.as_ref();
        lines.extend(error.map(|error| format!(" Configuration reload failed; keeping the previous one: {error}")));
        if !status.restart_required.is_empty() {
            lines.push(format!(" Restart required for: {}", status.restart_required.join(", ")));
        }
    }
    lines
}

/// Returns the number of lines for the list of proxies on a screen of this height.
pub(super) fn proxy_lines(screen: &TopScreen, height: u16) -> usize {
    let room = usize::from(height / 4).min(LISTED_MAX);
    if screen.proxies.len() > 1 { screen.proxies.len().min(room) } else { 0 }
}

/// Draws the list of proxies if there are several; only those next to the selected one if they do not fit.
pub(super) fn proxies(frame: &mut Frame<'_>, area: Rect, screen: &TopScreen, palette: TerminalPalette) {
    let room = usize::from(area.height);
    let last = screen.proxies.len().saturating_sub(room);
    let first = screen.selected.saturating_sub(room / 2).min(last);
    let names = screen.proxies.iter().map(|proxy| width(&proxy.name)).max().unwrap_or_default().min(48);
    for (nth, at) in (first..screen.proxies.len()).zip(area.rows()) {
        let (proxy, is_selected) = (&screen.proxies[nth], nth == screen.selected);
        let (state, style) = state(proxy, palette);
        let mark = if is_selected { "▸" } else { " " };
        let name = format!(" {mark} {}  ", fit(&proxy.name, names, false));
        let name_style = if is_selected { palette.strong() } else { Style::new() };
        let mut spans = vec![Span::styled(name, name_style), Span::styled(fit(state, 15, false), style)];
        // As many numbers as fit into the line.
        let mut room = usize::from(at.width).saturating_sub(spans.iter().map(Span::width).sum());
        for text in numbers(proxy) {
            let Some(left) = room.checked_sub(width(&text)) else { break };
            spans.push(text.into());
            room = left;
        }
        frame.render_widget(Line::from(spans), at);
    }
}

/// Returns the numbers of a proxy for the list, the most important first.
fn numbers(proxy: &PolledProxy) -> Vec<String> {
    let Some(status) = proxy.look.as_ref().map(|look| &look.status) else { return Vec::new() };
    let watches = format!("{} watches", grouped(status.watches));
    let rate = proxy.rates.map_or(String::new(), |rates| format!("{} events/s", grouped(rates.delivered)));
    let cache = format!("{} cache", bytes(status.held_bytes));
    vec![fit(&watches, 17, true), fit(&rate, 18, true), fit(&cache, 15, true)]
}

fn state(proxy: &PolledProxy, palette: TerminalPalette) -> (&'static str, Style) {
    match (&proxy.silence, &proxy.look) {
        (Some(_), _) => ("no response", palette.bad()),
        (None, None) => ("connecting", Style::new()),
        (None, Some(look)) if look.status.pending.is_empty() => ("ready", palette.picture()),
        (None, Some(_)) => ("not ready", palette.bad()),
    }
}

/// Draws the numbers, and a chart of deliveries.
pub(super) fn summary(frame: &mut Frame<'_>, area: Rect, screen: &TopScreen, palette: TerminalPalette) {
    let proxy = screen.proxy();
    let (numbers, picture) = if area.width >= WIDE {
        let [numbers, picture] = Layout::horizontal([Constraint::Length(NUMBERS), Constraint::Fill(1)]).areas(area);
        (numbers, picture)
    } else {
        let [numbers, picture] = Layout::vertical([Constraint::Length(4), Constraint::Fill(1)]).areas(area);
        (numbers, picture)
    };
    for ((label, text), at) in details(proxy).into_iter().zip(numbers.rows()) {
        let label = Span::styled(format!(" {} ", fit(label, LABEL, false)), palette.strong());
        let room = usize::from(at.width).saturating_sub(LABEL + 2);
        frame.render_widget(Line::from(vec![label, fit(&text, room, false).into()]), at);
    }
    let [text, bars] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(picture);
    let room = usize::from(text.width).saturating_sub(2);
    let seen: Vec<_> = proxy.delivered.iter().rev().take(room).copied().collect();
    let most = seen.iter().flatten().copied().max().unwrap_or_default();
    let now = proxy.rates.map_or_else(
        || "measuring".to_owned(),
        |rates| {
            let (events, sent) = (grouped(rates.delivered), bytes(rates.delivered_bytes));
            format!("{events} events/s, {sent}/s; peak {}", grouped(most))
        },
    );
    let label = Span::styled(format!(" {} ", fit("Delivered", LABEL, false)), palette.strong());
    frame.render_widget(Line::from(vec![label, fit(&now, room.saturating_sub(LABEL), false).into()]), text);
    let bars = Rect { x: bars.x + 1, width: bars.width.saturating_sub(2), ..bars };
    let sparkline = Sparkline::default().data(seen).max(most.max(1)).direction(RenderDirection::RightToLeft);
    frame.render_widget(sparkline.style(palette.picture()).absent_value_symbol("·"), bars);
}

fn details(proxy: &PolledProxy) -> Vec<(&'static str, String)> {
    let Some(status) = proxy.look.as_ref().map(|look| &look.status) else { return Vec::new() };
    let (cache, budget) = (bytes(status.held_bytes), bytes(status.budget_bytes));
    let rates = proxy.rates.map(|rates| {
        let [upstream, memory, passed, refused] =
            [rates.upstream, rates.from_memory, rates.passed_through, rates.refused].map(grouped);
        let answered = format!("{memory}/s from the cache, {passed}/s forwarded, {refused}/s refused");
        (format!("{upstream} events/s{}", rates.latencies()), answered)
    });
    let (upstream, requests) = rates.unwrap_or_else(|| ("measuring".to_owned(), "measuring".to_owned()));
    vec![
        ("Watches", format!("{} open, {} upstream streams", grouped(status.watches), grouped(status.streams))),
        ("Memory", format!("cache {cache} of {budget}, {} resident", bytes(status.resident_bytes))),
        ("Upstream", upstream),
        ("Requests", requests),
    ]
}
