//! The grammar: a lexer and a recursive descent over its tokens, as in apimachinery's `pkg/labels/selector.go`.

use std::iter::Peekable;
use std::vec;

use super::validate::{is_valid_key, is_valid_value};
use super::{LabelOperator, LabelSelectorRequirement};

/// Parses all requirements of a label selector in the order written; `None` if the selector is invalid.
pub(super) fn requirements(text: &str) -> Option<Vec<LabelSelectorRequirement>> {
    let mut parser = LabelSelectorParser { tokens: tokens(text)?.into_iter().peekable() };
    let mut requirements = Vec::new();
    if parser.tokens.peek().is_none() {
        return Some(requirements);
    }
    loop {
        requirements.push(parser.requirement()?);
        match parser.tokens.next() {
            None => return Some(requirements),
            Some(LabelToken::Comma) => {}
            Some(_) => return None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LabelToken<'a> {
    Open,
    Close,
    Comma,
    Not,
    Equals,
    DoubleEquals,
    NotEquals,
    Greater,
    Less,
    /// A word of a selector: a key, a value, or one of the keywords `in` and `notin`, which are recognized only as
    /// operators.
    Identifier(&'a str),
}

/// Splits `text` into tokens. `None` if it has a NUL byte, which ends the input in Go's lexer, or is skipped.
fn tokens(text: &str) -> Option<Vec<LabelToken<'_>>> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (token, length) = match (byte, bytes.get(at + 1)) {
            (0, _) => return None,
            (b' ' | b'\t' | b'\r' | b'\n', _) => {
                at += 1;
                continue;
            }
            (b'=', Some(b'=')) => (LabelToken::DoubleEquals, 2),
            (b'=', _) => (LabelToken::Equals, 1),
            (b'!', Some(b'=')) => (LabelToken::NotEquals, 2),
            (b'!', _) => (LabelToken::Not, 1),
            (b'(', _) => (LabelToken::Open, 1),
            (b')', _) => (LabelToken::Close, 1),
            (b',', _) => (LabelToken::Comma, 1),
            (b'>', _) => (LabelToken::Greater, 1),
            (b'<', _) => (LabelToken::Less, 1),
            _ => {
                let length = bytes[at..].iter().position(|&byte| ends_word(byte)).unwrap_or(bytes.len() - at);
                (LabelToken::Identifier(&text[at..at + length]), length)
            }
        };
        at += length;
        tokens.push(token);
    }
    Some(tokens)
}

fn ends_word(byte: u8) -> bool {
    matches!(byte, 0 | b' ' | b'\t' | b'\r' | b'\n' | b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

struct LabelSelectorParser<'a> {
    tokens: Peekable<vec::IntoIter<LabelToken<'a>>>,
}

impl<'a> LabelSelectorParser<'a> {
    fn requirement(&mut self) -> Option<LabelSelectorRequirement> {
        let is_negated = self.tokens.next_if_eq(&LabelToken::Not).is_some();
        let key = self.identifier().filter(|key| is_valid_key(key))?;
        if is_negated {
            return checked(key, LabelOperator::DoesNotExist, Vec::new());
        }
        if self.is_at_end() {
            return checked(key, LabelOperator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            LabelOperator::In | LabelOperator::NotIn => self.set()?,
            // A missing value is the empty one: `k=` and `k=,…`.
            _ if self.is_at_end() => vec![""],
            _ => vec![self.identifier()?],
        };
        checked(key, operator, values)
    }

    /// Whether the requirement ends before the next token.
    fn is_at_end(&mut self) -> bool {
        matches!(self.tokens.peek(), None | Some(LabelToken::Comma))
    }

    fn identifier(&mut self) -> Option<&'a str> {
        match self.tokens.next()? {
            LabelToken::Identifier(word) => Some(word),
            _ => None,
        }
    }

    fn operator(&mut self) -> Option<LabelOperator> {
        match self.tokens.next()? {
            LabelToken::Identifier("in") => Some(LabelOperator::In),
            LabelToken::Identifier("notin") => Some(LabelOperator::NotIn),
            LabelToken::Equals => Some(LabelOperator::Equals),
            LabelToken::DoubleEquals => Some(LabelOperator::DoubleEquals),
            LabelToken::NotEquals => Some(LabelOperator::NotEquals),
            LabelToken::Greater => Some(LabelOperator::GreaterThan),
            LabelToken::Less => Some(LabelOperator::LessThan),
            _ => None,
        }
    }

    /// Parses `(a,b)`. An empty position is the empty value: `()`, `(,a)`, `(a,)`, `(a,,b)`.
    fn set(&mut self) -> Option<Vec<&'a str>> {
        self.tokens.next_if_eq(&LabelToken::Open)?;
        if self.tokens.next_if_eq(&LabelToken::Close).is_some() {
            return Some(vec![""]);
        }
        let mut values = Vec::new();
        loop {
            match self.tokens.next()? {
                LabelToken::Identifier(value) => {
                    values.push(value);
                    match self.tokens.peek()? {
                        LabelToken::Comma => {}
                        LabelToken::Close => break,
                        _ => return None,
                    }
                }
                LabelToken::Comma => {
                    if values.is_empty() {
                        values.push("");
                    }
                    if self.tokens.peek() == Some(&LabelToken::Close) {
                        values.push("");
                        break;
                    }
                    // Go takes two commas at once, and so refuses `(a,,)`.
                    if self.tokens.next_if_eq(&LabelToken::Comma).is_some() {
                        values.push("");
                    }
                }
                _ => return None,
            }
        }
        self.tokens.next(); // the `)`
        Some(values)
    }
}

/// Builds a requirement after checking its values: they must be valid label values, and numbers if the operator
/// compares numbers. The key was checked when it was parsed.
fn checked(key: &str, operator: LabelOperator, mut values: Vec<&str>) -> Option<LabelSelectorRequirement> {
    values.sort_unstable();
    values.dedup();
    let compares_numbers = matches!(operator, LabelOperator::GreaterThan | LabelOperator::LessThan);
    let is_valid = |value: &&str| is_valid_value(value) && (!compares_numbers || value.parse::<i64>().is_ok());
    values.iter().all(is_valid).then(|| LabelSelectorRequirement {
        key: key.into(),
        operator,
        values: values.into_iter().map(Into::into).collect(),
    })
}
