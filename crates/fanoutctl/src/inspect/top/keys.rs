//! Handles the keys of `top`.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::screen::{InputMode, TopScreen, TopTab};

/// The effect of a key besides a redraw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyPressEffect {
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
pub(super) fn press(screen: &mut TopScreen, key: KeyEvent) -> KeyPressEffect {
    if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
        return KeyPressEffect::Quit;
    }
    match screen.mode {
        InputMode::Help => {
            screen.mode = InputMode::Tables;
            KeyPressEffect::Nothing
        }
        InputMode::Filter => write(screen, key),
        InputMode::Tables => choose(screen, key.code),
    }
}

/// The maximum length of a filter, in characters.
const FILTER_CHARS_MAX: usize = 100;

fn write(screen: &mut TopScreen, key: KeyEvent) -> KeyPressEffect {
    let filter = &mut screen.view_mut().filter;
    match key.code {
        KeyCode::Char(letter) if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
            if filter.chars().count() < FILTER_CHARS_MAX {
                filter.push(letter);
            }
            KeyPressEffect::Nothing
        }
        KeyCode::Backspace => {
            filter.pop();
            KeyPressEffect::Nothing
        }
        KeyCode::Enter => {
            screen.mode = InputMode::Tables;
            refreshed(screen)
        }
        KeyCode::Esc => {
            filter.clear();
            screen.mode = InputMode::Tables;
            refreshed(screen)
        }
        _ => KeyPressEffect::Nothing,
    }
}

fn choose(screen: &mut TopScreen, key: KeyCode) -> KeyPressEffect {
    let page = isize::try_from(screen.view().page).unwrap_or(1);
    match key {
        KeyCode::Char('q') => return KeyPressEffect::Quit,
        KeyCode::Esc if screen.view().filter.is_empty() => return KeyPressEffect::Quit,
        KeyCode::Esc => {
            screen.view_mut().filter.clear();
            return refreshed(screen);
        }
        KeyCode::Tab | KeyCode::BackTab => {
            screen.tab = if screen.tab == TopTab::Feeds { TopTab::Watches } else { TopTab::Feeds };
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
        KeyCode::Char('/') => screen.mode = InputMode::Filter,
        KeyCode::Char(' ') => {
            screen.is_paused = !screen.is_paused;
            return if screen.is_paused { KeyPressEffect::Nothing } else { KeyPressEffect::Look };
        }
        KeyCode::Char('?' | 'h') => screen.mode = InputMode::Help,
        _ => {}
    }
    KeyPressEffect::Nothing
}

/// Selects the next or previous proxy, cyclically.
fn select(screen: &mut TopScreen, by: usize) -> KeyPressEffect {
    let selected = (screen.selected + by) % screen.proxies.len();
    if selected == screen.selected {
        return KeyPressEffect::Nothing;
    }
    screen.selected = selected;
    (screen.feeds.first, screen.watches.first) = (0, 0);
    KeyPressEffect::Look
}

/// Returns the effect of a changed filter or sort order. The proxy filters and sorts watches, so they need a poll.
/// Feeds are filtered here.
fn refreshed(screen: &TopScreen) -> KeyPressEffect {
    if screen.tab == TopTab::Watches { KeyPressEffect::Look } else { KeyPressEffect::Nothing }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Presses keys one after another, and returns the effect of the last one.
    fn pressed(screen: &mut TopScreen, keys: &[KeyCode]) -> KeyPressEffect {
        let press = |key: &KeyCode| press(screen, KeyEvent::new(*key, KeyModifiers::NONE));
        keys.iter().map(press).last().unwrap_or(KeyPressEffect::Nothing)
    }

    fn screen() -> TopScreen {
        TopScreen::new(["a", "b", "c"].map(str::to_owned).into_iter(), Duration::from_secs(2), true)
    }

    /// Describes the whole state that keys can change.
    fn state_text(screen: &TopScreen) -> String {
        let (view, letter) = (screen.view(), ["a", "b", "c"][screen.selected]);
        let turned = if view.is_turned { "!" } else { "" };
        let paused = if screen.is_paused { " paused" } else { "" };
        let (tab, mode, order) = (screen.tab, screen.mode, view.order().name);
        format!("{letter} {tab:?} {mode:?} {order}{turned} {:?} {}{paused}", view.filter, view.first)
    }

    #[test]
    fn each_key_has_its_effect() {
        use KeyCode::{BackTab, Backspace, Char, Down, End, Enter, Esc, Home, Left, PageDown, PageUp, Right, Tab, Up};
        let table: [(&[KeyCode], KeyPressEffect, &str); 24] = [
            (&[], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Tab], KeyPressEffect::Nothing, "a Watches Tables behind \"\" 0"),
            (&[Tab, BackTab], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Down, Char('j'), Down, Up], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 2"),
            (&[Down, Down, Char('k')], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 1"),
            (&[PageDown, PageDown, PageUp], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 10"),
            (&[Down, End, Home], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Down, Char('g')], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Right], KeyPressEffect::Look, "b Feeds Tables readers \"\" 0"),
            (&[Down, Left], KeyPressEffect::Look, "c Feeds Tables readers \"\" 0"),
            (&[Right, Right, Right], KeyPressEffect::Look, "a Feeds Tables readers \"\" 0"),
            (&[Char('s')], KeyPressEffect::Nothing, "a Feeds Tables memory \"\" 0"),
            (&[Char('s'), Char('s'), Char('s')], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Tab, Char('s'), Down, Char('r')], KeyPressEffect::Look, "a Watches Tables since! \"\" 0"),
            (&[Char('r'), Char('s')], KeyPressEffect::Nothing, "a Feeds Tables memory \"\" 0"),
            (&[Char(' ')], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 0 paused"),
            (&[Char(' '), Char(' ')], KeyPressEffect::Look, "a Feeds Tables readers \"\" 0"),
            (&[Char('/'), Char('q'), Char('x'), Backspace], KeyPressEffect::Nothing, "a Feeds Filter readers \"q\" 0"),
            (&[Tab, Char('/'), Char('q'), Enter], KeyPressEffect::Look, "a Watches Tables behind \"q\" 0"),
            (&[Char('/'), Char('q'), Esc], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Tab, Char('/'), Char('q'), Enter, Esc], KeyPressEffect::Look, "a Watches Tables behind \"\" 0"),
            (&[Char('?')], KeyPressEffect::Nothing, "a Feeds Help readers \"\" 0"),
            (&[Char('?'), Char('q')], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 0"),
            (&[Char('x')], KeyPressEffect::Nothing, "a Feeds Tables readers \"\" 0"),
        ];
        for (keys, effect, expected) in table {
            let mut screen = screen();
            (screen.feeds.page, screen.watches.page) = (10, 10);
            assert_eq!((pressed(&mut screen, keys), state_text(&screen).as_str()), (effect, expected), "{keys:?}");
        }
    }

    #[test]
    fn q_esc_and_ctrl_c_quit() {
        for keys in [&[KeyCode::Char('q')][..], &[KeyCode::Esc]] {
            assert_eq!(pressed(&mut screen(), keys), KeyPressEffect::Quit);
        }
        // The same holds in every mode.
        for first in ['/', '?'] {
            let mut screen = screen();
            pressed(&mut screen, &[KeyCode::Char(first)]);
            let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
            assert_eq!(press(&mut screen, interrupt), KeyPressEffect::Quit);
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
