use std::fmt;

/// One term of a field selector as part of a query: with the selector's own escapes, then URL-escaped.
///
/// The parsed form of a query's selector is [`FieldSelector`](super::FieldSelector).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EscapedFieldTerm<'a> {
    key: &'a str,
    operator: &'static str,
    value: &'a str,
}

impl<'a> EscapedFieldTerm<'a> {
    /// Creates the term `key=value`.
    pub fn is(key: &'a str, value: &'a str) -> Self {
        Self { key, operator: "%3D", value }
    }

    /// Creates the term `key!=value`.
    pub fn is_not(key: &'a str, value: &'a str) -> Self {
        Self { key, operator: "%21%3D", value }
    }
}

impl fmt::Display for EscapedFieldTerm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator, value } = *self;
        f.write_str(key)?;
        f.write_str(operator)?;
        // Names of RBAC objects may contain almost any character.
        for byte in value.bytes() {
            if matches!(byte, b'\\' | b',' | b'=') {
                f.write_str("%5C")?;
            }
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FieldSelector, UrlQuery};
    use super::*;

    #[test]
    fn field_term_is_escaped_as_the_apiserver_expects() {
        for (term, text) in [
            (EscapedFieldTerm::is("spec.nodeName", "n7"), "spec.nodeName%3Dn7"),
            (EscapedFieldTerm::is_not("spec.nodeName", "n7"), "spec.nodeName%21%3Dn7"),
            (EscapedFieldTerm::is("metadata.name", "system:a b"), "metadata.name%3Dsystem%3Aa%20b"),
            (EscapedFieldTerm::is("metadata.name", r"a,b=c\d"), "metadata.name%3Da%5C%2Cb%5C%3Dc%5C%5Cd"),
        ] {
            assert_eq!(term.to_string(), text);
        }
    }

    #[test]
    fn escaped_field_term_parses_to_the_same_value() {
        for value in ["n7", "", "a,b", "a=b", r"\", "%2C", "ü&x=1#"] {
            let query = UrlQuery::parse(&format!("fieldSelector={}", EscapedFieldTerm::is("k", value)));
            let read = FieldSelector::parse(query.first("fieldSelector").expect("it is there")).expect("a selector");
            assert_eq!(read.requires_exact("k"), Some(value));
        }
    }
}
