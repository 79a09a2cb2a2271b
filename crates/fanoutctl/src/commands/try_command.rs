//! The `try` command: runs a control plane, the proxy and informers on this machine. Keys or a script kill either
//! server. A line per second shows delivered and lost events.

mod note;
mod setup;
mod upstream;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::arguments::TryArguments;
use crate::trial::{
    InformerFleet, InformerFleetCounts, PressedKeys, TrialAction, TrialError, TrialScript, TrialWriters, until,
};
use kube_fanout::app::raise_open_files;
use setup::{TrialServers, TrialSetup};

/// A validated `try` command.
#[derive(Debug)]
pub struct TryCommand {
    arguments: TryArguments,
    script: TrialScript,
    /// The path of this binary, which also runs the proxy process.
    program: PathBuf,
}

const REDRAW: Duration = Duration::from_secs(1);
/// The longest wait for the informers' first sync.
const SYNC_MAX: Duration = Duration::from_secs(180);
/// The longest wait for the last changes. Those that arrive later count as lost.
const CATCH_UP_MAX: Duration = Duration::from_secs(60);
/// The time between a kill and the restart: long enough for the user to see the outage.
const AWAY: Duration = Duration::from_secs(1);

/// The result of a trial: whether each informer received every change exactly once and in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialVerdict {
    pub nothing_lost: bool,
}

impl TryCommand {
    /// Validates the arguments.
    ///
    /// # Errors
    /// If the script is invalid, or the path of this binary is unknown.
    pub fn of(arguments: TryArguments) -> Result<Self, String> {
        let script = arguments.script.as_deref().map(str::parse).transpose();
        let script = script.map_err(|why| format!("--script: {why}"))?.unwrap_or_default();
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program's own file: {error}"))?;
        Ok(Self { arguments, script, program })
    }

    /// Runs until a key, the script or `shutdown` ends it, and prints a summary.
    ///
    /// # Errors
    /// A [`TrialError`] if the control plane or the proxy does not start, or if the outcome of a write is unknown.
    #[inline(never)]
    pub fn run(self, shutdown: BoxFuture<'static, ()>) -> LocalBoxFuture<'static, Result<TrialVerdict, TrialError>> {
        Box::pin(self.run_until(shutdown))
    }

    async fn run_until(self, mut shutdown: BoxFuture<'static, ()>) -> Result<TrialVerdict, TrialError> {
        raise_open_files();
        let scene = tokio::select! {
            scene = TrialSetup::set(&self.arguments, &self.program) => scene?,
            () = &mut shutdown => return Err(TrialError::of("the trial", "interrupted before it started")),
        };
        let TrialSetup { servers, writers, crowd, admin_page, dir } = scene;
        let mut playing =
            RunningTrial { servers: Some(servers), writers, crowd, line: TrialStatusLine::default(), actions: [0; 2] };
        let played = playing.play(self.script, &admin_page, shutdown).await;
        let result = match played {
            Ok(()) => playing.verdict().await,
            Err(error) => Err(error),
        };
        playing.crowd.stop().await;
        if let Some(servers) = playing.servers.take() {
            servers.stop().await;
        }
        drop(dir);
        result
    }
}

/// A `try` command while it runs.
struct RunningTrial {
    /// The servers of the trial; `None` while an action restarts one of them.
    servers: Option<TrialServers>,
    writers: TrialWriters,
    crowd: InformerFleet,
    line: TrialStatusLine,
    /// The number of times that the apiserver and the proxy were killed.
    actions: [u32; 2],
}

/// The result of an action: the servers, and the error if it failed.
type TrialActionResult = (TrialServers, Result<(), TrialError>);

impl RunningTrial {
    async fn play(
        &mut self,
        mut script: TrialScript,
        page: &str,
        mut shutdown: BoxFuture<'static, ()>,
    ) -> Result<(), TrialError> {
        let output = |error: io::Error| TrialError::of("the terminal", error);
        let by_script = script.next_at().is_some();
        let mut keys = if by_script { None } else { PressedKeys::listen().map_err(output)? };
        tokio::select! {
            synced = self.synced() => synced?,
            () = &mut shutdown => return Err(TrialError::of("the trial", "interrupted before it started")),
        }
        introduce(page, keys.is_some()).map_err(output)?;
        let (began, mut ticks) = (Instant::now(), interval(REDRAW));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut doing: Option<LocalBoxFuture<'static, TrialActionResult>> = None;
        loop {
            let due = script.next_at().map(|at| began + at);
            let action = tokio::select! {
                biased;
                () = &mut shutdown => return self.settle(doing).await,
                (servers, done) = finished(&mut doing) => {
                    doing = None;
                    self.servers = Some(servers);
                    done?;
                    self.line.say("  restarted").map_err(output)?;
                    None
                }
                _ = ticks.tick() => {
                    let counts = self.crowd.judge(self.writers.ledger());
                    self.line.draw(began.elapsed(), &counts).map_err(output)?;
                    None
                }
                key = next_key(&mut keys) => TrialAction::of_key(key),
                // Actions run one at a time. A scripted action waits until the previous one has completed.
                () = sleep_until(due.unwrap_or(began)), if due.is_some() && doing.is_none() => script.take(),
            };
            match (action, self.servers.take()) {
                (Some(TrialAction::Quit), servers) => {
                    self.servers = servers;
                    return self.settle(doing).await;
                }
                (Some(action), Some(servers)) => {
                    let (count, what) = match action {
                        TrialAction::Apiserver => (&mut self.actions[0], "  apiserver killed"),
                        TrialAction::Proxy | TrialAction::Quit => (&mut self.actions[1], "  proxy killed"),
                    };
                    *count += 1;
                    self.line.say(what).map_err(output)?;
                    doing = Some(Box::pin(servers.again(action, AWAY)));
                }
                (Some(_), None) => self.line.say("  ignored: the killed server is still restarting").map_err(output)?,
                (None, servers) => self.servers = servers,
            }
        }
    }

    /// Waits for the action in progress, if there is one.
    async fn settle(&mut self, doing: Option<LocalBoxFuture<'static, TrialActionResult>>) -> Result<(), TrialError> {
        if let Some(doing) = doing {
            let (servers, done) = doing.await;
            self.servers = Some(servers);
            return done;
        }
        Ok(())
    }

    /// Waits until every informer has synced once.
    async fn synced(&self) -> Result<(), TrialError> {
        let missing = || {
            let counts = self.crowd.judge(self.writers.ledger());
            counts.informers - counts.synced
        };
        until(SYNC_MAX, async || (missing() == 0).then_some(())).await.ok_or_else(|| {
            let complaint = self.crowd.complaint().unwrap_or_else(|| "no data received".to_owned());
            TrialError::of(&format!("{} informers did not sync in time", missing()), complaint)
        })
    }

    /// Stops the writers, waits for the last events, compares the informers with the ledger, and prints the summary.
    async fn verdict(&self) -> Result<TrialVerdict, TrialError> {
        if !self.writers.finish().await {
            return Err(TrialError::of("the last writes", "their outcome is unknown"));
        }
        let is_behind = || self.crowd.judge(self.writers.ledger()).behind > 0;
        // The counts say whether all informers caught up in time.
        let _ = until(CATCH_UP_MAX, async || (!is_behind()).then_some(())).await;
        let counts = self.crowd.judge_all(self.writers.ledger());
        let text = summary(&counts, self.writers.ledger().written(), self.actions);
        self.line.say(&text).map_err(|error| TrialError::of("the terminal", error))?;
        Ok(TrialVerdict { nothing_lost: counts.lost == 0 && counts.wrong == 0 && counts.behind == 0 })
    }
}

/// Waits for the action in progress. Without one, it never completes.
async fn finished(doing: &mut Option<LocalBoxFuture<'static, TrialActionResult>>) -> TrialActionResult {
    match doing {
        Some(doing) => doing.await,
        None => std::future::pending().await,
    }
}

async fn next_key(keys: &mut Option<PressedKeys>) -> u8 {
    match keys {
        Some(keys) => match keys.next().await {
            Some(key) => key,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

fn introduce(page: &str, has_keys: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "\nLive page:  {page}\n")?;
    if has_keys {
        writeln!(out, "Keys: a kills and restarts the apiserver, p kills and restarts the proxy, q quits\n")?;
    }
    out.flush()
}

fn summary(counts: &InformerFleetCounts, written: u64, [apiserver, proxy]: [u32; 2]) -> String {
    let InformerFleetCounts { informers, delivered, lost, wrong, relists, behind, .. } = *counts;
    let late = if behind > 0 {
        format!("{behind} informers did not receive the last change in time.\n")
    } else {
        String::new()
    };
    let verdict = if lost + wrong + behind == 0 {
        "Nothing was lost: each informer received every change, and its state equals upstream."
    } else {
        "Events were lost, wrong or late."
    };
    format!(
        "\n{written} changes were written; {informers} informers received {delivered} events.\n\
         The apiserver was killed {}, the proxy {}.\n\
         {lost} lost, {wrong} wrong or duplicate, {relists} relists.\n{late}{verdict}",
        times(apiserver),
        times(proxy),
    )
}

fn times(count: u32) -> String {
    match count {
        0 => "0 times".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        _ => format!("{count} times"),
    }
}

/// A status line that is redrawn in place on a terminal, and printed as a new line elsewhere.
#[derive(Debug)]
struct TrialStatusLine {
    is_terminal: bool,
    last: Option<(Duration, u64)>,
}

impl Default for TrialStatusLine {
    fn default() -> Self {
        Self { is_terminal: io::stdout().is_terminal(), last: None }
    }
}

/// The terminal sequence that moves to the start of the line and erases it.
const AGAIN: &str = "\r\x1b[K";

impl TrialStatusLine {
    fn draw(&mut self, elapsed: Duration, counts: &InformerFleetCounts) -> io::Result<()> {
        let InformerFleetCounts { informers, streams_open, delivered, lost, wrong, relists, behind, .. } = *counts;
        let (before, had) = self.last.replace((elapsed, delivered)).unwrap_or((Duration::ZERO, delivered));
        let per_second = delivered.saturating_sub(had) as f64 / elapsed.saturating_sub(before).as_secs_f64().max(0.001);
        let mut out = io::stdout().lock();
        if self.is_terminal {
            write!(out, "{AGAIN}")?;
        }
        write!(
            out,
            "{:>4} s  {delivered} events delivered, {per_second:.0}/s · lost {lost} · wrong {wrong} · \
             relists {relists} · {streams_open} of {informers} streams · {behind} behind",
            elapsed.as_secs()
        )?;
        if !self.is_terminal {
            writeln!(out)?;
        }
        out.flush()
    }

    /// Prints a line that is not redrawn.
    fn say(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}{text}", if self.is_terminal { AGAIN } else { "" })?;
        out.flush()
    }
}
