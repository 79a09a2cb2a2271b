//! Table LISTs for callers who may read only some namespaces: upstream's own rows, requested as the proxy.
//!
//! **Invariant.** Of a row that the caller may not see, the response has nothing: no cell, no count, and no name in a
//! continue token.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::timeout;

use super::coalesce::{CoalesceError, CoalesceKey, CoalescedResponse};
use super::{ForwardHandler, SHARED_BYTES_MAX, unreachable};
use crate::auth::{NamespaceAccess, ReadableNamespaces};
use crate::listing::{ListPageRequest, gzip};
use crate::serve::activity::metrics;
use crate::serve::limits::{BufferedResponseBody, ConcurrencyPermit};
use crate::serve::read::{AuthorizedRead, CacheReadResult, NotServable, ReadRequest};
use crate::serve::response::{ResponseBody, gzipped, unavailable};
use crate::serve::route::ForwardReason;
use crate::upstream::{RequestIdentity, UpstreamError, UpstreamRequestCause, UpstreamRequestKind, UpstreamResource};
use crate::wire::{IncludeObjectPolicy, Representation, TABLE_ACCEPT, TablePage, table_list};
use kubeapi::{ContinueToken, ContinueVersion, FlowDistinguisher, ObjectKey, ResourceVersionMatch, Status, UrlQuery};

/// The rows of one upstream request, and the maximum size of the response in bytes, which bounds memory and the time to
/// parse it. If a page exceeds it because its objects are large, smaller pages follow, until larger ones fit again.
const PAGES: [(usize, usize); 4] = [(500, 2 << 20), (100, 2 << 20), (10, 2 << 20), (1, SHARED_BYTES_MAX)];
const DRAINED: &str = "the proxy is shutting down; try again";
const UNUSABLE: &str = "upstream's Table cannot be used; the proxy's log has the reason";
const OTHER_COLUMNS: &str = "the columns changed while the rows were read; try again";

/// A filtered Table, while its pages are read.
struct FilteredTable<'a> {
    request: &'a ReadRequest,
    part: &'a ReadableNamespaces,
    resource: &'a UpstreamResource,
    read: &'a ListPageRequest,
    include: IncludeObjectPolicy,
    flow: Option<FlowDistinguisher>,
    /// The visible rows of each page, separated by commas, and their number.
    rows: VecDeque<Bytes>,
    count: usize,
    last: Option<ObjectKey>,
    /// The first key that the current page may have, as in a continue token.
    start: String,
    /// The columns of the first page.
    columns: Option<Box<str>>,
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
        AuthorizedRead { request, permission, resource }: AuthorizedRead<'_>,
        read: ListPageRequest,
    ) -> CacheReadResult {
        let (Some(part), Representation::Table(include)) = (permission.namespaces(), read.representation) else {
            return Err(NotServable::Forward(ForwardReason::Table));
        };
        let namespace = read.view.namespace().filter(|_| read.in_namespace);
        if !permission.covers(&resource.gvr, resource.namespaced, namespace, read.view.name()) {
            return Err(NotServable::Forward(ForwardReason::PermissionMismatch));
        }
        metrics::forwarded(ForwardReason::Table);
        let flow = request.caller.flow();
        let _permit = self.shared.concurrency.filtered_tables.acquire(flow.as_ref())?;
        let start = read.plan.start.clone().unwrap_or_default();
        let table = FilteredTable {
            request,
            part,
            resource,
            read: &read,
            include,
            flow: flow.clone(),
            rows: VecDeque::new(),
            count: 0,
            last: None,
            start,
            columns: None,
            permits: Vec::new(),
        };
        let max = self.shared.slow_readers.body_max();
        let read = timeout(max, Box::pin(self.read_pages(table))).await;
        let (parts, permits) = read.unwrap_or_else(|_| Err(failed(&UpstreamError::Timeout(max))))?;
        let bytes = parts.iter().map(Bytes::len).sum();
        // The copy to compress is charged too. Without room for it, the response is sent as it is.
        let copy =
            request.context.compresses(bytes).then(|| self.shared.concurrency.buffered(flow.as_ref(), bytes).ok());
        let copy = copy.flatten();
        let is_gzip = copy.is_some();
        let body = if is_gzip {
            let plain = Bytes::from(Vec::from(parts).concat());
            BufferedResponseBody::from_bytes(gzip::compress(plain).await, permits)
        } else {
            BufferedResponseBody::new(parts, permits)
        };
        drop(copy);
        let body = ResponseBody::whole(body, &self.shared.slow_readers, request.context.abort.clone());
        let response = request.context.composed(body);
        Ok(if is_gzip { gzipped(response) } else { response })
    }

    /// Reads pages until the table has the requested rows. Returns it in parts.
    async fn read_pages(
        &self,
        mut table: FilteredTable<'_>,
    ) -> Result<(VecDeque<Bytes>, Vec<Arc<ConcurrencyPermit>>), NotServable> {
        let (mut namespaces, mut size) = (BTreeSet::new(), 0);
        let mut from = table.read.plan.start.is_some().then(|| table.request.query.first("continue")).flatten();
        let mut token;
        loop {
            let body = self.fitting_page(&table, from, &mut size).await?.body;
            // Callers that share the page are each charged, so that no caller depends on the limit of another.
            let _permit = self.shared.concurrency.buffered(table.flow.as_ref(), body.len())?;
            let page = TablePage::parse(&body, table.resource.namespaced);
            let page = page.map_err(|error| failed(&UpstreamError::Wire(error)))?;
            if **table.columns.get_or_insert_with(|| page.columns.into()) != *page.columns {
                return Err(NotServable::Refuse(Box::new(unavailable(OTHER_COLUMNS))));
            }
            size = larger_if_it_fits(size, body.len() / page.rows.len().max(1));
            namespaces.extend(page.rows.iter().map(|row| row.key.namespace_or_name().to_owned()));
            let reviewed = table.part.review_all(namespaces.iter().map(String::as_str)).await;
            reviewed.map_err(NotServable::Unauthorized)?;
            let after = table.put(&page).map_err(|error| failed(&error))?;
            let bytes = table.rows.back().map_or(0, Bytes::len);
            table.permits.push(Arc::new(self.shared.concurrency.buffered(table.flow.as_ref(), bytes)?));
            match after {
                AfterPage::Page(next) => {
                    token = next;
                    from = Some(&token);
                }
                AfterPage::End(next) => {
                    let [head, tail] = table_list(&page, &next);
                    table.rows.push_front(head);
                    table.rows.push_back(tail);
                    return Ok((table.rows, table.permits));
                }
            }
        }
    }

    /// Requests the page from a token on, in smaller sizes if it is too large. `size` is an index of [`PAGES`].
    async fn fitting_page(
        &self,
        table: &FilteredTable<'_>,
        from: Option<&str>,
        size: &mut usize,
    ) -> Result<CoalescedResponse, NotServable> {
        loop {
            let (rows, bytes_max) = PAGES[*size];
            let _permit = self.shared.concurrency.forwards.acquire(table.flow.as_ref())?;
            match self.table_page(table.path(from, rows), bytes_max).await {
                Ok(page) => return Ok(page),
                Err(error) => match &*error {
                    CoalesceError::TooLarge if *size + 1 < PAGES.len() => *size += 1,
                    CoalesceError::TooLarge => return Err(failed(&UpstreamError::TooLarge(bytes_max))),
                    CoalesceError::Failed(error) => return Err(failed(error)),
                },
            }
        }
    }

    /// Requests a page as the proxy. Callers with the same query share it.
    async fn table_page(&self, path: String, bytes_max: usize) -> Result<CoalescedResponse, Arc<CoalesceError>> {
        let key = CoalesceKey {
            identity: RequestIdentity::ProxyItself,
            path_and_query: path.clone(),
            accept: Some(TABLE_ACCEPT.to_owned()),
            accept_encoding: None,
            user_agent: None,
        };
        let client = self.shared.client.clone();
        let send = move || -> std::pin::Pin<Box<dyn Future<Output = _> + Send>> {
            let (client, path) = (client.clone(), path.clone());
            Box::pin(async move {
                let (cause, kind) = (UpstreamRequestCause::Forwarded, UpstreamRequestKind::Short);
                let response = client.open(cause, kind, &path, TABLE_ACCEPT).await?;
                CoalescedResponse::read(&client, response, bytes_max).await
            })
        };
        let page = self.coalesced.send(key, &self.shared.tasks, Arc::new(send)).await;
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
        let namespace = self.read.view.namespace().filter(|_| self.read.in_namespace).unwrap_or_default();
        let selectors: String = selectors.flat_map(|selector| ["&", selector]).collect();
        format!("{}?includeObject={include}&limit={rows}{version}{selectors}", self.resource.gvr.path_in(namespace))
    }

    /// Appends the visible rows of a page, up to the limit.
    ///
    /// # Errors
    /// The next page would not begin after this one.
    fn put(&mut self, page: &TablePage<'_>) -> Result<AfterPage, UpstreamError> {
        let mut rows = String::new();
        let after = self.put_rows(page, &mut rows);
        rows.shrink_to_fit();
        self.rows.push_back(rows.into());
        if let Some(end) = after {
            return Ok(end);
        }
        let (version, pages) = (ContinueVersion::Version(page.resource_version), self.resource.pages);
        let in_namespace = self.read.in_namespace;
        // Upstream's own token can have a key that upstream reads as another one (R-CONTINUE-2).
        let next = match page.rows.last().map(|row| &row.key) {
            // The rest of a hidden namespace is skipped: '0' is the character after '/'.
            Some(key) if !in_namespace && !key.namespace().is_empty() && self.hides(key.namespace()) => {
                Some(ContinueToken { version, start: format!("{}0", key.namespace()) })
            }
            Some(key) => Some(ContinueToken::after(version, key, in_namespace)),
            None => ContinueToken::decode(&page.continue_token),
        };
        let next = next.filter(|next| next.start > self.start).ok_or(UpstreamError::EndlessPages)?;
        let token = next.encode(pages);
        self.start = next.start;
        Ok(AfterPage::Page(token))
    }

    /// Whether the caller may see no object of a namespace.
    fn hides(&self, namespace: &str) -> bool {
        matches!(self.part.access(namespace), NamespaceAccess::Denied | NamespaceAccess::Unanswered)
    }

    /// Returns the end of the response, if the page has it.
    fn put_rows(&mut self, page: &TablePage<'_>, rows: &mut String) -> Option<AfterPage> {
        let limit = self.read.plan.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let (version, pages) = (ContinueVersion::Version(page.resource_version), self.resource.pages);
        for row in &page.rows {
            if !self.part.access(row.key.namespace_or_name()).allows(row.key.name()) {
                continue;
            }
            // Only a visible row counts as a further one, and the token names the last visible row.
            if let Some(last) = self.last.as_ref().filter(|_| self.count == limit) {
                return Some(AfterPage::End(ContinueToken::after(version, last, self.read.in_namespace).encode(pages)));
            }
            if self.count > 0 {
                rows.push(',');
            }
            rows.push_str(&row.text(self.include != IncludeObjectPolicy::None));
            self.count += 1;
            self.last = Some(row.key.clone());
        }
        page.continue_token.is_empty().then(|| AfterPage::End(String::new()))
    }
}

/// Returns the next larger size of a page if rows of this size in bytes are expected to fit, else the same.
fn larger_if_it_fits(size: usize, row_bytes: usize) -> usize {
    let larger = size.saturating_sub(1);
    let (rows, bytes_max) = PAGES[larger];
    if rows * row_bytes <= bytes_max { larger } else { size }
}

fn failed(error: &UpstreamError) -> NotServable {
    let status = match error {
        // Upstream's refusal of the proxy names the proxy, so the caller gets its own.
        UpstreamError::Refused(status) if status.code == 403 => {
            return NotServable::Forward(ForwardReason::Forbidden);
        }
        // Upstream's Status has a token, which may name a hidden row.
        UpstreamError::Refused(status) if status.code == 410 => Status::too_old_list(),
        UpstreamError::Refused(status) if matches!(status.code, 400 | 404 | 429 | 503 | 504) => Status::clone(status),
        // Upstream's text can have parts of hidden rows.
        UpstreamError::Refused(_) | UpstreamError::Wire(_) => {
            tracing::warn!(%error, "cannot filter upstream's Table by namespace; the request fails with 502");
            Status::from_code(502, UNUSABLE)
        }
        error => unreachable(error),
    };
    NotServable::Refuse(Box::new(status))
}
