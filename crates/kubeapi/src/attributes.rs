use std::cmp::Ordering;
use std::fmt;

/// The attributes of one object that selectors match, in addition to its key.
///
/// A feed stores one per object, so all of it is one allocation: separate strings for each label would cost more than
/// their contents.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SelectableAttributes {
    /// Empty if there are no texts. Otherwise, in this order:
    /// - the width of a number in bytes;
    /// - numbers: the count of labels, the count of texts, and the end offset of each text;
    /// - the texts: labels sorted by key, each key followed by its value, then fields.
    packed: Box<str>,
    /// The hash of the object's UID for shard selectors, which takes less memory than the UID.
    uid_hash: u64,
}

/// The width in bytes of a number that is stored in the text. Each byte holds seven bits, so that it is an ASCII
/// character. A wide number holds the length of any text.
const NARROW: usize = 2;
const WIDE: usize = 5;
const BITS: usize = 7;

impl SelectableAttributes {
    /// Packs labels and fields. `labels` must be sorted by key, and keys unique. `fields` has one value for each entry
    /// of the resource's [`SelectableFieldTable::fields`](super::SelectableFieldTable::fields), in that order. A field
    /// that the object lacks has its kind's [absent text](super::FieldValueKind::absent_text), usually `""`: the
    /// apiserver compares it as that (R-FIELD-2).
    pub fn new<L: AsRef<str>, F: AsRef<str>>(labels: &[(L, L)], fields: &[F]) -> Self {
        debug_assert!(labels.windows(2).all(|pair| pair[0].0.as_ref() < pair[1].0.as_ref()), "sorted, unique");
        let all = || {
            let labels = labels.iter().flat_map(|(key, value)| [key.as_ref(), value.as_ref()]);
            labels.chain(fields.iter().map(AsRef::as_ref))
        };
        let count = 2 * labels.len() + fields.len();
        if count == 0 {
            return Self::default();
        }
        let length: usize = all().map(str::len).sum();
        let width = if length.max(count) < 1 << (NARROW * BITS) { NARROW } else { WIDE };
        let mut packed = String::with_capacity(1 + (2 + count) * width + length);
        let mut end = 0;
        let ends = all().map(|text| {
            end += text.len();
            end
        });
        packed.push(ascii(width));
        for number in [labels.len(), count].into_iter().chain(ends) {
            packed.extend((0..width).rev().map(|digit| ascii(number >> (digit * BITS))));
        }
        all().for_each(|text| packed.push_str(text));
        Self { packed: packed.into(), ..Self::default() }
    }

    /// Returns the same attributes for an object with the given UID.
    #[must_use]
    pub fn with_uid(self, uid: &[u8]) -> Self {
        Self { uid_hash: shard_hash(uid), ..self }
    }

    /// Returns the [hash](shard_hash) of the object's UID.
    pub fn uid_hash(&self) -> u64 {
        self.uid_hash
    }

    /// Returns the labels, sorted by key.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        (0..self.label_count()).map(|label| (self.text(2 * label), self.text(2 * label + 1)))
    }

    /// Returns the values of the table's fields, in its order.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = &str> {
        (2 * self.label_count()..self.text_count()).map(|text| self.text(text))
    }

    /// Returns the value of the field at a position in the table; `""` beyond its end.
    pub fn field(&self, position: usize) -> &str {
        self.text(2 * self.label_count() + position)
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        let (mut low, mut high) = (0, self.label_count());
        while low < high {
            let middle = low.midpoint(high);
            match self.text(2 * middle).cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Some(self.text(2 * middle + 1)),
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// The number of bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.packed.len()
    }

    fn label_count(&self) -> usize {
        self.number(0)
    }

    fn text_count(&self) -> usize {
        self.number(1)
    }

    /// Returns the text at a position; `""` beyond the last one.
    #[inline]
    fn text(&self, at: usize) -> &str {
        let count = self.text_count();
        if at >= count {
            return "";
        }
        let width = self.packed.as_bytes().first().map_or(0, |width| usize::from(*width));
        let texts = 1 + (2 + count) * width;
        let start = if at == 0 { 0 } else { self.number(at + 1) };
        self.packed.get(texts + start..texts + self.number(at + 2)).unwrap_or_default()
    }

    /// Returns the number at a position; 0 if there are no texts.
    #[inline]
    fn number(&self, at: usize) -> usize {
        let digits = |digits: &[u8]| digits.iter().fold(0, |number, digit| number << BITS | usize::from(*digit));
        match self.packed.as_bytes() {
            // The common case; a constant width needs no loop.
            [width, rest @ ..] if usize::from(*width) == NARROW => {
                rest.get(NARROW * at..).and_then(|rest| rest.first_chunk::<NARROW>()).map_or(0, |all| digits(all))
            }
            [_, rest @ ..] => rest.get(WIDE * at..WIDE * (at + 1)).map_or(0, digits),
            [] => 0,
        }
    }
}

/// The hash of KEP-5866: 64-bit FNV-1a.
pub fn shard_hash(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns the lowest seven bits of a number as an ASCII character.
fn ascii(number: usize) -> char {
    char::from(u8::try_from(number % (1 << BITS)).expect("seven bits"))
}

impl fmt::Debug for SelectableAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (labels, fields): (Vec<_>, Vec<_>) = (self.labels().collect(), self.fields().collect());
        f.debug_struct("SelectableAttributes").field("labels", &labels).field("fields", &fields).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_key_and_fields_by_position() {
        let labels = [("a", "1"), ("b", ""), ("bb", "ü"), ("c", "1")];
        for n in 0..=labels.len() {
            let attributes = SelectableAttributes::new(&labels[..n], &["x", "", "y"]);
            assert_eq!(attributes.labels().collect::<Vec<_>>(), labels[..n]);
            assert_eq!(attributes.fields().collect::<Vec<_>>(), ["x", "", "y"]);
            for (at, (key, value)) in labels.into_iter().enumerate() {
                assert_eq!(attributes.label(key), Some(value).filter(|_| at < n), "{key} of {n}");
            }
            for absent in ["", "0", "aa", "ba", "d"] {
                assert_eq!(attributes.label(absent), None);
            }
            let fields = [0, 1, 2, 3, usize::MAX / 4].map(|position| attributes.field(position));
            assert_eq!(fields, ["x", "", "y", "", ""]);
        }
    }

    #[test]
    fn long_and_numerous_attributes_are_found() {
        for length in [16_383, 16_384, 3_000_000] {
            let long = "x".repeat(length - 2);
            let attributes = SelectableAttributes::new(&[("a", &*long)], &["y"]);
            assert_eq!(attributes.label("a"), Some(&*long), "{length}");
            assert_eq!((attributes.field(0), attributes.field(1)), ("y", ""), "{length}");
        }
        let blank: Vec<_> = std::iter::repeat_n("", 16_384).collect();
        let many = SelectableAttributes::new(&[("", ""); 0], &blank);
        assert_eq!((many.fields().len(), many.field(16_383), many.label("")), (16_384, "", None));
        let keys: Vec<_> = (10_000..30_000).map(|n| n.to_string()).collect();
        let labels: Vec<_> = keys.iter().map(|key| (&**key, "")).collect();
        let attributes = SelectableAttributes::new(&labels, &[""; 0]);
        assert_eq!(attributes.labels().collect::<Vec<_>>(), labels);
        assert_eq!((attributes.label("29999"), attributes.label("30000")), (Some(""), None));
    }

    #[test]
    fn attributes_with_different_boundaries_are_not_equal() {
        let of = |key, value, field| SelectableAttributes::new(&[(key, value)], &[field]);
        assert_eq!(of("a", "b", "c"), of("a", "b", "c"));
        assert_ne!(of("a", "b", "c"), of("ab", "", "c"));
        assert_ne!(of("a", "b", "c"), SelectableAttributes::new(&[("", ""); 0], &["a", "b", "c"]));
    }

    #[test]
    fn empty_attributes_use_no_memory_and_find_nothing() {
        let empty = SelectableAttributes::default();
        assert_eq!((empty.labels().len(), empty.fields().len(), empty.heap_bytes()), (0, 0, 0));
        assert_eq!((empty.label("a"), empty.field(0)), (None, ""));
    }
}
