use tokio_util::sync::CancellationToken;

use super::BenchError;
use super::bench_options::{BenchOptions, MeasuredServer};
use super::bench_run::{BenchRun, mib};
use super::compare::BenchResults;
use super::objects::WorkloadObjects;
use super::outcome::{BenchFigures, BenchRunOutcome};
use super::population;
use super::process::ServerUsageSource;
use super::storm::requests;
use base::BackgroundTasks;
use probe::{ProgressLine, TargetServer, UnaryClient, WatchProtocol};

/// Runs every variant against every side for the configured number of rounds. The sides alternate in going first.
///
/// # Errors
/// If something could not be measured at all. An early end by the user is not an error.
pub async fn run(
    order: &BenchOptions,
    progress: &ProgressLine,
    stop: &CancellationToken,
) -> Result<BenchResults, BenchError> {
    let tasks = BackgroundTasks::new();
    let ran = run_all(order, progress, stop, &tasks).await;
    tasks.join().await;
    progress.close();
    Ok(BenchResults::of(order, ran?))
}

async fn run_all(
    order: &BenchOptions,
    progress: &ProgressLine,
    stop: &CancellationToken,
    tasks: &BackgroundTasks,
) -> Result<Vec<BenchRunOutcome>, BenchError> {
    let write = order.credentials.target(&order.write).await?;
    let mut sides = Vec::new();
    for side in &order.sides {
        let target = order.credentials.target(&side.url).await?;
        let costs = costs(side, order, tasks).await?;
        sides.push((side, target, costs));
    }
    let caller = UnaryClient::new(&write, WatchProtocol::H2, tasks);
    let mut outcomes = Vec::new();
    let mut made: Vec<WorkloadObjects> = Vec::new();
    let mut failed = None;
    'all: for variant in &order.variants {
        let objects = WorkloadObjects::of(&variant.plan);
        progress.phase(format!("{} objects at {}", objects.count, order.write));
        // Before they are created, so that a run that is stopped meanwhile deletes them too.
        made.push(objects.clone());
        let creating = population::create(&caller, &objects, variant.plan.object_bytes, progress);
        let created = tokio::select! {
            created = creating => created,
            () = stop.cancelled() => break,
        };
        if let Err(error) = created {
            failed = Some(error);
            break;
        }
        for round in 0..order.rounds {
            let turn = |n: usize| if round % 2 == 0 { n } else { sides.len() - 1 - n };
            for n in 0..sides.len() {
                let (side, target, costs) = &sides[turn(n)];
                let session = BenchRun {
                    plan: &side.plan(&variant.plan),
                    objects: &objects,
                    target,
                    write: &write,
                    costs,
                    progress,
                    stop,
                    tasks,
                };
                let of = [side.name.as_str(), variant.name.as_str()].join(" ");
                progress.phase(format!("{}, round {}", of.trim_end(), round + 1));
                match measured(&session).await {
                    Ok(outcome) => outcomes.push(BenchRunOutcome {
                        side: side.name.clone(),
                        variant: variant.name.clone(),
                        round,
                        ..outcome
                    }),
                    Err(error) => failed = Some(error),
                }
                if failed.is_some() || stop.is_cancelled() {
                    break 'all;
                }
            }
        }
    }
    if !order.keep {
        clean_up(&caller, &made, progress).await;
    }
    failed.map_or(Ok(outcomes), Err)
}

/// Makes one run, and cleans up after it even if the user ends it early.
///
/// # Errors
/// If nothing could be measured.
async fn measured(session: &BenchRun<'_>) -> Result<BenchRunOutcome, BenchError> {
    let mut outcome = BenchRunOutcome {
        side: String::new(),
        target: session.target.url().to_owned(),
        variant: String::new(),
        round: 0,
        interrupted: false,
        figures: BenchFigures::default(),
        percentiles: Vec::new(),
        cipher: None,
        notes: Vec::new(),
    };
    let has_peak = session.costs.reset_peak();
    if session.plan.is_of_requests() {
        requests::run(session, &mut outcome).await?;
    } else {
        session.watches(&mut outcome).await?;
    }
    let end = session.costs.sample().await;
    let peak = end.peak_bytes.filter(|_| has_peak);
    outcome.figures.put_some("memory_peak_mib", peak.map(mib));
    outcome.interrupted = session.stop.is_cancelled();
    Ok(outcome)
}

/// Deletes the created objects. A failure is printed, and changes no figure.
async fn clean_up(caller: &UnaryClient, made: &[WorkloadObjects], progress: &ProgressLine) {
    progress.phase("cleaning up");
    for objects in made {
        if let Err(error) = population::delete(caller, objects).await {
            tracing::warn!(%error, "cleanup failed; some created objects remain in the cluster");
        }
    }
}

async fn costs(
    side: &MeasuredServer,
    order: &BenchOptions,
    tasks: &BackgroundTasks,
) -> Result<ServerUsageSource, BenchError> {
    let Some(metrics) = &side.metrics else { return Ok(ServerUsageSource::of(side.pid, None, tasks)) };
    let at = metrics.find("://").map_or(0, |at| at + 3);
    let (server, path) = metrics.split_at(metrics[at..].find('/').map_or(metrics.len(), |slash| at + slash));
    let target: TargetServer = order.credentials.target(server).await?;
    let path = if path.is_empty() { "/metrics" } else { path };
    Ok(ServerUsageSource::of(side.pid, Some((&target, path)), tasks))
}
