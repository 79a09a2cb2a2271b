//! The grammar: a lexer and a recursive descent over its tokens, as in apimachinery's `pkg/labels/selector.go`. The
//! error texts depend on the order in which tokens are read.

use super::super::go_text::{aggregate, quote};
use super::validate::{key_problems, value_problems};
use super::{LabelOperator, LabelSelectorRequirement};

/// Parses all requirements of a label selector in the order written, or returns the apiserver's error text.
pub(super) fn requirements(text: &str) -> Result<Vec<LabelSelectorRequirement>, String> {
    let mut parser = LabelSelectorParser { tokens: tokens(text), position: 0 };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            LabelToken::Identifier(_) | LabelToken::Not => {}
            LabelToken::End => return Ok(requirements),
            other => return Err(format!("found '{}', expected: !, identifier, or 'end of string'", other.text())),
        }
        let requirement = parser.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?;
        requirements.push(requirement);
        match parser.next() {
            LabelToken::End => return Ok(requirements),
            LabelToken::Comma => {}
            other => return Err(format!("found '{}', expected: ',' or 'end of string'", other.text())),
        }
        match parser.peek() {
            LabelToken::Identifier(_) | LabelToken::Not => {}
            other => return Err(format!("found '{}', expected: identifier after ','", other.text())),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LabelToken<'a> {
    End,
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

impl<'a> LabelToken<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::End => "",
            Self::Open => "(",
            Self::Close => ")",
            Self::Comma => ",",
            Self::Not => "!",
            Self::Equals => "=",
            Self::DoubleEquals => "==",
            Self::NotEquals => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::Identifier(word) => word,
        }
    }
}

/// Splits `text` into tokens; the last one is always [`LabelToken::End`].
///
/// Go's lexer treats a NUL byte as the end of the input, except directly after a token: there it is consumed with the
/// token and lost.
fn tokens(text: &str) -> Vec<LabelToken<'_>> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let token = match (byte, bytes.get(at + 1)) {
            (0, _) => break,
            (b' ' | b'\t' | b'\r' | b'\n', _) => {
                at += 1;
                continue;
            }
            (b'=', Some(b'=')) => LabelToken::DoubleEquals,
            (b'=', _) => LabelToken::Equals,
            (b'!', Some(b'=')) => LabelToken::NotEquals,
            (b'!', _) => LabelToken::Not,
            (b'(', _) => LabelToken::Open,
            (b')', _) => LabelToken::Close,
            (b',', _) => LabelToken::Comma,
            (b'>', _) => LabelToken::Greater,
            (b'<', _) => LabelToken::Less,
            _ => {
                let end = bytes[at..].iter().position(|&byte| ends_word(byte)).map_or(bytes.len(), |n| at + n);
                LabelToken::Identifier(&text[at..end])
            }
        };
        at += token.text().len();
        if bytes.get(at) == Some(&0) {
            at += 1;
        }
        tokens.push(token);
    }
    tokens.push(LabelToken::End);
    tokens
}

fn ends_word(byte: u8) -> bool {
    matches!(byte, 0 | b' ' | b'\t' | b'\r' | b'\n' | b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

struct LabelSelectorParser<'a> {
    tokens: Vec<LabelToken<'a>>,
    position: usize,
}

impl<'a> LabelSelectorParser<'a> {
    /// The current token; always [`LabelToken::End`] once the input is used up.
    fn peek(&self) -> LabelToken<'a> {
        self.tokens.get(self.position).copied().unwrap_or(LabelToken::End)
    }

    fn next(&mut self) -> LabelToken<'a> {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn requirement(&mut self) -> Result<LabelSelectorRequirement, String> {
        let (key, existence) = self.key()?;
        if let Some(operator) = existence {
            return checked(key, operator, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            LabelOperator::In | LabelOperator::NotIn => self.set()?,
            _ => vec![self.exact_value()?],
        };
        checked(key, operator, values)
    }

    /// The key, and the operator if none is written: `k` and `!k`.
    fn key(&mut self) -> Result<(&'a str, Option<LabelOperator>), String> {
        let mut token = self.next();
        let negated = token == LabelToken::Not;
        if negated {
            token = self.next();
        }
        let LabelToken::Identifier(key) = token else {
            return Err(format!("found '{}', expected: identifier", token.text()));
        };
        let problems = key_problems(key);
        if !problems.is_empty() {
            return Err(format!("<nil>: Invalid value: {}: {}", quote(key), problems.join("; ")));
        }
        let existence = match self.peek() {
            _ if negated => Some(LabelOperator::DoesNotExist),
            LabelToken::End | LabelToken::Comma => Some(LabelOperator::Exists),
            _ => None,
        };
        Ok((key, existence))
    }

    fn operator(&mut self) -> Result<LabelOperator, String> {
        match self.next() {
            LabelToken::Identifier("in") => Ok(LabelOperator::In),
            LabelToken::Identifier("notin") => Ok(LabelOperator::NotIn),
            LabelToken::Equals => Ok(LabelOperator::Equals),
            LabelToken::DoubleEquals => Ok(LabelOperator::DoubleEquals),
            LabelToken::NotEquals => Ok(LabelOperator::NotEquals),
            LabelToken::Greater => Ok(LabelOperator::GreaterThan),
            LabelToken::Less => Ok(LabelOperator::LessThan),
            other => Err(format!("found '{}', expected: in, notin, =, ==, !=, gt, lt", other.text())),
        }
    }

    /// Parses the value after an operator. A missing value is the empty one: `k=` and `k=,…`.
    fn exact_value(&mut self) -> Result<&'a str, String> {
        if matches!(self.peek(), LabelToken::End | LabelToken::Comma) {
            return Ok("");
        }
        match self.next() {
            LabelToken::Identifier(value) => Ok(value),
            other => Err(format!("found '{}', expected: identifier", other.text())),
        }
    }

    /// Parses `(a,b)`. An empty position is the empty value: `()`, `(,a)`, `(a,)`, `(a,,b)`.
    fn set(&mut self) -> Result<Vec<&'a str>, String> {
        match self.next() {
            LabelToken::Open => {}
            other => return Err(format!("found '{}' expected: '('", other.text())),
        }
        match self.peek() {
            LabelToken::Identifier(_) | LabelToken::Comma => {
                let values = self.set_values()?;
                self.next(); // the `)` at which set_values stopped
                Ok(values)
            }
            LabelToken::Close => {
                self.next();
                Ok(vec![""])
            }
            other => Err(format!("found '{}', expected: ',', ')' or identifier", other.text())),
        }
    }

    /// Parses the inside of a set, up to but without its `)`.
    fn set_values(&mut self) -> Result<Vec<&'a str>, String> {
        let mut values = Vec::new();
        loop {
            match self.next() {
                LabelToken::Identifier(value) => {
                    values.push(value);
                    match self.peek() {
                        LabelToken::Comma => {}
                        LabelToken::Close => return Ok(values),
                        other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
                    }
                }
                LabelToken::Comma => {
                    if values.is_empty() {
                        values.push("");
                    }
                    match self.peek() {
                        LabelToken::Close => {
                            values.push("");
                            return Ok(values);
                        }
                        LabelToken::Comma => {
                            values.push("");
                        }
                        _ => {}
                    }
                }
                other => return Err(format!("found '{}', expected: ',', or identifier", other.text())),
            }
        }
    }
}

/// Builds a requirement after checking its values: they must be valid label values, and numbers if the operator
/// compares numbers. The key was checked when it was parsed.
fn checked(key: &str, operator: LabelOperator, mut values: Vec<&str>) -> Result<LabelSelectorRequirement, String> {
    values.sort_unstable();
    values.dedup();
    let mut errors = Vec::new();
    if matches!(operator, LabelOperator::GreaterThan | LabelOperator::LessThan) {
        for (index, value) in values.iter().enumerate().filter(|(_, value)| value.parse::<i64>().is_err()) {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            errors.push(format!("values[{index}]: Invalid value: {}: {why}", quote(value)));
        }
    }
    for (index, value) in values.iter().enumerate() {
        let problems = value_problems(value);
        if !problems.is_empty() {
            let (value, why) = (quote(value), problems.join("; "));
            errors.push(format!("values[{index}][{key}]: Invalid value: {value}: {why}"));
        }
    }
    match aggregate(&errors) {
        Some(text) => Err(text),
        None => Ok(LabelSelectorRequirement {
            key: key.into(),
            operator,
            values: values.into_iter().map(Into::into).collect(),
        }),
    }
}
