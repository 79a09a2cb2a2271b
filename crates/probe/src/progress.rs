use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The interval between lines when the output is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// A progress display: one line that is redrawn on a terminal, or a plain line every few seconds elsewhere.
#[derive(Debug)]
pub struct ProgressLine {
    output: ProgressOutput,
    phase: Mutex<String>,
    last: Mutex<Option<Instant>>,
}

#[derive(Debug)]
enum ProgressOutput {
    Hidden,
    Lines,
    Terminal(ProgressBar),
}

impl ProgressLine {
    /// Opens a display on standard error.
    pub fn open() -> Self {
        let output = if stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            // If the template is invalid, the library's default style is used.
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            ProgressOutput::Terminal(bar)
        } else {
            ProgressOutput::Lines
        };
        Self::to(output)
    }

    /// Returns a display that prints nothing.
    pub fn silent() -> Self {
        Self::to(ProgressOutput::Hidden)
    }

    fn to(output: ProgressOutput) -> Self {
        Self { output, phase: Mutex::new(String::new()), last: Mutex::new(None) }
    }

    /// Begins a phase and always prints its name.
    pub fn phase(&self, text: impl Into<String>) {
        let text = text.into();
        self.show(&text);
        *self.phase.lock() = text;
        *self.last.lock() = Some(Instant::now());
    }

    /// Prints the progress within the phase. Without a terminal, at most one line per interval is printed.
    pub fn tick(&self, text: impl FnOnce() -> String) {
        let mut last = self.last.lock();
        let is_due = last.is_none_or(|last| last.elapsed() >= LINE_EVERY);
        if is_due || matches!(self.output, ProgressOutput::Terminal(_)) {
            self.show(&format!("{}: {}", self.phase.lock(), text()));
            *last = Some(Instant::now());
        }
    }

    pub fn created(&self, n: usize, of: usize) {
        if n.is_multiple_of(100) {
            self.tick(|| format!("{n} of {of}"));
        }
    }

    /// Clears the line. Nothing is printed afterwards.
    pub fn close(&self) {
        if let ProgressOutput::Terminal(bar) = &self.output {
            bar.finish_and_clear();
        }
    }

    fn show(&self, text: &str) {
        match &self.output {
            ProgressOutput::Hidden => {}
            // A closed stderr is no reason to stop.
            ProgressOutput::Lines => drop(writeln!(stderr(), "{text}")),
            ProgressOutput::Terminal(bar) => {
                bar.set_message(text.to_owned());
                bar.tick();
            }
        }
    }
}
