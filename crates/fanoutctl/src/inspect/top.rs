//! Shows running proxies live: interactive on a terminal, plain text elsewhere.
//!
//! `TopScreen`, the keys and the drawing use neither a terminal nor a clock. Only the loop in `terminal` uses both.

mod columns;
mod draw;
mod keys;
mod plain;
mod poll;
mod proxy;
mod rates;
#[cfg(test)]
mod samples;
mod screen;
mod terminal;
mod view;

use std::time::Duration;

use super::{InspectError, ProxyTarget};

/// The refresh interval, the number of refreshes and the output form.
#[derive(Debug, Clone)]
pub struct TopOptions {
    pub every: Duration,
    /// The number of refreshes; unlimited if `None`.
    pub times: Option<u64>,
    pub form: TopOutput,
}

/// The minimum refresh interval. A shorter one would leave no time for keys and drawing, and load the proxies.
const EVERY_MIN: Duration = Duration::from_millis(10);

/// The output form of `top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopOutput {
    /// The full screen of a terminal.
    Screen {
        has_colours: bool,
    },
    Text,
}

/// Shows the proxies until the user or a signal stops it.
///
/// # Errors
/// If no proxy responds to the first request, or standard output cannot be written.
pub async fn top(proxies: &[ProxyTarget], order: &TopOptions) -> Result<(), InspectError> {
    match order.form {
        TopOutput::Screen { has_colours } => terminal::show(proxies, order.every, has_colours).await,
        TopOutput::Text => plain::print(proxies, order).await,
    }
}
