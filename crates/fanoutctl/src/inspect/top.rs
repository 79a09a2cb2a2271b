//! Shows running proxies again and again: on a terminal as a screen with keys, elsewhere as text.
//!
//! What is shown (`Screen`), what keys do to it and how it is drawn know neither a terminal nor a clock. `terminal` is
//! the loop that has both.

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

/// How often, how much and how.
#[derive(Debug, Clone)]
pub struct TopOrder {
    pub every: Duration,
    /// Shown so many times; without end otherwise.
    pub times: Option<u64>,
    pub form: TopForm,
}

/// What is shown on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopForm {
    /// A terminal, whose screen is used as a whole.
    Screen {
        has_colours: bool,
    },
    Text,
}

/// Shows them until it is told to end.
///
/// # Errors
/// None of them answers when they are looked at for the first time, or nobody reads what is printed.
pub async fn top(proxies: &[AskedProxy], order: &TopOrder) -> Result<(), InspectError> {
    match order.form {
        TopForm::Screen { has_colours } => terminal::show(proxies, order.every, has_colours).await,
        TopForm::Text => plain::print(proxies, order).await,
    }
}
