use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use serde_json::Value;

use super::left_out;
use super::style::{HEAD, TerminalPalette, clean, fit, width};
use crate::inspect::table::grouped;
use crate::inspect::top::columns::{self, FEED_COLUMNS, GAP, TopColumn, WATCH_COLUMNS};
use crate::inspect::top::poll::OpenWatchesResult;
use crate::inspect::top::screen::{TopScreen, TopTab};

/// Draws the selected table, and returns which rows are visible.
pub(super) fn table(frame: &mut Frame<'_>, area: Rect, screen: &mut TopScreen, palette: TerminalPalette) -> String {
    let page = usize::from(area.height).saturating_sub(1);
    let rows = screen.view().rows(screen.rows()).len();
    screen.view_mut().fit(rows, page);
    let first = screen.view().first;
    let last = (first + page).min(rows);
    let total = match screen.proxy().look.as_ref().map(|look| &look.watches) {
        Some(OpenWatchesResult::Shown { total, .. }) if screen.tab == TopTab::Watches => *total,
        _ => 0,
    };
    let rows = screen.view().rows(screen.rows());
    if rows.is_empty() {
        let why = nothing(screen);
        for (line, at) in why.iter().zip(area.rows()) {
            frame.render_widget(Line::raw(fit(line, usize::from(at.width), false)), at);
        }
        return "no rows".to_owned();
    }
    let columns: &[TopColumn] = if screen.tab == TopTab::Feeds { &FEED_COLUMNS } else { &WATCH_COLUMNS };
    lines(frame, area, (screen, columns), &rows[first..last], palette);
    format!(
        "{}–{} of {}{}",
        grouped(first as u64 + 1),
        grouped(last as u64),
        grouped(rows.len() as u64),
        left_out(total)
    )
}

fn lines(frame: &mut Frame<'_>, area: Rect, of: (&TopScreen, &[TopColumn]), rows: &[&Value], palette: TerminalPalette) {
    let (screen, columns) = of;
    let (view, room) = (screen.view(), usize::from(area.width).saturating_sub(2));
    let head = |column: &TopColumn| match (column.sort == view.order().name, view.is_up()) {
        (true, true) => format!("{}▲", column.head),
        (true, false) => format!("{}▼", column.head),
        (false, _) => column.head.to_owned(),
    };
    let cell = |row: &Value, column: &TopColumn| clean(&(column.cell)(row)).into_owned();
    let cells: Vec<Vec<_>> = rows.iter().map(|row| columns.iter().map(|column| cell(row, column)).collect()).collect();
    let need = |at: usize| {
        let widest = cells.iter().map(|cells| width(&cells[at])).max().unwrap_or_default();
        // Reserves one cell for the sort mark in every sortable column, so that widths do not depend on the sort order.
        widest.max(width(columns[at].head) + usize::from(!columns[at].sort.is_empty()))
    };
    let needs: Vec<_> = (0..columns.len()).map(need).collect();
    let visible = columns::fitted(columns, &needs, room);
    let gap = " ".repeat(GAP);
    let mut places = area.rows();
    let heads = visible.iter().map(|(at, width)| fit(&head(&columns[*at]), *width, columns[*at].is_number));
    if let Some(at) = places.next() {
        let text = format!(" {}", heads.collect::<Vec<_>>().join(&gap));
        frame.render_widget(Line::styled(fit(&text, usize::from(at.width), false), HEAD), at);
    }
    for ((row, cells), at) in rows.iter().zip(&cells).zip(places) {
        let mut spans = vec![Span::raw(" ")];
        for (nth, (column, width)) in visible.iter().enumerate() {
            if nth > 0 {
                spans.push(Span::raw(gap.as_str()));
            }
            let text = fit(&cells[*column], *width, columns[*column].is_number);
            spans.push(Span::styled(text, palette.tone((columns[*column].tone)(row))));
        }
        frame.render_widget(Line::from(spans), at);
    }
}

/// Returns the lines that say why a table has no rows.
fn nothing(screen: &TopScreen) -> Vec<String> {
    let Some(look) = &screen.proxy().look else { return vec![" No response yet.".to_owned()] };
    match (screen.tab, &look.watches) {
        (TopTab::Watches, OpenWatchesResult::NotAsked) => vec![" Loading watches.".to_owned()],
        (TopTab::Watches, OpenWatchesResult::Hidden(status)) => vec![
            format!(" Watches are hidden ({}).", status.as_u16()),
            " Use a unix socket, or --token-file with a token of a user who may get /debug/watches.".to_owned(),
        ],
        _ if !screen.view().filter.is_empty() => vec![" No row matches the filter.".to_owned()],
        (TopTab::Feeds, _) => vec![" No feeds: no client has read a cacheable resource yet.".to_owned()],
        (TopTab::Watches, _) => vec![" No open watches.".to_owned()],
    }
}
