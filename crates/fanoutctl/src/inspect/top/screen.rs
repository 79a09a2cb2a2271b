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
    /// The index of the proxy whose feeds and watches are shown.
    pub(super) selected: usize,
    pub(super) tab: Tab,
    pub(super) feeds: TableView,
    pub(super) watches: TableView,
    pub(super) mode: Mode,
    /// Whether periodic polls are paused.
    pub(super) is_paused: bool,
    pub(super) every: Duration,
    pub(super) has_colours: bool,
}

/// The table that is selected for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    Feeds,
    Watches,
}

/// The input mode, which determines the meaning of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Tables,
    /// Typed characters are added to the filter.
    Filter,
    Help,
}

/// The maximum number of watches to request. A filter finds the others.
pub(super) const WATCHES_MAX: usize = 500;

impl Screen {
    /// Returns a screen of these proxies, which are polled at intervals of `every`.
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

    /// Returns the query for a proxy's watches; `None` unless the proxy is selected.
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

    /// Returns all rows of the selected table, in the proxy's order.
    pub(super) fn rows(&self) -> &[Value] {
        let Some(look) = &self.proxy().look else { return &[] };
        match (self.tab, &look.watches) {
            (Tab::Feeds, _) => &look.status.feeds,
            (Tab::Watches, WatchesResult::Shown { rows, .. }) => rows,
            (Tab::Watches, WatchesResult::NotAsked | WatchesResult::Hidden(_)) => &[],
        }
    }
}
