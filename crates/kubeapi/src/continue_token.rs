//! Continue tokens in the apiserver's own format, so that a list begun at the proxy can continue at the apiserver and
//! vice versa (R-CONTINUE-1).

#[cfg(test)]
mod tests;

use super::go_text::{json_string, quote};
use super::{ObjectKey, ResourceVersion};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

const VERSION: &str = "meta.k8s.io/v1";

/// The version of the next page of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContinueVersion {
    /// The next page is at the version of the first page.
    Version(ResourceVersion),
    /// The next page is at the current version (`rv: -1`): the list continues after a token expired, at the price of
    /// consistency between pages.
    Latest,
}

/// The store from which upstream reads the pages of a list. It affects only the spelling of tokens: servers accept
/// both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ListPageSource {
    /// The pages come from etcd: keys start after the slash that ends the collection's prefix.
    #[default]
    FromStorage,
    /// The pages come from the watch cache: keys begin with that slash.
    FromCache,
}

impl ListPageSource {
    /// Returns the page store of a server of release `1.minor`. Since 1.34, servers keep snapshots of their watch
    /// caches for pages (KEP-4988).
    pub fn of_release(minor: Option<u32>, has_watch_cache: bool) -> Self {
        const FROM_CACHE_SINCE: u32 = 34;
        if has_watch_cache && minor >= Some(FROM_CACHE_SINCE) { Self::FromCache } else { Self::FromStorage }
    }
}

/// A position in a paginated list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContinueToken {
    pub version: ContinueVersion,
    /// The first key that may be returned, relative to the request's collection: `NAME` in one namespace or at cluster
    /// scope, `NS/NAME` across namespaces. Usually it is the last returned key and a NUL byte, its direct successor in
    /// byte order. Compare as strings.
    pub start: String,
}

/// The reason that a continue token is refused. Its text is the message of a 400 `BadRequest`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid continue token: continue key is not valid: {0}")]
pub struct ContinueTokenError(String);

impl ContinueToken {
    /// Creates the token for the page after `last`. `in_namespace` states whether the request's collection is one
    /// namespace, so that keys are relative to it.
    pub fn after(at: ContinueVersion, last: &ObjectKey, in_namespace: bool) -> Self {
        let relative = if in_namespace { last.name() } else { last.as_str() };
        Self { version: at, start: format!("{relative}\0") }
    }

    /// Encodes the token as base64url without padding, of JSON in the apiserver's member order.
    pub fn encode(&self, pages: ListPageSource) -> String {
        let version = match self.version {
            ContinueVersion::Version(version) => version.to_string(),
            ContinueVersion::Latest => "-1".to_owned(),
        };
        let start = match pages {
            ListPageSource::FromStorage if !self.start.is_empty() => json_string(&self.start),
            // An empty key, which no server accepts, is written as a slash.
            ListPageSource::FromStorage | ListPageSource::FromCache => json_string(&format!("/{}", self.start)),
        };
        BASE64_URL_SAFE_NO_PAD.encode(format!(r#"{{"v":"{VERSION}","rv":{version},"start":{start}}}"#))
    }

    /// Returns false if the error text depends on Go's parser: for JSON that is malformed in the middle, which only
    /// upstream can report exactly.
    pub fn is_go_parsable(token: &str) -> bool {
        let Ok(json) = unbase64(token) else { return true };
        let first = json.iter().find(|byte| !byte.is_ascii_whitespace());
        let begins =
            first.is_some_and(|byte| matches!(byte, b'{' | b'[' | b'"' | b'-' | b'0'..=b'9' | b't' | b'f' | b'n'));
        !begins || serde_json::from_slice::<&RawValue>(&json).map_or_else(|error| error.is_eof(), |_| true)
    }

    /// Decodes a token of the proxy or the apiserver, in either spelling.
    ///
    /// # Errors
    /// The apiserver's text. For JSON that is malformed in the middle, only the beginning is the same.
    pub fn decode(token: &str) -> Result<Self, ContinueTokenError> {
        let ContinueTokenFields { version, revision, start } =
            ContinueTokenFields::read(&unbase64(token).map_err(ContinueTokenError)?)?;
        let refused = |why: String| Err(ContinueTokenError(why));
        if version != VERSION {
            return Err(ContinueTokenError(format!("server does not recognize this encoded version {version}")));
        }
        let at = match u64::try_from(revision) {
            Ok(0) => return refused(format!("incorrect encoded start resourceVersion (version {VERSION})")),
            Ok(revision) => ContinueVersion::Version(ResourceVersion(revision)),
            Err(_) => ContinueVersion::Latest,
        };
        if start.is_empty() {
            return refused(format!("encoded start key empty (version {VERSION})"));
        }
        let relative = start.strip_prefix('/').unwrap_or(&start);
        if !is_clean(relative) {
            return refused(start);
        }
        Ok(Self { version: at, start: relative.to_owned() })
    }
}

/// The members of a continue token, with Go's zero values for absent ones.
struct ContinueTokenFields {
    version: String,
    revision: i64,
    start: String,
}

impl ContinueTokenFields {
    fn read(json: &[u8]) -> Result<Self, ContinueTokenError> {
        let document: &RawValue =
            serde_json::from_slice(json).map_err(|error| ContinueTokenError(syntax_error(json, &error)))?;
        let mut fields = Self { version: String::new(), revision: 0, start: String::new() };
        let members: BTreeMap<String, &RawValue> = match document.get().as_bytes().first() {
            Some(b'n') => return Ok(fields),
            Some(b'{') => {
                serde_json::from_str(document.get()).map_err(|error| ContinueTokenError(error.to_string()))?
            }
            _ => return Err(mismatch(document, "Go value", "storage.continueToken")),
        };
        for (name, value) in members {
            // Go matches member names case-insensitively.
            match name.to_ascii_lowercase().as_str() {
                "v" => set(&mut fields.version, value, "v", "string")?,
                "rv" => set(&mut fields.revision, value, "rv", "int64")?,
                "start" => set(&mut fields.start, value, "start", "string")?,
                _ => {}
            }
        }
        Ok(fields)
    }
}

/// Parses one member of a continue token; `null` leaves it unchanged.
fn set<T: DeserializeOwned>(
    field: &mut T,
    value: &RawValue,
    name: &str,
    go_type: &str,
) -> Result<(), ContinueTokenError> {
    if value.get() == "null" {
        return Ok(());
    }
    let target = format!("Go struct field continueToken.{name}");
    *field = serde_json::from_str(value.get()).map_err(|_| mismatch(value, &target, go_type))?;
    Ok(())
}

/// Returns the text of Go's `json.UnmarshalTypeError`.
fn mismatch(value: &RawValue, target: &str, go_type: &str) -> ContinueTokenError {
    let kind = match value.get().as_bytes().first() {
        Some(b't' | b'f') => "bool",
        Some(b'"') => "string",
        Some(b'[') => "array",
        Some(b'{') => "object",
        _ if go_type == "int64" => &format!("number {}", value.get()),
        _ => "number",
    };
    ContinueTokenError(format!("json: cannot unmarshal {kind} into {target} of type {go_type}"))
}

/// Returns the text of Go's `json.SyntaxError`, as far as it follows from the character alone.
fn syntax_error(json: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let offending = json.iter().copied().find(|byte| !byte.is_ascii_whitespace()).unwrap_or_default();
    let quoted = match offending {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        byte => format!("'{}'", quote(&char::from(byte).to_string()).trim_matches('"')),
    };
    format!("invalid character {quoted} looking for beginning of value")
}

/// Decodes base64url as leniently as Go: line breaks are skipped, leftover bits ignored. The error names the position
/// of the first invalid byte, counting line breaks.
fn unbase64(text: &str) -> Result<Vec<u8>, String> {
    let corrupt = |at: usize| format!("illegal base64 data at input byte {at}");
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut n_bits) = (0_u32, 0);
    for (at, byte) in text.bytes().enumerate() {
        let sextet = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            b'\r' | b'\n' => continue,
            _ => return Err(corrupt(at)),
        };
        bits = (bits << 6) | u32::from(sextet);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits).to_le_bytes()[0]);
            bits &= (1 << n_bits) - 1;
        }
    }
    // A single remaining character holds no complete byte.
    if n_bits == 6 { Err(corrupt(text.len() - 1)) } else { Ok(bytes) }
}

/// Whether Go's `path.Clean` leaves `/` and `relative` unchanged. A path that it would change could leave the
/// collection.
fn is_clean(relative: &str) -> bool {
    relative.is_empty() || relative.split('/').all(|step| !matches!(step, "" | "." | ".."))
}
