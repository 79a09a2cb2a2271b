use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::poll::{PollResult, WatchesQuery, WatchesResult};
use super::proxy::PolledProxy;
use super::view::{FEED_ORDERS, TableView, WATCH_ORDERS};
use crate::inspect::InspectError;

/// The state of the screen: the data of the proxies, and the selected view of it.
pub(super) struct Screen {
    pub(super) proxies: Vec<PolledProxy>,
    /// The proxy whose feeds and watches are shown.
    pub(super) selected: usize,
    pub(super) tab: Tab,
    pub(super) feeds: TableView,
    pub(super) watches: TableView,
    pub(super) mode: Mode,
    /// No proxy is looked at by itself.
    pub(super) is_paused: bool,
    pub(super) every: Duration,
    pub(super) has_colours: bool,
}

/// The table that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Feeds,
    Watches,
}

/// What keys are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Tables,
    /// Letters are written into the filter.
    Filter,
    Help,
}

/// Watches that are asked for. A filter finds others.
pub(super) const WATCHES_MAX: usize = 500;

impl Screen {
    /// A screen of these proxies, which are looked at again after `every`.
    pub(super) fn new(names: impl Iterator<Item = String>, every: Duration, has_colours: bool) -> Self {
        Self {
            proxies: names.map(|name| PolledProxy::new(name, every)).collect(),
            selected: 0,
            tab: Tab::Feeds,
            feeds: TableView::new(&FEED_ORDERS),
            watches: TableView::new(&WATCH_ORDERS),
            mode: Mode::Tables,
            is_paused: false,
            every,
            has_colours,
        }
    }

    pub(super) fn saw(&mut self, nth: usize, look: Result<PollResult, InspectError>, now: Instant) {
        if let Some(proxy) = self.proxies.get_mut(nth) {
            proxy.saw(look, now);
        }
    }

    /// Which watches of a proxy are wanted: of the selected one alone.
    pub(super) fn query(&self, nth: usize) -> Option<WatchesQuery> {
        let (view, limit) = (&self.watches, WATCHES_MAX);
        let query = || WatchesQuery { sort: view.order().name, is_up: view.is_up(), text: view.filter.clone(), limit };
        (nth == self.selected).then(query)
    }

    pub(super) fn proxy(&self) -> &PolledProxy {
        &self.proxies[self.selected]
    }

    pub(super) fn view(&self) -> &TableView {
        match self.tab {
            Tab::Feeds => &self.feeds,
            Tab::Watches => &self.watches,
        }
    }

    pub(super) fn view_mut(&mut self) -> &mut TableView {
        match self.tab {
            Tab::Feeds => &mut self.feeds,
            Tab::Watches => &mut self.watches,
        }
    }

    /// All rows of the table that is shown, as they came.
    pub(super) fn rows(&self) -> &[Value] {
        let Some(look) = &self.proxy().look else { return &[] };
        match (self.tab, &look.watches) {
            (Tab::Feeds, _) => &look.status.feeds,
            (Tab::Watches, WatchesResult::Shown { rows, .. }) => rows,
            (Tab::Watches, WatchesResult::NotAsked | WatchesResult::Hidden(_)) => &[],
        }
    }
}
