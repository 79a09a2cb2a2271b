//! The grammar of field selectors: terms are separated by commas, and each is split at its first operator.

/// A condition on a field: a key, a value, and whether they must be equal or must differ.
pub(super) type FieldCondition = (String, String, bool);

pub(super) fn parse(text: &str) -> Result<Vec<FieldCondition>, String> {
    let mut terms = split(text);
    terms.sort_unstable();
    terms.into_iter().filter(|term| !term.is_empty()).map(parse_term).collect()
}

/// Splits at commas that no backslash escapes.
fn split(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (vec![], 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn parse_term(term: &str) -> Result<FieldCondition, String> {
    for (at, _) in term.char_indices() {
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some(value) = term[at..].strip_prefix(operator) {
                return Ok((term[..at].to_owned(), unescape(value)?, equal));
            }
        }
    }
    Err(format!("invalid selector: '{term}'; can't understand '{term}'"))
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    let character = other.map(String::from).unwrap_or_default();
                    return Err(format!("invalid field selector: invalid escape sequence: \\{character}"));
                }
            },
            ',' | '=' => return Err(format!("invalid field selector: unescaped character in value: {}", c as u32)),
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_terms_are_sorted_and_values_unescaped() {
        let term = |key: &str, value: &str, equal| (key.to_owned(), value.to_owned(), equal);
        assert_eq!(parse("b!=2,,a==x\\,y").unwrap(), [term("a", "x,y", true), term("b", "2", false)]);
        assert_eq!(parse("spec.nodeName=").unwrap(), [term("spec.nodeName", "", true)]);
        assert_eq!(parse("foo").unwrap_err(), "invalid selector: 'foo'; can't understand 'foo'");
        assert_eq!(parse("a=b=c").unwrap_err(), "invalid field selector: unescaped character in value: 61");
        assert_eq!(parse("a=\\q").unwrap_err(), "invalid field selector: invalid escape sequence: \\q");
    }
}
