//! Content negotiation: the encoding that the apiserver would choose for an Accept header (R-ACCEPT-1 to R-ACCEPT-5).
//!
//! Its parser, munnerz/goautoneg, deviates from RFC 9110. It splits at every comma, trims only spaces, drops clauses
//! that it cannot parse, and sorts with a comparison that is not a strict order. All of this affects the bytes that a
//! client gets.

use super::{Status, UrlQuery};

/// An encoding that the apiserver supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MediaType {
    Json,
    Yaml,
    Protobuf,
}

impl MediaType {
    /// All media types, in the order of preference that decides among the matches of a wildcard.
    const ALL: [Self; 3] = [Self::Json, Self::Yaml, Self::Protobuf];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }
}

/// Another kind to which an object can be converted, such as a Table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectConversion {
    Table,
    PartialObjectMetadata,
    PartialObjectMetadataList,
}

/// The version of `meta.k8s.io` that a conversion requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetaApiVersion {
    V1,
    V1beta1,
}

impl MetaApiVersion {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1beta1 => "v1beta1",
        }
    }

    /// Returns the `apiVersion` of converted objects.
    pub fn group_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// The media types that an endpoint supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SupportedMediaTypes {
    /// Whether protobuf is available without a conversion. Custom resources do not have it.
    protobuf: bool,
    /// Whether `as=`, `g=` and `v=` are allowed. Errors cannot be converted.
    conversions: bool,
    /// The supported encodings, in the order of preference.
    media: &'static [MediaType],
    watch: bool,
}

impl SupportedMediaTypes {
    /// The media types for reads of a resource that the apiserver itself defines.
    pub const BUILTIN: Self = Self { protobuf: true, conversions: true, media: &MediaType::ALL, watch: false };
    /// The media types for reads of a custom resource.
    pub const CUSTOM: Self = Self { protobuf: false, ..Self::BUILTIN };
    /// The media types for a [`Status`] sent as a response. If nothing fits, the apiserver sends it as
    /// indented JSON, [`to_json_indented`](super::Status::to_json_indented), and keeps its code (R-ACCEPT-5).
    pub const ERROR: Self = Self { conversions: false, ..Self::BUILTIN };

    /// Returns the same endpoint for a watch request.
    #[must_use]
    pub fn for_watch(self) -> Self {
        Self { watch: true, ..self }
    }

    /// Returns the same endpoint of a server that supports only JSON.
    #[must_use]
    pub fn in_json(self) -> Self {
        Self { media: &[MediaType::Json], ..self }
    }
}

/// The media type and representation that the apiserver would choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NegotiatedMediaType {
    /// The object itself is sent, in this media type.
    Plain(MediaType),
    /// The object is converted to another kind before it is sent.
    Converted { media: MediaType, target: ObjectConversion, version: MetaApiVersion },
    /// No clause fits: 406.
    NotAcceptable,
    /// A watch whose best clause is YAML: 406.
    NotStreamable,
}

impl NegotiatedMediaType {
    /// Returns the chosen encoding; `None` if the request is refused.
    pub fn media(self) -> Option<MediaType> {
        match self {
            Self::Plain(media) | Self::Converted { media, .. } => Some(media),
            Self::NotAcceptable | Self::NotStreamable => None,
        }
    }
}

/// Checks that an Accept header is short enough to be parsed. The apiserver has no such limit, and sorts the clauses of
/// any header before it authenticates the caller.
///
/// # Errors
/// 400 if the header has more than 4 KiB or 64 clauses.
pub fn check_accept_length(accept: &str) -> Result<(), Status> {
    if is_too_long(accept) {
        let why = format!("the Accept header is too long: at most {ACCEPT_BYTES_MAX} bytes and {CLAUSES_MAX} clauses");
        return Err(Status::bad_request(why));
    }
    Ok(())
}

/// Negotiates the response form like the apiserver's handlers. `accept` is the value of the first Accept header; `None`
/// and an empty value mean JSON.
pub fn negotiate(accept: Option<&str>, types: SupportedMediaTypes) -> NegotiatedMediaType {
    match chosen(accept, types) {
        None => NegotiatedMediaType::NotAcceptable,
        Some((chosen, _)) if types.watch && chosen.media() == Some(MediaType::Yaml) => {
            NegotiatedMediaType::NotStreamable
        }
        Some((chosen, _)) => chosen,
    }
}

/// Whether the chosen clause requests responses without `metadata.managedFields` (KEP-5958). Its `drop` parameter names
/// fields, separated by `+`. Unknown fields are ignored.
pub fn drops_managed_fields(accept: Option<&str>, types: SupportedMediaTypes) -> bool {
    accept.is_some_and(|accept| accept.contains("drop"))
        && chosen(accept, types).is_some_and(|(_, clause)| clause.drops)
}

/// Checks the Accept header like the apiserver's router of built-in resources: the bare media type of some clause must
/// be a supported one or `*/*`. It is stricter than [`negotiate`] about wildcards, since `application/*` does not
/// match, and ignores parameters. Custom resources have no such check.
pub fn router_accepts(accept: Option<&str>, types: SupportedMediaTypes) -> bool {
    let accept = accept.filter(|accept| !accept.is_empty()).unwrap_or("*/*");
    // A trailing comma opens no further clause, which makes no difference: the empty type is not supported.
    accept.split(',').any(|clause| {
        let bare = clause.split(';').next().unwrap_or_default().trim_matches(' ');
        bare == "*/*" || types.media.iter().any(|media| media.as_str() == bare)
    })
}

const CBOR: &str = "application/cbor";

/// Whether a server that supports CBOR, which is optional, would choose CBOR: a clause that names it precedes those
/// that fit any other encoding. For a wildcard, other encodings have precedence.
pub fn prefers_cbor(accept: Option<&str>, types: SupportedMediaTypes) -> bool {
    let Some(accept) = accept.filter(|accept| accept.contains(CBOR)) else { return false };
    let fits = |clause: &AcceptClause<'_>| types.media.iter().any(|media| fit(clause, *media, types).is_some());
    clauses(accept).iter().find(|clause| clause.names(CBOR) || fits(clause)).is_some_and(|first| first.names(CBOR))
}

/// Whether some clause of the Accept header requests a kind, in any encoding. Discovery is not negotiated like objects.
pub fn accepts_kind(accept: Option<&str>, kind: &str, group: &str, version: &str) -> bool {
    let requested = [("as", kind), ("g", group), ("v", version)];
    let asks = |clause: &AcceptClause<'_>| requested.iter().all(|(name, value)| clause.parameter(name) == Some(value));
    clauses(accept.unwrap_or_default()).iter().any(asks)
}

/// The prefixes of interactive user agents.
const INTERACTIVE_AGENTS: [&str; 3] = ["curl", "Wget", "Mozilla/5.0"];

/// Whether JSON is indented (R-JSON-2). It is if the chosen clause has `pretty=1`. Otherwise the `pretty` parameter
/// decides, and without it the user agent, if it looks interactive. Applies only to JSON, never to a watch.
pub fn pretty(query: &UrlQuery, user_agent: Option<&str>, accept: Option<&str>, types: SupportedMediaTypes) -> bool {
    if types.watch {
        return false;
    }
    if chosen(accept, types).is_some_and(|(_, clause)| clause.pretty) {
        return true;
    }
    // The apiserver decodes the query only if it contains the word.
    match query.first("pretty").filter(|text| !text.is_empty() && query.raw().contains("pretty")) {
        Some(text) => matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True"),
        None => user_agent.is_some_and(|agent| INTERACTIVE_AGENTS.iter().any(|prefix| agent.starts_with(prefix))),
    }
}

/// The parameters of a clause that do not change the media type.
#[derive(Debug, Clone, Copy, Default)]
struct ClauseOptions {
    /// `pretty=1`
    pretty: bool,
    /// `drop=metadata.managedFields`
    drops: bool,
}

/// The field that a `drop` parameter can name.
const MANAGED_FIELDS: &str = "metadata.managedFields";

/// The type of the first pair of clause and encoding that fits, ordered by clause and then by encoding, and the
/// clause's other parameters.
fn chosen(accept: Option<&str>, types: SupportedMediaTypes) -> Option<(NegotiatedMediaType, ClauseOptions)> {
    let Some(accept) = accept.filter(|accept| !accept.is_empty()) else {
        return Some((NegotiatedMediaType::Plain(MediaType::Json), ClauseOptions::default()));
    };
    clauses(accept).iter().find_map(|clause| types.media.iter().find_map(|media| fit(clause, *media, types)))
}

/// Matches a clause with one encoding; `None` if the media range does not include it, or if a parameter is not
/// acceptable, which skips the pair.
fn fit(
    clause: &AcceptClause<'_>,
    media: MediaType,
    types: SupportedMediaTypes,
) -> Option<(NegotiatedMediaType, ClauseOptions)> {
    if !clause.covers(media.as_str()) {
        return None;
    }
    let given = |name| clause.parameter(name).filter(|value| !value.is_empty());
    if given("stream").is_some_and(|stream| stream != "watch" || media == MediaType::Yaml) {
        return None;
    }
    // `sv` names the version of meta.k8s.io; errors have no such version.
    if given("sv").is_some_and(|version| version != "v1" || !types.conversions) {
        return None;
    }
    let parameters = ["as", "g", "v"].map(|name| clause.parameter(name));
    let chosen = match parameters {
        [None, None, None] if media == MediaType::Protobuf && !types.protobuf => return None,
        [None, None, None] => NegotiatedMediaType::Plain(media),
        _ if !types.conversions => return None,
        [kind, group, version] => conversion(kind?, group?, version?, media)?,
    };
    let pretty = clause.parameter("pretty") == Some("1");
    let drops = clause.parameter("drop").is_some_and(|fields| fields.split('+').any(|field| field == MANAGED_FIELDS));
    Some((chosen, ClauseOptions { pretty, drops }))
}

fn conversion(kind: &str, group: &str, version: &str, media: MediaType) -> Option<NegotiatedMediaType> {
    let target = match kind {
        "Table" if media != MediaType::Protobuf => ObjectConversion::Table,
        "PartialObjectMetadata" => ObjectConversion::PartialObjectMetadata,
        "PartialObjectMetadataList" => ObjectConversion::PartialObjectMetadataList,
        _ => return None,
    };
    let version = match (group, version) {
        ("meta.k8s.io", "v1") => MetaApiVersion::V1,
        ("meta.k8s.io", "v1beta1") => MetaApiVersion::V1beta1,
        _ => return None,
    };
    Some(NegotiatedMediaType::Converted { media, target, version })
}

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

macro_rules! aggregated {
    ($version:literal) => {
        concat!("application/json;g=apidiscovery.k8s.io;v=", $version, ";as=APIGroupDiscoveryList")
    };
}

/// The Accept header for aggregated discovery.
pub const AGGREGATED_DISCOVERY: &str = aggregated!("v2");

/// The Accept headers that discovery clients send, in their normal form.
const FORMS: [&str; 9] = [
    JSON,
    PROTOBUF,
    "application/vnd.kubernetes.protobuf,application/json",
    aggregated!("v2"),
    concat!(aggregated!("v2"), ",application/json"),
    aggregated!("v2beta1"),
    concat!(aggregated!("v2beta1"), ",application/json"),
    concat!(aggregated!("v2"), ",", aggregated!("v2beta1")),
    concat!(aggregated!("v2"), ",", aggregated!("v2beta1"), ",application/json"),
];

/// Normalizes the Accept header of a discovery request: the clauses in the order in which the apiserver tries them, up
/// to plain JSON, which it always accepts. `None` if the result is not one of a few forms, or if the apiserver's router
/// refuses the header. So a cache whose keys contain one is bounded.
pub fn discovery_accept(accept: Option<&str>) -> Option<&'static str> {
    let accept = accept.filter(|accept| !accept.is_empty()).unwrap_or(JSON);
    if !router_accepts(Some(accept), SupportedMediaTypes::BUILTIN) {
        return None;
    }
    let mut known: Vec<&str> = Vec::new();
    for clause in clauses(accept) {
        if clause.has_others(&["as", "g", "v"]) {
            return None;
        }
        let media = [JSON, PROTOBUF, "*/*"].into_iter().find(|media| clause.names(media))?;
        let form = match (media, ["as", "g", "v"].map(|name| clause.parameter(name))) {
            // Of all media types the apiserver prefers JSON.
            (JSON | "*/*", [None, None, None]) => JSON,
            (media, [None, None, None]) => media,
            (JSON, [Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")]) => aggregated!("v2"),
            (JSON, [Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1")]) => {
                aggregated!("v2beta1")
            }
            _ => return None,
        };
        known.push(form);
        if form == JSON {
            break;
        }
    }
    let known = known.join(",");
    FORMS.into_iter().find(|form| *form == known)
}

/// The versions of the OpenAPI documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenApiVersion {
    V2,
    V3,
}

/// Returns the media type in which the apiserver sends an OpenAPI document. `None` if it sends none, or if the header
/// has a clause that only its handler understands.
pub fn openapi_accept(accept: Option<&str>, version: OpenApiVersion) -> Option<&'static str> {
    // The second spelling is deprecated.
    let protobuf = match version {
        OpenApiVersion::V2 => [
            "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
            "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
        ],
        OpenApiVersion::V3 => [
            "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
            "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
        ],
    };
    for clause in clauses(accept.filter(|accept| !accept.is_empty()).unwrap_or(JSON)) {
        if clause.main == "*" && clause.sub != "*" {
            return None;
        }
        if clause.covers(JSON) {
            return Some(JSON);
        }
        if protobuf.into_iter().any(|media| clause.names(media)) {
            return Some(protobuf[0]);
        }
    }
    None
}

/// The maximum length in bytes of an Accept header that is parsed. Clients, including browsers, send up to about 300.
const ACCEPT_BYTES_MAX: usize = 4 << 10;
/// The maximum number of clauses. The sort compares each with each in the worst case.
const CLAUSES_MAX: usize = 64;

/// One media range of an Accept header, with its parameters.
#[derive(Debug, Clone, PartialEq)]
struct AcceptClause<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl AcceptClause<'_> {
    /// Whether the media range, `type/subtype`, `type/*` or `*/*`, includes `media_type`.
    fn covers(&self, media_type: &str) -> bool {
        let (main, sub) = media_type.split_once('/').unwrap_or((media_type, ""));
        match (self.main, self.sub) {
            ("*", "*") => true,
            (own, "*") => own == main,
            own => own == (main, sub),
        }
    }

    /// Whether the clause's media range is exactly `range`, rather than a wildcard that covers it.
    fn names(&self, range: &str) -> bool {
        range.split_once('/') == Some((self.main, self.sub))
    }

    /// Whether the media range has parameters other than `known`. The quality is not a parameter.
    fn has_others(&self, known: &[&str]) -> bool {
        self.parameters.iter().any(|(name, _)| !known.contains(name))
    }

    /// Returns the last value given for the parameter `name`.
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().rev().find(|(candidate, _)| *candidate == name).map(|(_, value)| *value)
    }

    /// Whether the apiserver sorts `self` before `other`: by higher quality, or because it is concrete where the other
    /// is a wildcard. The latter ignores the qualities, so `application/json;q=0.1` precedes `*/*`.
    fn before(&self, other: &Self) -> bool {
        self.quality > other.quality || (self.main != "*" && other.main == "*") || (self.sub != "*" && other.sub == "*")
    }
}

/// Returns all well-formed clauses, best first. A header that is too long has none; callers refuse it before
/// ([`check_accept_length`]).
fn clauses(accept: &str) -> Vec<AcceptClause<'_>> {
    if is_too_long(accept) {
        return Vec::new();
    }
    let mut clauses: Vec<AcceptClause<'_>> = accept.split(',').filter_map(clause).collect();
    // Up to twelve elements, Go's sort is this insertion sort. Beyond that, its order under such a comparison depends
    // on its implementation; no client sends that many.
    for end in 1..clauses.len() {
        for at in (1..=end).rev() {
            if !clauses[at].before(&clauses[at - 1]) {
                break;
            }
            clauses.swap(at, at - 1);
        }
    }
    clauses
}

/// Whether the header exceeds [`ACCEPT_BYTES_MAX`] or [`CLAUSES_MAX`].
fn is_too_long(accept: &str) -> bool {
    accept.len() > ACCEPT_BYTES_MAX || accept.bytes().filter(|byte| *byte == b',').count() >= CLAUSES_MAX
}

fn clause(text: &str) -> Option<AcceptClause<'_>> {
    let text = text.trim_matches(' ');
    let (range, rest) = text.split_once(';').unwrap_or((text, ""));
    let (main, sub) = match range.split_once('/') {
        Some((main, sub)) if !sub.is_empty() => (main.trim_matches(' '), sub),
        _ => (range.trim_end_matches('/').trim_matches(' '), ""),
    };
    let sub = match (main, sub) {
        ("*", "") => "*",
        (_, "") => return None,
        // A second slash is an error only if text follows it.
        (_, sub) => match sub.split_once('/') {
            None => sub,
            Some((sub, "")) => sub,
            Some(_) => return None,
        },
    };
    let mut clause = AcceptClause { main, sub: sub.trim_matches(' '), quality: 1.0, parameters: Vec::new() };
    for parameter in rest.split(';') {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        // A second `=` is an error only if text follows it.
        let value = match value.split_once('=') {
            None if value.is_empty() => continue,
            None => value,
            Some((value, "")) => value,
            Some(_) => continue,
        };
        match name.trim_matches(' ') {
            "q" => clause.quality = value.parse().unwrap_or(0.0),
            name => clause.parameters.push((name, value.trim_matches(' '))),
        }
    }
    Some(clause)
}

#[cfg(test)]
mod tests;
