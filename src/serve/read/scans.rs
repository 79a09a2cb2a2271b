//! Turns at the CPU for reads that look at many objects.

use std::sync::Arc;

use http::Response;

use super::request::{NotServable, ReadRequest, ReadResult};
use crate::auth::{Permit, Readable};
use crate::cache::{Snapshot, View};
use crate::listing::{CpuSlices, OverLimit, ScanBudget, ScanPace, ScanQueue, cost, namespace_check};
use crate::serve::response::{ReplyBody, too_many};
use crate::serve::route::ForwardReason;
use base::half_of_the_cores;
use kubeapi::Status;

const TOO_DEAR: &str = "the selectors are too expensive for a list of the permitted namespaces; simplify them, or list \
                        one namespace at a time";

/// The queue of scans and the CPU slices of callers, which LISTs and watches share.
#[derive(Debug, Clone)]
pub(crate) struct ScanScheduler {
    queue: ScanQueue,
    slices: CpuSlices,
}

impl ScanScheduler {
    pub(crate) fn new() -> Self {
        Self { queue: ScanQueue::at_a_time(half_of_the_cores()), slices: CpuSlices::new(half_of_the_cores()) }
    }

    /// Prepares a scan with this cost. A scan above a minimum cost waits for its turn.
    pub(crate) async fn pace(&self, request: &ReadRequest, cost: usize) -> Result<ScanPace, OverLimit> {
        let whose = request.caller.payer();
        let turn = if cost > cost::SMALL { Some(self.queue.turn(whose.clone()).await?) } else { None };
        Ok(ScanPace::new(turn, (self.queue.clone(), self.slices.clone()), whose))
    }

    /// Returns the budget of a stream, which scans objects for as long as it lasts.
    pub(crate) fn budget(&self, request: &ReadRequest, is_expensive: bool) -> ScanBudget {
        ScanBudget::new(self.slices.clone(), request.caller.payer(), is_expensive)
    }

    /// Returns the namespaces with something to show, after their permissions are decided.
    pub(crate) async fn permitted_namespaces(
        &self,
        request: &ReadRequest,
        part: &Readable,
        state: &Snapshot,
        (view, start): (&View, Option<&str>),
        retry_seconds: u32,
    ) -> Result<Vec<Arc<str>>, Box<Response<ReplyBody>>> {
        // Only reads across namespaces show a part of a collection.
        let pace = self.pace(request, cost::of_scan(view, true, state)).await;
        let mut pace = pace.map_err(|shed| Box::new(request.context.status(&too_many(shed, retry_seconds))))?;
        let namespaces = namespace_check::namespaces(state, view, start, Readable::ASKED_MAX, &mut pace).await;
        // Ends the turn, so that other scans do not wait for authorization responses from upstream.
        drop(pace);
        let asked = part.find_out(namespaces.iter().map(|namespace| &**namespace)).await;
        asked.map(|()| namespaces).map_err(|refused| Box::new(request.turned_away(&refused)))
    }
}

/// Handles a read that costs too much. It is forwarded, unless it is for the readable part of a collection. Upstream
/// would deny that without giving a reason, so the proxy rejects it.
pub(crate) fn too_expensive(request: &ReadRequest, permit: &Permit) -> ReadResult {
    if permit.part().is_none() {
        return Err(NotServable::Forward(ForwardReason::ExpensiveSelector));
    }
    Ok(request.context.status(&Status::bad_request(TOO_DEAR)))
}
