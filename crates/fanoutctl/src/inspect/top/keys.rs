//! Handles the keys of `top`.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::screen::{Mode, Screen, Tab};

/// The effect of a key besides a redraw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyEffect {
    Nothing,
    /// The selected proxy is polled now, with another query.
    Look,
    Quit,
}

/// The keys with their descriptions in the help.
pub(super) const KEYS: [(&str, &str); 10] = [
    ("Tab", "switch between feeds and watches"),
    ("↑ ↓ k j", "a row up or down"),
    ("PgUp PgDn", "a page up or down"),
    ("Home End g G", "the first row or the last row"),
    ("← →", "previous or next proxy, if there are several"),
    ("s, r", "next sort order; reverse order"),
    ("/", "filter rows by a text: Enter applies it, Esc clears it"),
    ("Space", "pause or resume"),
    ("?", "this help"),
    ("q Esc Ctrl-C", "quit"),
];

/// Applies a key to the screen.
pub(super) fn press(screen: &mut Screen, key: KeyEvent) -> KeyEffect {
    if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
        return KeyEffect::Quit;
    }
    match screen.mode {
        Mode::Help => {
            screen.mode = Mode::Tables;
            KeyEffect::Nothing
        }
        Mode::Filter => write(screen, key),
        Mode::Tables => choose(screen, key.code),
    }
}

/// The maximum length of a filter, in characters.
const FILTER_CHARS_MAX: usize = 100;

fn write(screen: &mut Screen, key: KeyEvent) -> KeyEffect {
    let filter = &mut screen.view_mut().filter;
    match key.code {
        KeyCode::Char(letter) if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
            if filter.chars().count() < FILTER_CHARS_MAX {
                filter.push(letter);
            }
            KeyEffect::Nothing
        }
        KeyCode::Backspace => {
            filter.pop();
            KeyEffect::Nothing
        }
        KeyCode::Enter => {
            screen.mode = Mode::Tables;
            refreshed(screen)
        }
        KeyCode::Esc => {
            filter.clear();
            screen.mode = Mode::Tables;
            refreshed(screen)
        }
        _ => KeyEffect::Nothing,
    }
}

fn choose(screen: &mut Screen, key: KeyCode) -> KeyEffect {
    let page = isize::try_from(screen.view().page).unwrap_or(1);
    match key {
        KeyCode::Char('q') => return KeyEffect::Quit,
        KeyCode::Esc if screen.view().filter.is_empty() => return KeyEffect::Quit,
        KeyCode::Esc => {
            screen.view_mut().filter.clear();
            return refreshed(screen);
        }
        KeyCode::Tab | KeyCode::BackTab => {
            screen.tab = if screen.tab == Tab::Feeds { Tab::Watches } else { Tab::Feeds };
        }
        KeyCode::Up | KeyCode::Char('k') => screen.view_mut().scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => screen.view_mut().scroll(1),
        KeyCode::PageUp => screen.view_mut().scroll(-page),
        KeyCode::PageDown => screen.view_mut().scroll(page),
        KeyCode::Home | KeyCode::Char('g') => screen.view_mut().scroll(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => screen.view_mut().scroll(isize::MAX),
        KeyCode::Left => return select(screen, screen.proxies.len() - 1),
        KeyCode::Right => return select(screen, 1),
        KeyCode::Char('s') => {
            screen.view_mut().sort_by_next();
            return refreshed(screen);
        }
        KeyCode::Char('r') => {
            let view = screen.view_mut();
            (view.is_turned, view.first) = (!view.is_turned, 0);
            return refreshed(screen);
        }
        KeyCode::Char('/') => screen.mode = Mode::Filter,
        KeyCode::Char(' ') => {
            screen.is_paused = !screen.is_paused;
            return if screen.is_paused { KeyEffect::Nothing } else { KeyEffect::Look };
        }
        KeyCode::Char('?' | 'h') => screen.mode = Mode::Help,
        _ => {}
    }
    KeyEffect::Nothing
}

/// Selects the next or previous proxy, cyclically.
fn select(screen: &mut Screen, by: usize) -> KeyEffect {
    let selected = (screen.selected + by) % screen.proxies.len();
    if selected == screen.selected {
        return KeyEffect::Nothing;
    }
    screen.selected = selected;
    (screen.feeds.first, screen.watches.first) = (0, 0);
    KeyEffect::Look
}

/// Returns the effect of a changed filter or sort order. The proxy filters and sorts watches, so they need a poll.
/// Feeds are filtered here.
fn refreshed(screen: &Screen) -> KeyEffect {
    if screen.tab == Tab::Watches { KeyEffect::Look } else { KeyEffect::Nothing }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Presses keys one after another, and returns the effect of the last one.
    fn pressed(screen: &mut Screen, keys: &[KeyCode]) -> KeyEffect {
        let press = |key: &KeyCode| press(screen, KeyEvent::new(*key, KeyModifiers::NONE));
        keys.iter().map(press).last().unwrap_or(KeyEffect::Nothing)
    }

    fn screen() -> Screen {
        Screen::new(["a", "b", "c"].map(str::to_owned).into_iter(), Duration::from_secs(2), true)
    }

    /// Describes the whole state that keys can change.
    fn told(screen: &Screen) -> String {
        let (view, letter) = (screen.view(), ["a", "b", "c"][screen.selected]);
        let turned = if view.is_turned { "!" } else { "" };
        let paused = if screen.is_paused { " paused" } else { "" };
        let (tab, mode, order) = (screen.tab, screen.mode, view.order().name);
        format!("{letter} {tab:?} {mode:?} {order}{turned} {:?} {}{paused}", view.filter, view.first)
    }

    #[test]
    fn each_key_has_its_effect() {
        use KeyCode::{BackTab, Backspace, Char, Down, End, Enter, Esc, Home, Left, PageDown, PageUp, Right, Tab, Up};
        let table: [(&[KeyCode], KeyEffect, &str); 24] = [
            (&[], KeyEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Tab], KeyEffect::Nothing, "a Watches Tables behind \"\" 0"),
            (&[Tab, BackTab], KeyEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Down, Char('j'), Down, Up], KeyEffect::Nothing, "a Feeds Tables readers \"\" 2"),
            (&[Down, Down, Char('k')], KeyEffect::Nothing, "a Feeds Tables readers \"\" 1"),
            (&[PageDown, PageDown, PageUp], KeyEffect::Nothing, "a Feeds Tables readers \"\" 10"),
            (&[Down, End, Home], KeyEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Down, Char('g')], KeyEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Right], KeyEffect::Look, "b Feeds Tables readers \"\" 0"),
            (&[Down, Left], KeyEffect::Look, "c Feeds Tables readers \"\" 0"),
            (&[Right, Right, Right], KeyEffect::Look, "a Feeds Tables readers \"\" 0"),
            (&[Char('s')], KeyEffect::Nothing, "a Feeds Tables memory \"\" 0"),
            (&[Char('s'), Char('s'), Char('s')], KeyEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Tab, Char('s'), Down, Char('r')], KeyEffect::Look, "a Watches Tables since! \"\" 0"),
            (&[Char('r'), Char('s')], KeyEffect::Nothing, "a Feeds Tables memory \"\" 0"),
            (&[Char(' ')], KeyEffect::Nothing, "a Feeds Tables readers \"\" 0 paused"),
            (&[Char(' '), Char(' ')], KeyEffect::Look, "a Feeds Tables readers \"\" 0"),
            (&[Char('/'), Char('q'), Char('x'), Backspace], KeyEffect::Nothing, "a Feeds Filter readers \"q\" 0"),
            (&[Tab, Char('/'), Char('q'), Enter], KeyEffect::Look, "a Watches Tables behind \"q\" 0"),
            (&[Char('/'), Char('q'), Esc], KeyEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Tab, Char('/'), Char('q'), Enter, Esc], KeyEffect::Look, "a Watches Tables behind \"\" 0"),
            (&[Char('?')], KeyEffect::Nothing, "a Feeds Help readers \"\" 0"),
            (&[Char('?'), Char('q')], KeyEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Char('x')], KeyEffect::Nothing, "a Feeds Tables readers \"\" 0"),
        ];
        for (keys, effect, expected) in table {
            let mut screen = screen();
            (screen.feeds.page, screen.watches.page) = (10, 10);
            assert_eq!((pressed(&mut screen, keys), told(&screen).as_str()), (effect, expected), "{keys:?}");
        }
    }

    #[test]
    fn q_esc_and_ctrl_c_quit() {
        for keys in [&[KeyCode::Char('q')][..], &[KeyCode::Esc]] {
            assert_eq!(pressed(&mut screen(), keys), KeyEffect::Quit);
        }
        // The same holds in every mode.
        for first in ['/', '?'] {
            let mut screen = screen();
            pressed(&mut screen, &[KeyCode::Char(first)]);
            let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
            assert_eq!(press(&mut screen, interrupt), KeyEffect::Quit);
        }
    }

    #[test]
    fn watches_query_of_selected_proxy_has_order_and_filter() {
        let mut screen = screen();
        pressed(&mut screen, &[KeyCode::Tab, KeyCode::Char('/'), KeyCode::Char('x'), KeyCode::Enter]);
        pressed(&mut screen, &[KeyCode::Right, KeyCode::Char('s'), KeyCode::Char('r')]);
        let query = screen.query(1).expect("it is selected");
        assert_eq!((query.sort, query.is_up, query.text.as_str()), ("since", true, "x"));
        assert!(screen.query(0).is_none() && screen.query(2).is_none());
    }
}
