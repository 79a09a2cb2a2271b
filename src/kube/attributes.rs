use std::cmp::Ordering;
use std::fmt;

/// What selectors look at in one object, besides its key.
///
/// A feed has one for each object: all texts are in one piece, for a label as two strings of their own costs more for
/// the strings than for what is in them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Labels sorted by key, each key with its value behind it, then fields.
    texts: Box<str>,
    /// How many labels there are, then where each text ends and the next one begins. Empty without any text.
    marks: Box<[u32]>,
}

impl Attributes {
    /// `labels` must be sorted by key, and keys unique. `fields` has one value for each entry of the resource's
    /// [`FieldTable::fields`](super::FieldTable::fields), in that order. A field that the object lacks has its kind's
    /// [absent text](super::FieldKind::absent_text), mostly `""`: the apiserver compares it so (R-FIELD-2).
    pub fn new<L: AsRef<str>, F: AsRef<str>>(labels: &[(L, L)], fields: &[F]) -> Self {
        debug_assert!(labels.windows(2).all(|pair| pair[0].0.as_ref() < pair[1].0.as_ref()), "sorted, unique");
        let all = || {
            let labels = labels.iter().flat_map(|(key, value)| [key.as_ref(), value.as_ref()]);
            labels.chain(fields.iter().map(AsRef::as_ref))
        };
        let mut texts = String::with_capacity(all().map(str::len).sum());
        let count = 2 * labels.len() + fields.len();
        if count == 0 {
            return Self::default();
        }
        let mark = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let mut marks = Vec::with_capacity(1 + count);
        marks.push(mark(labels.len()));
        for text in all() {
            texts.push_str(text);
            marks.push(mark(texts.len()));
        }
        Self { texts: texts.into(), marks: marks.into() }
    }

    /// Sorted by key.
    pub fn labels(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        (0..self.label_count()).map(|label| (self.text(2 * label), self.text(2 * label + 1)))
    }

    /// The values of the table's fields, in its order.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = &str> {
        (2 * self.label_count()..self.marks.len().saturating_sub(1)).map(|text| self.text(text))
    }

    /// The value of the field at a place in the table; `""` beyond its end.
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

    /// Bytes that it holds besides itself.
    pub fn held_bytes(&self) -> usize {
        self.texts.len() + size_of_val(&*self.marks)
    }

    fn label_count(&self) -> usize {
        self.marks.first().map_or(0, |labels| *labels as usize)
    }

    #[inline]
    fn text(&self, at: usize) -> &str {
        let start = if at == 0 { Some(&0) } else { self.marks.get(at) };
        let text =
            start.zip(self.marks.get(at + 1)).and_then(|(start, end)| self.texts.get(*start as usize..*end as usize));
        text.unwrap_or_default()
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (labels, fields): (Vec<_>, Vec<_>) = (self.labels().collect(), self.fields().collect());
        f.debug_struct("Attributes").field("labels", &labels).field("fields", &fields).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_found_where_it_was_put() {
        let labels = [("a", "1"), ("b", ""), ("bb", "ü"), ("c", "1")];
        for n in 0..=labels.len() {
            let attributes = Attributes::new(&labels[..n], &["x", "", "y"]);
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
    fn equal_texts_cut_elsewhere_are_not_equal() {
        let of = |key, value, field| Attributes::new(&[(key, value)], &[field]);
        assert_eq!(of("a", "b", "c"), of("a", "b", "c"));
        assert_ne!(of("a", "b", "c"), of("ab", "", "c"));
        assert_ne!(of("a", "b", "c"), Attributes::new(&[("", ""); 0], &["a", "b", "c"]));
    }

    #[test]
    fn without_anything_there_is_nothing() {
        let empty = Attributes::default();
        assert_eq!((empty.labels().len(), empty.fields().len(), empty.held_bytes()), (0, 0, 0));
        assert_eq!((empty.label("a"), empty.field(0)), (None, ""));
    }
}
