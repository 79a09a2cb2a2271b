use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::UpstreamError;

/// A page of a list in JSON. Its objects are not decoded.
#[derive(Debug, Default, Deserialize)]
pub struct JsonListPage<'a> {
    pub metadata: ListMeta,
    #[serde(borrow, default)]
    pub items: Vec<&'a RawValue>,
}

/// Parses a document in JSON that upstream returned for `path`.
///
/// # Errors
/// It has another form. The error names the path only, because serde's could quote credentials of a review.
pub fn parse_json<'a, T: Deserialize<'a>>(document: &'a [u8], path: &str) -> Result<T, UpstreamError> {
    serde_json::from_slice(document).map_err(|_| UpstreamError::OtherDocument(path.to_owned()))
}
