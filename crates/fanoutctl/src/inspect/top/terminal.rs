//! The loop that connects the terminal, its keys and the polls of proxies. Decisions are in `keys` and `screen`.

use std::time::Duration;

use crossterm::event::{Event, EventStream};
use futures_util::StreamExt as _;
use futures_util::future::{LocalBoxFuture, select_all};
use futures_util::stream::FuturesUnordered;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::EVERY_MIN;
use super::draw::draw;
use super::keys::{KeyPressEffect, press};
use super::poll::ProxyPollResult;
use super::screen::TopScreen;
use crate::inspect::{InspectError, ProxyTarget};

/// The terminal in its alternate screen. Dropping it restores the terminal, which also happens before a panic is
/// printed.
struct TerminalGuard(DefaultTerminal);

/// Polls in progress, each with the index of its proxy.
type PendingProxyPolls<'a> = FuturesUnordered<LocalBoxFuture<'a, (usize, Result<ProxyPollResult, InspectError>)>>;

/// The polls in progress, and the proxies that are due for a poll.
struct ProxyPoller<'a> {
    proxies: &'a [ProxyTarget],
    looks: PendingProxyPolls<'a>,
    /// Whether a poll of each proxy is in progress, and whether another is due when it has completed.
    is_asked: Vec<bool>,
    is_due: Vec<bool>,
}

/// The signals that end the loop: SIGTERM, SIGINT and SIGHUP.
struct ExitSignals(Vec<Signal>);

/// Shows the proxies until the user quits or a signal ends the process.
///
/// # Errors
/// If no proxy responds to the first poll, or the terminal cannot be used.
pub(super) async fn show(proxies: &[ProxyTarget], every: Duration, has_colours: bool) -> Result<(), InspectError> {
    let wrong = |error: std::io::Error| InspectError::of("terminal", error);
    let mut screen = TopScreen::new(proxies.iter().map(|proxy| proxy.name.clone()), every, has_colours);
    let mut looking = ProxyPoller::at(proxies);
    looking.begin(&screen);
    // The first poll runs before the screen opens, so that an error about a wrong address appears below the command.
    while let Some((nth, look)) = looking.next().await {
        let error = look.as_ref().err().cloned();
        screen.saw(nth, look, Instant::now());
        match error {
            None => break,
            Some(error) if looking.looks.is_empty() => return Err(error),
            Some(_) => {}
        }
    }
    let mut signals = ExitSignals::listen().map_err(wrong)?;
    let mut own = TerminalGuard(ratatui::try_init().map_err(wrong)?);
    let mut keys = EventStream::new();
    let mut ticks = interval(every.max(EVERY_MIN));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    loop {
        own.0.draw(|frame| draw(frame, &mut screen, Instant::now())).map_err(wrong)?;
        tokio::select! {
            event = keys.next() => match event {
                Some(Ok(Event::Key(key))) if key.is_press() => match press(&mut screen, key) {
                    KeyPressEffect::Quit => return Ok(()),
                    KeyPressEffect::Look => looking.is_due[screen.selected] = true,
                    KeyPressEffect::Nothing => {}
                },
                // Other events, such as a resize, only need the redraw.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(wrong(error)),
                None => return Ok(()),
            },
            Some((nth, look)) = looking.next(), if !looking.looks.is_empty() => screen.saw(nth, look, Instant::now()),
            _ = ticks.tick(), if !screen.is_paused => looking.is_due.fill(true),
            () = signals.any() => return Ok(()),
        }
        looking.begin(&screen);
    }
}

impl<'a> ProxyPoller<'a> {
    /// Returns a poller for which all proxies are due.
    fn at(proxies: &'a [ProxyTarget]) -> Self {
        let (is_asked, is_due) = (vec![false; proxies.len()], vec![true; proxies.len()]);
        Self { proxies, looks: PendingProxyPolls::new(), is_asked, is_due }
    }

    /// Starts a poll of each proxy that is due and has none in progress.
    fn begin(&mut self, screen: &TopScreen) {
        for (nth, proxy) in self.proxies.iter().enumerate() {
            if self.is_due[nth] && !self.is_asked[nth] {
                let query = screen.query(nth);
                self.looks.push(Box::pin(async move { (nth, ProxyPollResult::at(proxy, query.as_ref()).await) }));
                (self.is_due[nth], self.is_asked[nth]) = (false, true);
            }
        }
    }

    async fn next(&mut self) -> Option<(usize, Result<ProxyPollResult, InspectError>)> {
        let (nth, look) = self.looks.next().await?;
        self.is_asked[nth] = false;
        Some((nth, look))
    }
}

impl ExitSignals {
    fn listen() -> std::io::Result<Self> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        kinds.into_iter().map(signal).collect::<std::io::Result<_>>().map(Self)
    }

    async fn any(&mut self) {
        select_all(self.0.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // Errors are ignored, because the terminal may be closed.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}
