use std::borrow::Cow;

use serde::Deserialize;

use kubeapi::UrlQuery;

/// An `audit.k8s.io/v1` event, with only the fields that are used.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditLogEvent<'a> {
    #[serde(borrow, default, rename = "auditID")]
    audit_id: Cow<'a, str>,
    #[serde(borrow)]
    stage: Cow<'a, str>,
    #[serde(borrow, rename = "requestURI")]
    request_uri: Cow<'a, str>,
    #[serde(borrow)]
    verb: Cow<'a, str>,
    #[serde(borrow, default)]
    user_agent: Cow<'a, str>,
    #[serde(borrow, default)]
    user: AuditUser<'a>,
    #[serde(borrow, default)]
    object_ref: Option<ObjectRef<'a>>,
    #[serde(default)]
    response_status: Option<ResponseStatus>,
    #[serde(borrow, default)]
    request_received_timestamp: Cow<'a, str>,
    #[serde(borrow, default)]
    stage_timestamp: Cow<'a, str>,
}

#[derive(Debug, Default, Deserialize)]
struct AuditUser<'a> {
    #[serde(borrow, default)]
    username: Cow<'a, str>,
}

/// The user of an apiserver's own clients. They read over loopback and cannot use a proxy.
const APISERVER: &str = "system:apiserver";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef<'a> {
    #[serde(borrow, default)]
    resource: Cow<'a, str>,
    #[serde(borrow, default)]
    api_group: Cow<'a, str>,
    #[serde(borrow, default)]
    subresource: Cow<'a, str>,
}

#[derive(Debug, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

/// The stage of a request at which the event was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuditStage {
    /// The response head of a stream was sent (`ResponseStarted`).
    Started,
    Complete,
}

/// The way in which a proxy would treat a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestClass {
    List,
    Watch,
    Get,
    /// The request would still go to upstream.
    Rest,
}

/// The discovery documents that a proxy certainly serves. Those of a group may belong to an aggregated API server.
const DISCOVERY: [&str; 4] = ["/version", "/api", "/api/v1", "/apis"];

impl AuditLogEvent<'_> {
    /// Returns the stage; `None` for stages without a response.
    pub(super) fn stage(&self) -> Option<AuditStage> {
        match &*self.stage {
            "ResponseStarted" => Some(AuditStage::Started),
            "ResponseComplete" => Some(AuditStage::Complete),
            _ => None,
        }
    }

    /// Returns the ID that all records of one request share.
    pub(super) fn audit_id(&self) -> &str {
        &self.audit_id
    }

    /// Whether an apiserver sent the request to itself.
    pub(super) fn is_of_apiserver(&self) -> bool {
        self.user.username == APISERVER
    }

    pub(super) fn is_watch(&self) -> bool {
        self.verb == "watch"
    }

    /// Returns the first word of the user agent, which names the program and its version.
    pub(super) fn agent(&self) -> &str {
        self.user_agent.split(' ').next().filter(|agent| !agent.is_empty()).unwrap_or("none")
    }

    /// Returns the resource, such as `pods` or `deployments.apps`; `none` if the request is not for a resource.
    pub(super) fn resource(&self) -> String {
        match &self.object_ref {
            Some(of) if of.resource.is_empty() => "none".to_owned(),
            Some(of) if of.api_group.is_empty() => of.resource.to_string(),
            Some(of) => format!("{}.{}", of.resource, of.api_group),
            None => "none".to_owned(),
        }
    }

    /// Returns the times at which the request was received and this stage was reached, in seconds since 1970.
    pub(super) fn times(&self) -> Option<(f64, f64)> {
        Some((seconds(&self.request_received_timestamp)?, seconds(&self.stage_timestamp)?))
    }

    pub(super) fn fate(&self, is_held: impl Fn(&str) -> bool) -> RequestClass {
        let failed = self.response_status.as_ref().is_some_and(|status| status.code >= 400);
        let Some(of) = &self.object_ref else {
            let path = self.request_uri.split('?').next().unwrap_or_default();
            let is_served = !failed && self.verb == "get" && DISCOVERY.contains(&path);
            return if is_served { RequestClass::Get } else { RequestClass::Rest };
        };
        if failed || of.resource.is_empty() || !of.subresource.is_empty() || !is_held(&self.resource()) {
            return RequestClass::Rest;
        }
        let query = self.query();
        let version = query.first("resourceVersion").unwrap_or_default();
        match &*self.verb {
            "watch" => RequestClass::Watch,
            // Proxies forward lists at an exact version, and Tables, which kubectl requests.
            "list" if query.first("resourceVersionMatch") == Some("Exact") => RequestClass::Rest,
            "list" if self.agent().starts_with("kubectl/") => RequestClass::Rest,
            "list" => RequestClass::List,
            // Without a resourceVersion, a GET requests the most recent state, which proxies forward.
            "get" if !version.is_empty() => RequestClass::Get,
            _ => RequestClass::Rest,
        }
    }

    /// Whether the proxy would have to prove that its cache is current before it responds.
    pub(super) fn needs_proof(&self) -> bool {
        let query = self.query();
        let is_open = |name| query.first(name).unwrap_or_default().is_empty();
        is_open("resourceVersion") && is_open("continue")
    }

    fn query(&self) -> UrlQuery {
        UrlQuery::parse(self.request_uri.split_once('?').map_or("", |(_, query)| query))
    }
}

/// Parses a time such as `2026-11-25T10:00:00.000000Z` into seconds since 1970.
fn seconds(text: &str) -> Option<f64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (time.next()?.parse::<f64>().ok()?, time.next()?.parse::<f64>().ok()?);
    let second = time.next()?.parse::<f64>().ok()?;
    // Converts the date to days (Howard Hinnant's algorithm). The year begins in March, so that leap days come last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days as f64 * 86_400.0 + hour * 3_600.0 + minute * 60.0 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apiserver_timestamps_are_parsed() {
        let near = |text: &str, expected: f64| (seconds(text).expect("a time") - expected).abs() < 1e-3;
        assert!(near("1970-01-01T00:00:00Z", 0.0) && near("2024-02-29T12:30:01.500000Z", 1_709_209_801.5));
        assert!(near("2026-11-25T00:00:00.000000Z", 1_795_564_800.0));
        for text in ["", "2026-11-25", "2026-11-25T10:00Z", "2026-11-25T10:00:00", "yesterday"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
