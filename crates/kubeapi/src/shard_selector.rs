use std::fmt;
use std::ops::Range;

use super::{ObjectKey, SelectableAttributes, shard_hash};

/// A selector of objects by ranges of a hash (R-SHARD-1): the parameter `shardSelector` of KEP-5866.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShardSelector {
    key: ShardKey,
    /// The ranges in the order of the text, which a list repeats. They may overlap.
    ranges: Box<[Range<u128>]>,
}

/// The value that is hashed. An object never changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShardKey {
    Uid,
    Namespace,
}

impl ShardSelector {
    /// Parses ranges joined by `||`; `None` for any other CEL expression, although the apiserver accepts a few more,
    /// such as parentheses.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parser = ShardSelectorParser { rest: text };
        let (key, first) = parser.range()?;
        let mut ranges = vec![first];
        while parser.takes("||") {
            let (other, range) = parser.range()?;
            (other == key).then(|| ranges.push(range))?;
        }
        parser.is_at_end().then(|| Self { key, ranges: ranges.into() })
    }

    pub fn key(&self) -> ShardKey {
        self.key
    }

    /// Returns the ranges, in the order of the text.
    pub fn ranges(&self) -> &[Range<u128>] {
        &self.ranges
    }

    pub fn matches(&self, key: &ObjectKey, attributes: &SelectableAttributes) -> bool {
        let hash = u128::from(self.key.hash_of(key, attributes));
        self.ranges.iter().any(|range| range.contains(&hash))
    }
}

impl ShardKey {
    /// Returns an object's hash.
    pub fn hash_of(self, key: &ObjectKey, attributes: &SelectableAttributes) -> u64 {
        match self {
            Self::Uid => attributes.uid_hash(),
            Self::Namespace => shard_hash(key.namespace().as_bytes()),
        }
    }
}

/// Writes the selector as the apiserver does in a list's `shardInfo`.
impl fmt::Display for ShardSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = match self.key {
            ShardKey::Uid => "uid",
            ShardKey::Namespace => "namespace",
        };
        for (at, Range { start, end }) in self.ranges.iter().enumerate() {
            let separator = if at == 0 { "" } else { " || " };
            write!(f, "{separator}shardRange(object.metadata.{key}, '{start:#018x}', '{end:#018x}')")?;
        }
        Ok(())
    }
}

struct ShardSelectorParser<'a> {
    rest: &'a str,
}

impl ShardSelectorParser<'_> {
    fn range(&mut self) -> Option<(ShardKey, Range<u128>)> {
        let head = ["shardRange", "(", "object", ".", "metadata", "."];
        head.into_iter().all(|token| self.takes(token)).then_some(())?;
        let key =
            if self.takes("uid") { ShardKey::Uid } else { self.takes("namespace").then_some(ShardKey::Namespace)? };
        let start = self.takes(",").then(|| self.bound())??;
        let end = self.takes(",").then(|| self.bound())??;
        (self.takes(")") && start < end).then_some((key, start..end))
    }

    /// Takes a quoted number of 16 lower-case hexadecimal digits, or the end of the hashes.
    fn bound(&mut self) -> Option<u128> {
        let quote = ["'", "\""].into_iter().find(|quote| self.takes(quote))?;
        let (text, rest) = self.rest.split_once(quote)?;
        let digits = text.strip_prefix("0x")?;
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_length = digits.len() == 16 || text == "0x10000000000000000";
        self.rest = rest;
        let bound = (is_length && digits.bytes().all(is_digit)).then(|| u128::from_str_radix(digits, 16));
        bound?.ok()
    }

    /// Takes a token, if it is the next one. CEL permits white space around tokens.
    fn takes(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.trim_ascii_start().strip_prefix(token) else { return false };
        self.rest = rest;
        true
    }

    fn is_at_end(&self) -> bool {
        self.rest.trim_ascii().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: &str = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')";
    const REST: &str = "shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')";

    #[test]
    fn ranges_joined_by_or_are_parsed_and_written_as_upstream() {
        let both = format!("{HALF} || {REST}");
        let spaced = "\t shardRange\n( object . metadata.uid,\"0x0000000000000000\" ,'0x8000000000000000' )\r\n";
        let namespaces = HALF.replace("uid", "namespace");
        for (text, written) in [(HALF, HALF), (REST, REST), (&both, &both), (spaced, HALF), (&namespaces, &namespaces)]
        {
            assert_eq!(ShardSelector::parse(text).expect(text).to_string(), written);
        }
    }

    #[test]
    fn other_expressions_are_not_parsed() {
        let half = |from, to| HALF.replace(from, to);
        for text in [
            String::new(),
            " ".to_owned(),
            format!("({HALF})"),
            format!("{HALF} ||"),
            format!("{HALF} | {REST}"),
            format!("{HALF} && {REST}"),
            format!("{HALF}, {REST}"),
            format!("{HALF} || {}", REST.replace("uid", "namespace")),
            format!("{HALF} // all"),
            format!("{HALF}\u{a0}"),
            half("uid", "name"),
            half("uid", "uids"),
            half("metadata.", ""),
            half("shardRange", "range"),
            half("shardRange", ".shardRange"),
            half("'0x0", "r'0x0"),
            half("'0x0000000000000000'", "'''0x0000000000000000'''"),
            half("'0x0000000000000000'", "'0x0000000000000000\""),
            half("'0x0000000000000000'", "0"),
            half("0x0000000000000000", "0x0"),
            half("0x0000000000000000", "0x00000000000000000"),
            half("0x0000000000000000", "0X0000000000000000"),
            half("0x0000000000000000", "0000000000000000"),
            half("0x0000000000000000", "0x000000000000000A"),
            half("0x0000000000000000", "0x+000000000000000"),
            half("0x0000000000000000", "0x8000000000000000"),
            half("0x0000000000000000", "0x10000000000000000"),
            half("0x8000000000000000", "0x10000000000000001"),
            half(", '0x8000000000000000'", ""),
            half("')", "', '0x8000000000000000')"),
        ] {
            assert_eq!(ShardSelector::parse(&text), None, "{text}");
        }
    }

    /// Hashes of FNV's reference, `fnv1a_64`.
    #[test]
    fn hash_is_fnv_1a() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(shard_hash(text.as_bytes()), hash);
        }
    }

    #[test]
    fn object_is_in_the_range_that_contains_its_hash() {
        let [at, next] = [0, 1].map(|more| format!("{:#018x}", 0x8594_4171_f739_67e8_u64 + more));
        let matches = |key: &str, start: &str, end: &str| {
            let text = HALF.replace("uid", key).replace("0x0000000000000000", start);
            let selector = ShardSelector::parse(&text.replace("0x8000000000000000", end)).expect("valid");
            let of = |namespace, uid: &str| {
                selector
                    .matches(&ObjectKey::new(namespace, "p"), &SelectableAttributes::default().with_uid(uid.as_bytes()))
            };
            [of("a", "foobar"), of("foobar", "a")]
        };
        assert_eq!(matches("uid", &at, &next), [true, false]);
        assert_eq!(matches("namespace", &at, &next), [false, true]);
        assert_eq!(matches("uid", &next, "0x10000000000000000"), [false, true]);
        assert_eq!(matches("uid", "0x0000000000000000", &at), [false, false]);
        assert_eq!(matches("uid", "0x0000000000000000", "0x10000000000000000"), [true, true]);
    }
}
