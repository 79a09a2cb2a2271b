//! The concepts of the Kubernetes API as types, without I/O.
//!
//! They express the meaning of a request ([`RequestInfo`], [`ListOptions`], [`NegotiatedMediaType`]), the objects that
//! it selects ([`Selector`]), and the form of a refusal ([`Status`]). All of it is derived from the request alone, by
//! rules that match the apiserver's byte for byte; docs/dev/rules/README.md lists them.
//!
//! **Invariant:** nothing in this crate opens a socket, reads a clock or depends on a cache.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod accept;
mod access;
mod attributes;
mod continue_token;
mod event_type;
mod field_selector;
mod fields;
mod go_text;
mod gvr;
mod key;
mod labels;
mod list_options;
pub mod protobuf;
mod query;
mod request_info;
mod selector;
mod shard_selector;
mod status;
mod user;
mod version;

pub use accept::{
    AGGREGATED_DISCOVERY, MediaType, MetaApiVersion, NegotiatedMediaType, ObjectConversion, OpenApiVersion,
    SupportedMediaTypes, accepts_kind, check_accept_length, discovery_accept, drops_managed_fields, negotiate,
    openapi_accept, prefers_cbor, pretty, router_accepts,
};
pub use access::{AccessAttributes, AccessTarget, ResourceAccessAttributes};
pub use attributes::{SelectableAttributes, shard_hash};
pub use continue_token::{ContinueToken, ContinueVersion, ListPageSource};
pub use event_type::EventType;
pub use field_selector::{EscapedFieldTerm, FieldMatcher, FieldSelector, NAME_KEY};
pub use fields::{FieldValueKind, SelectableFieldSpec, SelectableFieldTable};
pub use go_text::quote as go_quote;
pub use gvr::Gvr;
pub use key::{ObjectKey, is_dns_label, is_dns_subdomain};
pub use labels::{LabelConstraint, LabelSelector, SELECTOR_BYTES_MAX};
pub use list_options::{ListOptions, ListPlan, ResourceVersionMatch, WatchStart, WatchTimeout};
pub use query::{QUERY_PAIRS_MAX, UrlQuery, has_valid_timeout, unescape};
pub use request_info::{RequestInfo, RequestInfoError, RequestVerb, targets_workload};
pub use selector::Selector;
pub use shard_selector::{ShardKey, ShardSelector};
pub use status::{Status, StatusCause, StatusDecodeError, StatusDetails, StatusMetadata, denied_access};
pub use user::{FlowDistinguisher, User};
pub use version::{ResourceVersion, ResourceVersionError};

/// The annotation with the time at which an object was written, in nanoseconds of the writer's own clock. A writer that
/// also watches can measure the delivery time of an event.
pub const WRITE_TIME: &str = "kube-fanout.io/written-at-ns";
