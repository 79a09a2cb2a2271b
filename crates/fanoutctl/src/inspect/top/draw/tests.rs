use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::inspect::InspectError;
use crate::inspect::top::poll::ProxyPollResult;
use crate::inspect::top::samples;

const EVERY: Duration = Duration::from_secs(2);

/// Returns a screen of these proxies, each of which was polled twice.
fn screen(names: &[&str], now: Instant) -> TopScreen {
    let mut screen = TopScreen::new(names.iter().map(|name| (*name).to_owned()), EVERY, true);
    for nth in 0..names.len() {
        for (at, delivered) in [(now - EVERY, 0), (now, 25_000)] {
            screen.saw(nth, Ok(samples::look(samples::counters(at, delivered))), at);
        }
    }
    screen
}

/// Returns the lines that are drawn on a terminal of this size.
fn drawn(screen: &mut TopScreen, (width, height): (u16, u16), now: Instant) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it is in memory");
    let frame = terminal.draw(|frame| draw(frame, screen, now)).expect("it is in memory");
    let cells = frame.buffer.content.chunks(usize::from(width));
    cells.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned()).collect()
}

fn shows(lines: &[String], part: &str) -> bool {
    lines.iter().any(|line| line.contains(part))
}

#[test]
fn screen_shows_numbers_feeds_and_keys() {
    let now = Instant::now();
    let lines = drawn(&mut screen(&["unix:/run/admin.sock"], now), (120, 24), now);
    let expected = [
        " unix:/run/admin.sock: ready, kube-fanout 1.2.3",
        " Watches   5,000 open, 6 upstream streams",
        " Memory    cache 50 MiB of 700 MiB, 150 MiB resident",
        " Upstream  1,250 events/s",
        " Requests  3,125/s from the cache, 0/s forwarded, 0/s refused",
    ];
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line}");
    }
    assert!(lines[0].ends_with("every 2 s"), "{}", lines[0]);
    assert!(lines[1].contains(" Delivered 12,500 events/s, 3.6 MiB/s; peak 12,500"), "{}", lines[1]);
    assert!(lines[4].ends_with('█'), "the latest is at the right: {}", lines[4]);
    assert!(lines[6].starts_with("[ Feeds 2 ]  Watches 5,000"), "{}", lines[6]);
    assert!(lines[6].ends_with("by readers ▼ · 1–2 of 2"), "{}", lines[6]);
    let head = " FEED      ENCODING  STATE           OBJECTS  VERSION  READERS▼  HISTORY   MEMORY";
    let stale = " nodes.v1  protobuf  stale for 12 s    1,000   184000         1      900  2.9 MiB";
    assert_eq!((lines[7].as_str(), lines[9].as_str()), (head, stale));
    assert_eq!(lines[23], " q quit  Tab watches  s sort  / filter  Space pause  ? help");
}

#[test]
fn watches_tab_shows_rows_or_the_reason_for_none() {
    let now = Instant::now();
    let mut screen = screen(&["a"], now);
    screen.tab = TopTab::Watches;
    let lines = drawn(&mut screen, (120, 24), now);
    assert!(lines[6].ends_with("by behind ▼ · 1–3 of 3 of 5,000; filter to see others"), "{}", lines[6]);
    let row = " pods.v1 by fields  a      Zeta/1                               7  stalled     5 s  4.0 KiB    90 s  h2";
    assert_eq!(lines[8], row);
    for (watches, why) in [
        (OpenWatchesResult::NotAsked, "Loading watches."),
        (OpenWatchesResult::Hidden(http::StatusCode::FORBIDDEN), "Watches are hidden (403)."),
        (OpenWatchesResult::of(&json!({"total": 0, "watches": []})), "No open watches."),
    ] {
        let look = ProxyPollResult { watches, ..samples::look(samples::counters(now, 0)) };
        screen.saw(0, Ok(look), now);
        let lines = drawn(&mut screen, (120, 24), now);
        assert!(shows(&lines, why), "{why}: {lines:#?}");
    }
}

#[test]
fn last_known_state_is_shown_while_proxy_does_not_respond() {
    let now = Instant::now();
    let mut screen = screen(&["http://h:9090", "pod/two"], now);
    screen.saw(0, Err(InspectError::of("http://h:9090", "Connection refused")), now);
    let lines = drawn(&mut screen, (110, 24), now + Duration::from_secs(12));
    assert!(lines[0].starts_with(" http://h:9090: no response"), "{}", lines[0]);
    assert_eq!(lines[1], " No response for 12 s; showing the last known state. Connection refused");
    assert!(lines[2].starts_with(" ▸ http://h:9090  no response"), "{}", lines[2]);
    assert!(lines[3].starts_with("   pod/two        ready "), "{}", lines[3]);
    assert!(shows(&lines, "pods.v1") && shows(&lines, "measuring"), "{lines:#?}");
    screen.saw(0, Ok(samples::look(samples::counters(now + EVERY, 0))), now + EVERY);
    let lines = drawn(&mut screen, (110, 24), now + EVERY);
    assert!(lines[0].contains(": ready,") && !shows(&lines, "No response"), "{lines:#?}");
}

#[test]
fn client_text_cannot_control_the_terminal() {
    let now = Instant::now();
    let mut screen = screen(&["a"], now);
    screen.tab = TopTab::Watches;
    screen.watches.filter = "\u{1b}[31m".to_owned();
    let rows =
        vec![samples::watch("\u{1b}[2Jroot\u{202e}", "kubelet\r\n\u{9b}31m\u{7}\u{1b}]0;owned\u{1b}\\ \u{1b}[31m", 1)];
    let look = ProxyPollResult {
        watches: OpenWatchesResult::Shown { total: 1, rows },
        ..samples::look(samples::counters(now, 0))
    };
    screen.saw(0, Ok(look), now);
    for mode in [InputMode::Tables, InputMode::Filter] {
        screen.mode = mode;
        let lines = drawn(&mut screen, (160, 24), now);
        assert!(shows(&lines, "�[2Jroot�") && shows(&lines, "kubelet��"), "{lines:#?}");
        let obeyed = |letter: char| letter.is_control() || letter == '\u{202e}';
        assert!(lines.iter().all(|line| !line.contains(obeyed)), "{lines:#?}");
    }
}

#[test]
fn every_terminal_size_can_be_drawn() {
    let now = Instant::now();
    let names: Vec<_> = (0..20).map(|nth| format!("pod/{nth}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for (tab, mode) in
        [(TopTab::Feeds, InputMode::Tables), (TopTab::Watches, InputMode::Help), (TopTab::Watches, InputMode::Filter)]
    {
        for width in [1, 2, 40, 80, 99, 100, 300] {
            for height in [1, 2, 5, 13, 14, 21, 22, 60] {
                let mut screen = screen(&names, now);
                (screen.tab, screen.mode, screen.selected) = (tab, mode, 19);
                drawn(&mut screen, (width, height), now);
            }
        }
    }
    let lines = drawn(&mut screen(&["a"], now), (80, 8), now);
    assert!(
        lines[0].contains(": ready,") && shows(&lines, " pods.v1") && lines[7].starts_with(" q quit"),
        "{lines:#?}"
    );
}

#[test]
fn colours_can_be_disabled() {
    let now = Instant::now();
    let mut screen = screen(&["a", "b"], now);
    for has_colours in [true, false] {
        screen.has_colours = has_colours;
        let mut terminal = Terminal::new(TestBackend::new(120, 30)).expect("it is in memory");
        let frame = terminal.draw(|frame| draw(frame, &mut screen, now)).expect("it is in memory");
        let is_coloured = frame.buffer.content.iter().any(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset));
        assert_eq!(is_coloured, has_colours);
    }
}

#[test]
fn help_and_the_filter_are_drawn() {
    let now = Instant::now();
    let mut screen = screen(&["a"], now);
    screen.mode = InputMode::Help;
    let lines = drawn(&mut screen, (100, 24), now);
    assert!(shows(&lines, "Keys (press any key to close)") && shows(&lines, "next sort order"), "{lines:#?}");
    (screen.mode, screen.is_paused) = (InputMode::Filter, true);
    screen.feeds.filter = "nodes".to_owned();
    let lines = drawn(&mut screen, (100, 24), now);
    assert!(lines[0].ends_with("PAUSED") && lines[23].starts_with(" /nodes_   Enter applies it"), "{lines:#?}");
    assert!(shows(&lines, "by readers ▼ · filter \"nodes\" · 1–1 of 1") && !shows(&lines, "pods.v1"), "{lines:#?}");
    screen.feeds.filter = "nothing".to_owned();
    assert!(shows(&drawn(&mut screen, (100, 24), now), "No row matches the filter."));
}
