//! The bench: a load generator for any server with the apiserver's API. It runs many watches, writers that timestamp
//! their writes, and storms, and measures what all of that costs the server.
//!
//! ```text
//! BenchScenario + flags ─► BenchPlan ─► BenchRun ─► WatchFleet ─► WatchLoadConnection ─► BenchWatcher ─► WatchTally
//!                                          │                                                                 │
//!                                          └─► writers ─► the apiserver   server's usage ─► BenchRunOutcome ─► BenchResults
//! ```
//!
//! A caller that needs only the watches can use [`WatchFleet`] alone.
//!
//! **Invariants.** The bench does not import `cache`, `serve` or anything else that it measures. A delivery takes no
//! allocation and no lock of its own. A figure that cannot be measured is omitted. If the generator itself was the
//! bottleneck, the results say so.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod bench_options;
mod bench_run;
mod compare;
mod fleet;
mod frame_classifier;
mod gzip_inflater;
mod load_connection;
mod objects;
mod option_values;
mod order;
mod outcome;
mod plan;
mod population;
mod process;
mod report;
mod scenario;
mod shared;
mod storm;
mod stream_outcome;
mod tally;
mod text;
mod watcher;
mod writer;

pub use bench_options::{BenchOptions, MeasuredServer};
pub use compare::{BenchResults, FigureRatios, VariantFigures};
pub use fleet::WatchFleet;
pub use option_values::{ObjectEncoding, RequestStormKind, SelectorKind, WorkloadObjectKind, WriteMethod, WriteRate};
pub use order::run;
pub use outcome::{BenchFigures, BenchRunOutcome};
pub use plan::{BenchPlan, BenchPlanErrors, WatchGroup};
pub use process::MachineInfo;
pub use report::html;
pub use scenario::{BenchScenario, SCENARIOS, ScenarioVariant};
pub use tally::WatchCounts;
pub use text::render;

use probe::ProbeRequestError;
pub use probe::{ProgressLine, TargetCredentials, TargetError, TargetServer, WatchProtocol};

/// The reason that nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Server(#[from] TargetError),
    #[error("the benchmark target failed: {0}")]
    Target(String),
    #[error("cannot write benchmark objects to the target: {0}")]
    Write(String),
    #[error("cannot prepare the benchmark: {0}")]
    Prepare(String),
    #[error("cannot open the watches: {0}")]
    Open(String),
}

impl BenchError {
    fn write(error: &ProbeRequestError) -> Self {
        Self::Write(error.to_string())
    }
}
