//! The grammar: a lexer and a recursive descent over its tokens, as in apimachinery's `pkg/labels/selector.go`. Keys and
//! values follow its `pkg/api/validate/content`.

use std::iter::Peekable;
use std::vec;

use crate::is_dns_subdomain;

/// One requirement of a label selector, as it is written.
pub(super) struct LabelSelectorRequirement<'a> {
    pub(super) key: &'a str,
    pub(super) operator: LabelOperator,
    /// The values, sorted and unique. Empty for the existence operators; one number for the comparisons.
    pub(super) values: Vec<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LabelOperator {
    Exists,
    DoesNotExist,
    /// Also `=` and `==`, with one value.
    In,
    /// Also `!=`, with one value.
    NotIn,
    GreaterThan,
    LessThan,
}

const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];
const SYMBOLS: [char; 7] = ['=', '!', '(', ')', ',', '>', '<'];
const LABEL_BYTES_MAX: usize = 63;

/// Parses all requirements of a label selector in the order written; `None` if the selector is invalid.
pub(super) fn requirements(text: &str) -> Option<Vec<LabelSelectorRequirement<'_>>> {
    let mut parser = LabelSelectorParser { tokens: tokens(text)?.into_iter().peekable() };
    let mut requirements = Vec::new();
    if parser.tokens.peek().is_none() {
        return Some(requirements);
    }
    loop {
        requirements.push(parser.requirement()?);
        match parser.tokens.next() {
            None => return Some(requirements),
            Some(",") => {}
            Some(_) => return None,
        }
    }
}

/// Splits `text` into symbols and words. `None` if it has a NUL byte, which ends the input in Go's lexer, or is skipped.
fn tokens(text: &str) -> Option<Vec<&str>> {
    if text.contains('\0') {
        return None;
    }
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(SPACES);
    while !rest.is_empty() {
        let length = match rest.as_bytes() {
            [b'=' | b'!', b'=', ..] => 2,
            _ if rest.starts_with(SYMBOLS) => 1,
            _ => rest.find(|c| SPACES.contains(&c) || SYMBOLS.contains(&c)).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after.trim_start_matches(SPACES);
    }
    Some(tokens)
}

struct LabelSelectorParser<'a> {
    tokens: Peekable<vec::IntoIter<&'a str>>,
}

impl<'a> LabelSelectorParser<'a> {
    fn requirement(&mut self) -> Option<LabelSelectorRequirement<'a>> {
        let is_negated = self.tokens.next_if_eq(&"!").is_some();
        let key = self.word().filter(|key| is_valid_key(key))?;
        if is_negated {
            return checked(key, LabelOperator::DoesNotExist, Vec::new());
        }
        if self.is_at_end() {
            return checked(key, LabelOperator::Exists, Vec::new());
        }
        // The words `in` and `notin` are keywords only here.
        let symbol = self.tokens.next()?;
        let operator = match symbol {
            "in" | "=" | "==" => LabelOperator::In,
            "notin" | "!=" => LabelOperator::NotIn,
            ">" => LabelOperator::GreaterThan,
            "<" => LabelOperator::LessThan,
            _ => return None,
        };
        let values = match symbol {
            "in" | "notin" => self.set()?,
            // A missing value is the empty one: `k=` and `k=,…`.
            _ if self.is_at_end() => vec![""],
            _ => vec![self.word()?],
        };
        checked(key, operator, values)
    }

    /// Whether the requirement ends before the next token.
    fn is_at_end(&mut self) -> bool {
        matches!(self.tokens.peek(), None | Some(&","))
    }

    fn word(&mut self) -> Option<&'a str> {
        self.tokens.next().filter(|token| !token.starts_with(SYMBOLS))
    }

    /// Parses `(a,b)`. An empty position is the empty value: `()`, `(,a)`, `(a,)`, `(a,,b)`.
    fn set(&mut self) -> Option<Vec<&'a str>> {
        self.tokens.next_if_eq(&"(")?;
        if self.tokens.next_if_eq(&")").is_some() {
            return Some(vec![""]);
        }
        let mut values = Vec::new();
        loop {
            if self.tokens.next_if_eq(&",").is_some() {
                if values.is_empty() {
                    values.push("");
                }
                if self.tokens.peek() == Some(&")") {
                    values.push("");
                    break;
                }
                // Go takes two commas at once, and so refuses `(a,,)`.
                if self.tokens.next_if_eq(&",").is_some() {
                    values.push("");
                }
            } else {
                values.push(self.word()?);
                match *self.tokens.peek()? {
                    "," => {}
                    ")" => break,
                    _ => return None,
                }
            }
        }
        self.tokens.next(); // the `)`
        Some(values)
    }
}

/// Builds a requirement after checking its values: they must be valid label values, and numbers if the operator
/// compares numbers. The key was checked when it was parsed.
fn checked<'a>(
    key: &'a str,
    operator: LabelOperator,
    mut values: Vec<&'a str>,
) -> Option<LabelSelectorRequirement<'a>> {
    values.sort_unstable();
    values.dedup();
    let compares_numbers = matches!(operator, LabelOperator::GreaterThan | LabelOperator::LessThan);
    let is_valid =
        |value: &&str| (value.is_empty() || is_name(value)) && (!compares_numbers || value.parse::<i64>().is_ok());
    values.iter().all(is_valid).then_some(LabelSelectorRequirement { key, operator, values })
}

/// Whether a label key is valid: an optional DNS subdomain and `/`, then a name.
fn is_valid_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_name(key),
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_name(name),
    }
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= LABEL_BYTES_MAX
        && ends.iter().all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}
