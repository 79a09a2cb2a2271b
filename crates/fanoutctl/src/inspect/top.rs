//! Shows running proxies live: interactive on a terminal, plain text elsewhere.
//!
//! `Screen`, the keys and the drawing use neither a terminal nor a clock. `terminal` is the loop that has both.

mod columns;
mod draw;
mod keys;
mod look;
mod plain;
mod proxy;
mod rates;
#[cfg(test)]
mod samples;
mod screen;
mod terminal;
mod view;

use std::time::Duration;

use super::{AskedProxy, InspectError};

/// The refresh interval, the number of refreshes and the output form.
#[derive(Debug, Clone)]
pub struct TopOrder {
    pub every: Duration,
    /// Number of refreshes; unlimited without it.
    pub times: Option<u64>,
    pub form: TopForm,
}

/// The output form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopForm {
    /// The full screen of a terminal.
    Screen {
        has_colours: bool,
    },
    Text,
}

/// Shows the proxies until it is stopped.
///
/// # Errors
/// No proxy responds to the first request, or standard output is closed.
pub async fn top(proxies: &[AskedProxy], order: &TopOrder) -> Result<(), InspectError> {
    match order.form {
        TopForm::Screen { has_colours } => terminal::show(proxies, order.every, has_colours).await,
        TopForm::Text => plain::print(proxies, order).await,
    }
}
