use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Where nobody redraws, a line so often.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// What is going on, for whoever watches: one line that is redrawn on a terminal, a plain line now and then elsewhere.
#[derive(Debug)]
pub struct ProgressLine {
    output: Output,
    phase: Mutex<String>,
    last: Mutex<Option<Instant>>,
}

#[derive(Debug)]
enum Output {
    Nobody,
    Lines,
    Terminal(ProgressBar),
}

impl ProgressLine {
    /// On standard error.
    pub fn open() -> Self {
        let output = if stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            // A wrong template would leave the library's own.
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            Output::Terminal(bar)
        } else {
            Output::Lines
        };
        Self::to(output)
    }

    /// For those who only want results.
    pub fn silent() -> Self {
        Self::to(Output::Nobody)
    }

    fn to(output: Output) -> Self {
        Self { output, phase: Mutex::new(String::new()), last: Mutex::new(None) }
    }

    /// Something else begins, which is always said.
    pub fn phase(&self, text: impl Into<String>) {
        let text = text.into();
        self.show(&text);
        *self.phase.lock() = text;
        *self.last.lock() = Some(Instant::now());
    }

    /// How far it has come, said if it is time to.
    pub fn tick(&self, text: impl FnOnce() -> String) {
        let mut last = self.last.lock();
        let is_due = last.is_none_or(|last| last.elapsed() >= LINE_EVERY);
        if is_due || matches!(self.output, Output::Terminal(_)) {
            self.show(&format!("{}: {}", self.phase.lock(), text()));
            *last = Some(Instant::now());
        }
    }

    pub fn created(&self, n: usize, of: usize) {
        if n.is_multiple_of(100) {
            self.tick(|| format!("{n} of {of}"));
        }
    }

    /// Nothing more is said.
    pub fn close(&self) {
        if let Output::Terminal(bar) = &self.output {
            bar.finish_and_clear();
        }
    }

    fn show(&self, text: &str) {
        match &self.output {
            Output::Nobody => {}
            // A closed stderr is no reason to stop.
            Output::Lines => drop(writeln!(stderr(), "{text}")),
            Output::Terminal(bar) => {
                bar.set_message(text.to_owned());
                bar.tick();
            }
        }
    }
}
