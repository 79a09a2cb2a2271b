//! Table LISTs for callers who may read only some namespaces: upstream's own rows, requested as the proxy.
//!
//! **Invariant.** Of a row that the caller may not see, the response has nothing: no cell, no count, and no name in a
//! continue token.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::timeout;

use super::coalesce::{CoalesceError, CoalesceKey, CoalescedResponse};
use super::{ForwardHandler, SHARED_BYTES_MAX, permit_for, unreachable};
use crate::auth::{ReadPermission, ReadableNamespaces};
use crate::listing::{ListPageRequest, gzip};
use crate::serve::activity::metrics;
use crate::serve::limits::{BufferedResponseBody, ConcurrencyPermit};
use crate::serve::read::{CacheReadResult, NotServable, ReadRequest};
use crate::serve::response::{ResponseBody, denied_status, gzipped};
use crate::serve::route::ForwardReason;
use crate::upstream::{RequestIdentity, UpstreamError, UpstreamRequestCause, UpstreamRequestKind, UpstreamResource};
use crate::wire::{IncludeObjectPolicy, Representation, TABLE_ACCEPT, TablePage, table_list};
use kubeapi::{
    AccessAttributes, ContinueToken, ContinueVersion, FlowDistinguisher, ObjectKey, ResourceVersionMatch, Status,
    UrlQuery,
};

/// The rows of one upstream request, and the maximum size of the response in bytes, which bounds memory and the time to
/// parse it. If a page exceeds it because its objects are large, smaller pages follow.
const PAGES: [(usize, usize); 4] = [(500, 2 << 20), (100, 2 << 20), (10, 2 << 20), (1, SHARED_BYTES_MAX)];
const DRAINED: &str = "the proxy is shutting down; try again";

/// A filtered Table, while its pages are read.
struct FilteredTable<'a> {
    request: &'a ReadRequest,
    permission: &'a ReadPermission,
    part: &'a ReadableNamespaces,
    resource: &'a UpstreamResource,
    read: &'a ListPageRequest,
    include: IncludeObjectPolicy,
    flow: Option<FlowDistinguisher>,
    /// The visible rows, separated by commas, and their number.
    rows: String,
    count: usize,
    last: Option<ObjectKey>,
    permits: Vec<Arc<ConcurrencyPermit>>,
}

/// What follows a page.
enum AfterPage {
    /// The page from this token on.
    Page(String),
    /// The end of the response, and the caller's token for the rows after it; empty if there are none.
    End(String),
}

impl ForwardHandler {
    /// Returns the rows of a Table LIST whose namespaces the caller may read.
    pub(crate) async fn filtered_table(
        &self,
        request: &ReadRequest,
        permission: &ReadPermission,
        resource: &UpstreamResource,
        read: ListPageRequest,
    ) -> CacheReadResult {
        let (Some(part), Representation::Table(include)) = (permission.namespaces(), read.representation) else {
            return Err(NotServable::Forward(ForwardReason::Table));
        };
        if !permission.covers(&resource.gvr, resource.namespaced, None, read.view.name()) {
            return Err(NotServable::Forward(ForwardReason::PermissionMismatch));
        }
        metrics::forwarded(ForwardReason::Table);
        let flow = request.caller.flow();
        let _permit = self.concurrency.filtered_table(flow.as_ref())?;
        let (rows, permits) = (String::new(), Vec::new());
        let table = FilteredTable {
            request,
            permission,
            part,
            resource,
            read: &read,
            include,
            flow,
            rows,
            count: 0,
            last: None,
            permits,
        };
        let max = self.slow_readers.body_max();
        let read = timeout(max, Box::pin(self.read_pages(table))).await;
        let ([head, rows, tail], permits) = read.unwrap_or_else(|_| Err(failed(&UpstreamError::Timeout(max))))?;
        let is_gzip = request.context.compresses(rows.len());
        let body = if is_gzip {
            let plain = Bytes::from([head, rows, tail].concat());
            BufferedResponseBody::from_bytes(gzip::compress(plain).await, permits)
        } else {
            BufferedResponseBody::new([head, rows, tail], permits)
        };
        let body = ResponseBody::whole(body, &self.slow_readers, request.context.abort.clone());
        let response = request.context.composed(body);
        Ok(if is_gzip { gzipped(response) } else { response })
    }

    /// Reads pages until the table has the requested rows. Returns it in three parts.
    async fn read_pages(
        &self,
        mut table: FilteredTable<'_>,
    ) -> Result<([Bytes; 3], Vec<Arc<ConcurrencyPermit>>), NotServable> {
        let (mut namespaces, mut sizes) = (BTreeSet::new(), PAGES.as_slice());
        let mut from = table.read.plan.start.is_some().then(|| table.request.query.first("continue")).flatten();
        let mut token;
        while let [(rows, bytes_max), smaller @ ..] = sizes {
            let page = match self.table_page(table.flow.clone(), table.path(from, *rows), *bytes_max).await {
                Ok(page) => page,
                Err(error) => match &*error {
                    CoalesceError::TooLarge if !smaller.is_empty() => {
                        sizes = smaller;
                        continue;
                    }
                    CoalesceError::TooLarge => return Err(failed(&UpstreamError::TooLarge(*bytes_max))),
                    CoalesceError::Failed(error) => return Err(failed(error)),
                },
            };
            let page = TablePage::parse(&page.body, table.resource.namespaced);
            let page = page.map_err(|error| failed(&UpstreamError::Wire(error)))?;
            namespaces.extend(page.rows.iter().map(|row| row.key.namespace_or_name().to_owned()));
            table.part.review_all(namespaces.iter().map(String::as_str)).await.map_err(|error| {
                let ReadRequest { caller, info, .. } = table.request;
                let access = AccessAttributes::from_request(info);
                NotServable::Refuse(Box::new(denied_status(&error, caller.name(), &access)))
            })?;
            let before = table.rows.len();
            let after = table.put(&page);
            let permit = self.concurrency.buffered(table.flow.as_ref(), table.rows.len() - before)?;
            table.permits.push(Arc::new(permit));
            match after {
                AfterPage::Page(next) => {
                    token = next;
                    from = Some(&token);
                }
                AfterPage::End(next) => {
                    let [head, tail] = table_list(&page, &next);
                    return Ok(([head, table.rows.into(), tail], table.permits));
                }
            }
        }
        unreachable!("a page of one row is the last size")
    }

    /// Requests a page as the proxy. Callers with the same query share it.
    async fn table_page(
        &self,
        flow: Option<FlowDistinguisher>,
        path: String,
        bytes_max: usize,
    ) -> Result<CoalescedResponse, Arc<CoalesceError>> {
        let key = CoalesceKey {
            identity: RequestIdentity::ProxyItself,
            path_and_query: path.clone(),
            accept: Some(TABLE_ACCEPT.to_owned()),
            accept_encoding: None,
            user_agent: None,
        };
        let (client, concurrency) = (self.client.clone(), self.concurrency.clone());
        let send = move || -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
            let (client, concurrency, path, flow) = (client.clone(), concurrency.clone(), path.clone(), flow.clone());
            Box::pin(async move {
                let (cause, kind) = (UpstreamRequestCause::PassedThrough, UpstreamRequestKind::Short);
                let response = client.open(cause, kind, &path, TABLE_ACCEPT).await?;
                let (status, headers) = (response.status(), response.headers().clone());
                let body = match client.read_at_most(response, bytes_max).await {
                    Err(UpstreamError::TooLarge(_)) => return Err(CoalesceError::TooLarge),
                    body => body?,
                };
                let permit = permit_for(&body, &concurrency, flow.as_ref())?;
                Ok(CoalescedResponse { status, headers, body, permit })
            })
        };
        let page = self.coalesced.send(key, &self.tasks, Arc::new(send)).await;
        page.unwrap_or_else(|| Err(Arc::new(UpstreamError::Unreachable(DRAINED.into()).into())))
    }
}

impl FilteredTable<'_> {
    /// Returns the path of a page: from a token on, or the first one.
    fn path(&self, from: Option<&str>, rows: usize) -> String {
        let selectors = self.request.query.raw().split('&').filter(|pair| {
            let pair = UrlQuery::parse(pair);
            pair.pairs().next().is_some_and(|(name, _)| matches!(name, "labelSelector" | "fieldSelector"))
        });
        let include = if self.include == IncludeObjectPolicy::Object { "Object" } else { "Metadata" };
        let version = match (from, self.read.plan.version) {
            (Some(token), _) => format!("&continue={token}"),
            (None, ResourceVersionMatch::Exact(rv)) => format!("&resourceVersion={rv}&resourceVersionMatch=Exact"),
            (None, ResourceVersionMatch::NotOlderThan(rv)) => {
                format!("&resourceVersion={rv}&resourceVersionMatch=NotOlderThan")
            }
            // The current state is one of any version, and only it has pages.
            (None, ResourceVersionMatch::Unset | ResourceVersionMatch::Any) => String::new(),
        };
        let selectors: String = selectors.flat_map(|selector| ["&", selector]).collect();
        format!("{}?includeObject={include}&limit={rows}{version}{selectors}", self.resource.gvr.path())
    }

    /// Appends the visible rows of a page, up to the limit.
    fn put(&mut self, page: &TablePage<'_>) -> AfterPage {
        let limit = self.read.plan.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let (version, pages) = (ContinueVersion::Version(page.resource_version), self.resource.pages);
        for row in &page.rows {
            if !self.permission.allows_namespace(row.key.namespace_or_name()) {
                continue;
            }
            // Only a visible row counts as a further one, and the token names the last visible row.
            if let Some(last) = self.last.as_ref().filter(|_| self.count == limit) {
                return AfterPage::End(ContinueToken::after(version, last, false).encode(pages));
            }
            if self.count > 0 {
                self.rows.push(',');
            }
            self.rows.push_str(&row.text(self.include != IncludeObjectPolicy::None));
            self.count += 1;
            self.last = Some(row.key.clone());
        }
        if page.continue_token.is_empty() {
            return AfterPage::End(String::new());
        }
        let hidden = page.rows.last().map(|row| row.key.namespace());
        let hidden = hidden.filter(|namespace| !namespace.is_empty() && !self.permission.allows_namespace(namespace));
        // The rest of a hidden namespace is skipped: '0' is the character after '/'.
        let skipping = hidden.map(|hidden| ContinueToken { version, start: format!("{hidden}0") }.encode(pages));
        AfterPage::Page(skipping.unwrap_or_else(|| page.continue_token.clone()))
    }
}

fn failed(error: &UpstreamError) -> NotServable {
    match error {
        // Upstream's refusal of the proxy names the proxy, so the caller gets its own.
        UpstreamError::Refused(status) if status.code == 403 => NotServable::Forward(ForwardReason::Forbidden),
        // Upstream's Status has a token, which may name a hidden row.
        UpstreamError::Refused(status) if status.code == 410 => NotServable::Refuse(Box::new(Status::too_old_list())),
        error => NotServable::Refuse(Box::new(unreachable(error))),
    }
}
