//! Parses the selection of a request, independently of the judged code: a namespace, labels, fields and a shard.

use std::collections::BTreeMap;

/// The labels and fields of an object, besides its key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LabelsAndFields {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) fields: BTreeMap<String, String>,
}

/// A namespace, or all, with requirements for labels, fields and the shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ObjectSelection {
    /// The selected namespace; empty for all namespaces and for cluster-wide resources.
    pub(super) namespace: String,
    labels: Vec<(String, LabelRequirement)>,
    fields: Vec<FieldRequirement>,
    /// The ranges of hashes of KEP-5866, of which an object is in one; none if there is no shard selector.
    shards: Vec<ShardRange>,
}

/// A requirement of a selection for a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LabelRequirement {
    Present,
    Absent,
    OneOf(Vec<String>),
    /// The label has none of these values. An object without the label also matches.
    NoneOf(Vec<String>),
    Above(i64),
    Below(i64),
}

/// A requirement of a selection for a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FieldRequirement {
    field: String,
    value: String,
    equal: bool,
}

/// A range of hashes of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ShardRange {
    /// Whether the value is the namespace, otherwise the UID.
    is_namespace: bool,
    from: u128,
    to: u128,
}

impl ObjectSelection {
    /// Parses selectors. Returns `None` if one is malformed, because such requests do not concern history.
    pub(super) fn parse(namespace: &str, labels: &str, fields: &str) -> Option<Self> {
        let labels = pieces(labels, true).into_iter().map(label).collect::<Option<_>>()?;
        let fields = pieces(fields, false).into_iter().map(field).collect::<Option<_>>()?;
        Some(Self { namespace: namespace.to_owned(), labels, fields, shards: Vec::new() })
    }

    /// Adds a shard selector. Returns `None` if it is malformed.
    pub(super) fn of_shards(self, text: &str) -> Option<Self> {
        let ranges = text.split("||").filter(|_| !text.is_empty()).map(shard_range);
        Some(Self { shards: ranges.collect::<Option<_>>()?, ..self })
    }

    /// Whether the selection is of one object, by its namespace and name.
    pub(super) fn is_of_one(&self) -> bool {
        let names = self.fields.iter().any(|term| term.field == "metadata.name" && term.equal);
        names && !self.namespace.is_empty()
    }

    /// Whether the selection has a selector.
    pub(super) fn is_selective(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty() || !self.shards.is_empty()
    }

    /// Whether an object's key matches the namespace, the name and a shard of namespaces.
    pub(super) fn covers(&self, key: &str) -> bool {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let fits = |term: &FieldRequirement| match term.field.as_str() {
            "metadata.name" => (term.value == name) == term.equal,
            "metadata.namespace" => (term.value == namespace) == term.equal,
            _ => true,
        };
        (self.namespace.is_empty() || self.namespace == namespace)
            && self.fields.iter().all(fits)
            && self.is_in_shard(true, namespace)
    }

    /// Whether labels, fields and a shard of UIDs match, except name and namespace.
    pub(super) fn admits(&self, object: &LabelsAndFields) -> bool {
        let fits = |term: &FieldRequirement| {
            let found = object.fields.get(&term.field).map_or("", String::as_str);
            term.is_of_key() || (found == term.value) == term.equal
        };
        self.labels.iter().all(|(key, test)| test.holds(object.labels.get(key)))
            && self.fields.iter().all(fits)
            && self.is_in_shard(false, object.fields.get("metadata.uid").map_or("", String::as_str))
    }

    /// Whether there are no shards of a value, or one of them has it.
    fn is_in_shard(&self, is_namespace: bool, value: &str) -> bool {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in value.as_bytes() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let mut ranges = self.shards.iter().filter(|range| range.is_namespace == is_namespace).peekable();
        ranges.peek().is_none() || ranges.any(|range| range.from <= hash.into() && u128::from(hash) < range.to)
    }
}

impl FieldRequirement {
    fn is_of_key(&self) -> bool {
        matches!(self.field.as_str(), "metadata.name" | "metadata.namespace")
    }
}

impl LabelRequirement {
    fn holds(&self, value: Option<&String>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::Present => value.is_some(),
            Self::Absent => value.is_none(),
            Self::OneOf(values) => value.is_some_and(|value| values.contains(value)),
            Self::NoneOf(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Above(bound) => number().is_some_and(|number| number > *bound),
            Self::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// Splits at commas, except inside parentheses (of labels) and after a backslash (of fields).
fn pieces(text: &str, parentheses: bool) -> Vec<&str> {
    let (mut found, mut start, mut depth, mut escaped) = (Vec::new(), 0, 0_usize, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if !parentheses => escaped = true,
            '(' if parentheses => depth += 1,
            ')' if parentheses => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[start..]);
    found.into_iter().map(str::trim).filter(|piece| !piece.is_empty()).collect()
}

fn label(piece: &str) -> Option<(String, LabelRequirement)> {
    let named = |key: &str, test| {
        let key = key.trim();
        let odd = |letter: char| letter.is_whitespace() || "=!<>()".contains(letter);
        (!key.is_empty() && !key.contains(odd)).then(|| (key.to_owned(), test))
    };
    let one = |value: &str| vec![value.trim().to_owned()];
    if let Some(key) = piece.strip_prefix('!') {
        return named(key, LabelRequirement::Absent);
    }
    if let Some((before, values)) = piece.strip_suffix(')').and_then(|piece| piece.split_once('(')) {
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let before = before.trim();
        return match before.rsplit_once(char::is_whitespace)? {
            (key, "in") => named(key, LabelRequirement::OneOf(values)),
            (key, "notin") => named(key, LabelRequirement::NoneOf(values)),
            _ => None,
        };
    }
    if let Some((key, value)) = piece.split_once("!=") {
        return named(key, LabelRequirement::NoneOf(one(value)));
    }
    if let Some((key, value)) = piece.split_once('=') {
        return named(key, LabelRequirement::OneOf(one(value.strip_prefix('=').unwrap_or(value))));
    }
    if let Some((key, bound)) = piece.split_once('>') {
        return named(key, LabelRequirement::Above(bound.trim().parse().ok()?));
    }
    if let Some((key, bound)) = piece.split_once('<') {
        return named(key, LabelRequirement::Below(bound.trim().parse().ok()?));
    }
    named(piece, LabelRequirement::Present)
}

fn shard_range(piece: &str) -> Option<ShardRange> {
    let arguments = piece.trim().strip_prefix("shardRange(")?.strip_suffix(')')?;
    let [field, from, to] = arguments.split(',').map(str::trim).collect::<Vec<_>>()[..] else { return None };
    let bound = |text: &str| u128::from_str_radix(text.strip_prefix("'0x")?.strip_suffix('\'')?, 16).ok();
    let is_namespace = match field {
        "object.metadata.uid" => false,
        "object.metadata.namespace" => true,
        _ => return None,
    };
    Some(ShardRange { is_namespace, from: bound(from)?, to: bound(to)? })
}

fn field(piece: &str) -> Option<FieldRequirement> {
    let at = piece.find('=')?;
    let (field, equal) = match piece[..at].strip_suffix('!') {
        Some(field) => (field, false),
        None => (&piece[..at], true),
    };
    let value = &piece[at + 1..];
    let value = if equal { value.strip_prefix('=').unwrap_or(value) } else { value };
    let mut plain = String::new();
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        plain.push(if letter == '\\' { letters.next()? } else { letter });
    }
    Some(FieldRequirement { field: field.to_owned(), value: plain, equal })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(labels: &[(&str, &str)], fields: &[(&str, &str)]) -> LabelsAndFields {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        LabelsAndFields { labels: map(labels), fields: map(fields) }
    }

    #[test]
    fn selector_operators_match_as_documented() {
        let object = object(&[("app", "x"), ("n", "5"), ("empty", "")], &[("spec.nodeName", "n,1")]);
        let admits = |labels: &str, fields: &str| ObjectSelection::parse("", labels, fields).unwrap().admits(&object);
        let yes = "app; !other; app=x; app == x; app!=y; other!=y; app in (x, y); app notin (z); n>4; n<6; empty=; \
            empty in (); app,n,app!=z; other notin (a); app in (y,x),n in (5)";
        for labels in yes.split("; ") {
            assert!(admits(labels, ""), "{labels}");
        }
        for labels in "!app; other; app=y; app!=x; app in (y); app notin (x,y); n>5; app>1; other>1; app,z".split("; ")
        {
            assert!(!admits(labels, ""), "{labels}");
        }
        for fields in [r"spec.nodeName=n\,1", r"spec.nodeName==n\,1", "spec.nodeName!=n", "status.phase=", ""] {
            assert!(admits("", fields), "{fields}");
        }
        assert!(!admits("", "spec.nodeName=") && !admits("", "status.phase!="));
    }

    #[test]
    fn selection_covers_only_exact_namespace_and_name() {
        let covers = |namespace, fields, key| ObjectSelection::parse(namespace, "", fields).unwrap().covers(key);
        assert!(covers("", "", "a/x") && covers("a", "", "a/x") && !covers("a", "", "a-b/x") && !covers("a", "", "x"));
        assert!(covers("", "metadata.name=x", "a/x") && !covers("", "metadata.name=x", "a/xy"));
        assert!(covers("", "metadata.namespace!=b", "a/x") && !covers("", "metadata.namespace=b", "a/x"));
    }

    #[test]
    fn shard_has_the_hashes_of_its_ranges() {
        let half =
            |field: &str| format!("shardRange(object.metadata.{field}, '0x8000000000000000', '0x10000000000000000')");
        let low = "shardRange(object.metadata.uid, '0x0000000000000000', '0x0000000000000001')";
        let selection = |text: &str| ObjectSelection::parse("", "", "").unwrap().of_shards(text);
        // The hash of `foobar` is 0x85944171f73967e8, that of `g` 0xaf63da4c8601e926, that of `world` 0x4f59ff5e730c8af3.
        for (uid, is_high) in [("foobar", true), ("g", true), ("world", false)] {
            let object = object(&[], &[("metadata.uid", uid)]);
            for text in [half("uid"), format!("{low} || {}", half("uid"))] {
                assert_eq!(selection(&text).unwrap().admits(&object), is_high, "{uid} {text}");
                assert!(selection(&text).unwrap().covers("world/p"), "{uid}");
            }
            assert_eq!(selection(&half("namespace")).unwrap().covers(&format!("{uid}/p")), is_high, "{uid}");
            assert!(selection(&half("namespace")).unwrap().admits(&object), "{uid}");
        }
        assert!(!selection("").unwrap().is_selective() && selection(low).unwrap().is_selective());
        assert_eq!(selection("shardRange(object.metadata.name, '0x0', '0x1')"), None);
    }

    #[test]
    fn malformed_selector_is_rejected() {
        for labels in ["a in", "a b", "=x", "n>x", "a foo (b)"] {
            assert_eq!(ObjectSelection::parse("", labels, ""), None, "{labels}");
        }
        assert_eq!(ObjectSelection::parse("", "", "name"), None);
    }
}
