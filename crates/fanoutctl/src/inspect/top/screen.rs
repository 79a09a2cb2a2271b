use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::poll::{OpenWatchesQuery, OpenWatchesResult, ProxyPollResult};
use super::proxy::PolledProxy;
use super::view::{FEED_ORDERS, TopTableView, WATCH_ORDERS};
use crate::inspect::InspectError;

/// The state of the screen: the data of the proxies, and the selected view of it.
pub(super) struct TopScreen {
    pub(super) proxies: Vec<PolledProxy>,
    /// The index of the proxy whose feeds and watches are shown.
    pub(super) selected: usize,
    pub(super) tab: TopTab,
    pub(super) feeds: TopTableView,
    pub(super) watches: TopTableView,
    pub(super) mode: InputMode,
    /// Whether periodic polls are paused.
    pub(super) is_paused: bool,
    pub(super) every: Duration,
    pub(super) has_colours: bool,
}

/// The table that is selected for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopTab {
    Feeds,
    Watches,
}

/// The input mode, which determines the meaning of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputMode {
    Tables,
    /// Typed characters are added to the filter.
    Filter,
    Help,
}

/// The maximum number of watches to request. A filter finds the others.
pub(super) const WATCHES_MAX: usize = 500;

impl TopScreen {
    /// Returns a screen of these proxies, which are polled at intervals of `every`.
    pub(super) fn new(names: impl Iterator<Item = String>, every: Duration, has_colours: bool) -> Self {
        Self {
            proxies: names.map(|name| PolledProxy::new(name, every)).collect(),
            selected: 0,
            tab: TopTab::Feeds,
            feeds: TopTableView::new(&FEED_ORDERS),
            watches: TopTableView::new(&WATCH_ORDERS),
            mode: InputMode::Tables,
            is_paused: false,
            every,
            has_colours,
        }
    }

    pub(super) fn saw(&mut self, nth: usize, look: Result<ProxyPollResult, InspectError>, now: Instant) {
        if let Some(proxy) = self.proxies.get_mut(nth) {
            proxy.saw(look, now);
        }
    }

    /// Returns the query for a proxy's watches; `None` unless the proxy is selected.
    pub(super) fn query(&self, nth: usize) -> Option<OpenWatchesQuery> {
        let (view, limit) = (&self.watches, WATCHES_MAX);
        let query =
            || OpenWatchesQuery { sort: view.order().name, is_up: view.is_up(), text: view.filter.clone(), limit };
        (nth == self.selected).then(query)
    }

    pub(super) fn proxy(&self) -> &PolledProxy {
        &self.proxies[self.selected]
    }

    pub(super) fn view(&self) -> &TopTableView {
        match self.tab {
            TopTab::Feeds => &self.feeds,
            TopTab::Watches => &self.watches,
        }
    }

    pub(super) fn view_mut(&mut self) -> &mut TopTableView {
        match self.tab {
            TopTab::Feeds => &mut self.feeds,
            TopTab::Watches => &mut self.watches,
        }
    }

    /// Returns all rows of the selected table, in the proxy's order.
    pub(super) fn rows(&self) -> &[Value] {
        let Some(look) = &self.proxy().look else { return &[] };
        match (self.tab, &look.watches) {
            (TopTab::Feeds, _) => &look.status.feeds,
            (TopTab::Watches, OpenWatchesResult::Shown { rows, .. }) => rows,
            (TopTab::Watches, OpenWatchesResult::NotAsked | OpenWatchesResult::Hidden(_)) => &[],
        }
    }
}
