//! JSON paths in the dialect of client-go's `util/jsonpath`, as far as printer columns of custom resources use it and its
//! results are determined (R-PRINT-2).
//!
//! **Parsed or refused.** A path is fields, quoted keys, indexes, slices, and filters that compare with a string or a
//! boolean or test for existence. Everything else is refused: `..` and `.*` visit maps in Go's random order, and unions,
//! ranges and comparisons with numbers are not worth their code.
//!
//! Values are slices of the object's text, and only the parts that a path visits are parsed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Slice(Slice),
    Filter(Filter),
}

/// `[start:end:step]`, or an index.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Slice {
    start: Option<i64>,
    end: SliceEnd,
    step: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum SliceEnd {
    Given(i64),
    Open,
    /// The slice has one element, as an index has.
    AfterStart,
}

/// `[?(@.left == "right")]`
#[derive(Debug, Clone, PartialEq)]
struct Filter {
    left: JsonPath,
    condition: FilterCondition,
}

#[derive(Debug, Clone, PartialEq)]
enum FilterCondition {
    Exists,
    Equals { right: Literal, is_negated: bool },
}

#[derive(Debug, Clone, PartialEq)]
enum Literal {
    Text(String),
    Bool(bool),
}

/// A part of an expression.
enum Node {
    Step(Step),
    Literal(Literal),
}

/// The reason that a path has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JsonPathError {
    /// client-go reports an error too.
    Failed,
    /// The evaluation exceeds its budget, or the text is not JSON.
    Refused,
}

/// A member's name.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The members of a JSON object, parsed once for all paths that begin there.
pub(super) struct Members<'a>(BTreeMap<Name<'a>, &'a RawValue>);

impl<'a> Members<'a> {
    pub(super) fn read(object: &'a str) -> Result<Self, JsonPathError> {
        serde_json::from_str(object).map(Self).map_err(|_| JsonPathError::Refused)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        self.0.get(&Name(name.into())).map(|value| value.get())
    }
}

impl JsonPath {
    /// Parses a path as a definition has it, without braces.
    pub(super) fn parse(path: &str) -> Option<Self> {
        Self::of(nodes(path)?)
    }

    fn of(nodes: Vec<Node>) -> Option<Self> {
        let step = |node| if let Node::Step(step) = node { Some(step) } else { None };
        nodes.into_iter().map(step).collect::<Option<_>>().map(Self)
    }

    /// Returns the values that the path selects in an object. Every byte that is visited is taken from `budget`.
    pub(super) fn find<'a>(&self, root: &Members<'a>, budget: &mut usize) -> Result<Vec<&'a str>, JsonPathError> {
        match self.0.split_first() {
            Some((Step::Field(name), rest)) => walk(rest, root.get(name).into_iter().collect(), budget),
            // A root is an object, which is neither sliced nor filtered.
            Some(_) | None => Err(JsonPathError::Failed),
        }
    }
}

/// Applies steps to each value.
fn walk<'a>(steps: &[Step], mut values: Vec<&'a str>, budget: &mut usize) -> Result<Vec<&'a str>, JsonPathError> {
    for step in steps {
        for value in &values {
            *budget = budget.checked_sub(value.len()).ok_or(JsonPathError::Refused)?;
        }
        values = match step {
            Step::Field(name) => {
                let objects = values.into_iter().filter(|value| value.starts_with('{'));
                let found = objects.map(|object| Members::read(object).map(|members| members.get(name)));
                found.filter_map(Result::transpose).collect::<Result<_, _>>()?
            }
            Step::Slice(slice) => slice.select(&values)?,
            Step::Filter(filter) => filter.select(&values, budget)?,
        };
    }
    Ok(values)
}

/// Returns the elements of an array.
fn elements(value: &str) -> Result<Vec<&str>, JsonPathError> {
    if !value.starts_with('[') {
        return Err(JsonPathError::Failed);
    }
    let elements: Vec<&RawValue> = serde_json::from_str(value).map_err(|_| JsonPathError::Refused)?;
    Ok(elements.into_iter().map(RawValue::get).collect())
}

impl Slice {
    fn select<'a>(&self, values: &[&'a str]) -> Result<Vec<&'a str>, JsonPathError> {
        let mut selected = Vec::new();
        for value in values.iter().filter(|value| **value != "null") {
            let elements = elements(value)?;
            let len = i64::try_from(elements.len()).map_err(|_| JsonPathError::Refused)?;
            let given = self.start.unwrap_or(0);
            let start = if given < 0 { given.wrapping_add(len) } else { given };
            let end = match self.end {
                SliceEnd::Open => len,
                SliceEnd::Given(end) if end < 0 => end.wrapping_add(len),
                SliceEnd::Given(end) => end,
                SliceEnd::AfterStart if given < 0 => given.wrapping_add(1).wrapping_add(len),
                SliceEnd::AfterStart => given.wrapping_add(1),
            };
            if start == end {
                return Ok(selected);
            }
            let (Ok(start), Ok(end)) = (usize::try_from(start), usize::try_from(end)) else {
                return Err(JsonPathError::Failed);
            };
            let range = elements.get(start..end).ok_or(JsonPathError::Failed)?;
            let step = usize::try_from(self.step.unwrap_or(1)).ok().filter(|step| *step > 0);
            selected.extend(range.iter().step_by(step.ok_or(JsonPathError::Failed)?));
        }
        Ok(selected)
    }
}

impl Filter {
    fn select<'a>(&self, values: &[&'a str], budget: &mut usize) -> Result<Vec<&'a str>, JsonPathError> {
        let mut selected = Vec::new();
        for value in values {
            for element in elements(value)? {
                let left = walk(&self.left.0, vec![element], budget);
                let passes = match (&self.condition, left) {
                    (_, Err(JsonPathError::Refused)) => return Err(JsonPathError::Refused),
                    // client-go ignores an error here, and counts the values that it had reached.
                    (FilterCondition::Exists, left) => left.is_err() || left.is_ok_and(|left| !left.is_empty()),
                    (FilterCondition::Equals { right, is_negated }, left) => match left?[..] {
                        [] => false,
                        [left] => right.equals(left)? != *is_negated,
                        _ => return Err(JsonPathError::Failed),
                    },
                };
                if passes {
                    selected.push(element);
                }
            }
        }
        Ok(selected)
    }
}

impl Literal {
    /// Compares values of one type; others cannot be compared.
    fn equals(&self, value: &str) -> Result<bool, JsonPathError> {
        match self {
            Self::Text(text) if value.starts_with('"') => {
                let value: Name<'_> = serde_json::from_str(value).map_err(|_| JsonPathError::Refused)?;
                Ok(value.0 == *text)
            }
            Self::Bool(expected) => {
                value.parse::<bool>().map(|value| value == *expected).map_err(|_| JsonPathError::Failed)
            }
            Self::Text(_) => Err(JsonPathError::Failed),
        }
    }
}

/// Parses an expression, which ends where the text does.
fn nodes(mut text: &str) -> Option<Vec<Node>> {
    let mut nodes = Vec::new();
    while let Some(first) = text.chars().next() {
        if text.starts_with("..") {
            return None;
        }
        if let Some(filter) = text.strip_prefix("[?(") {
            let (filter, rest) = parse_filter(filter)?;
            nodes.push(Node::Step(Step::Filter(filter)));
            text = rest;
            continue;
        }
        let rest = &text[first.len_utf8()..];
        text = match first {
            ' ' | '@' | '$' => rest,
            '[' => {
                let (inside, rest) = rest.split_once(']').filter(|(inside, _)| !inside.contains('\n'))?;
                nodes.extend(parse_brackets(inside)?);
                rest
            }
            '.' => {
                let end = field_len(rest)?;
                let name = rest[..end].replace('\\', "");
                if name == "*" {
                    return None;
                }
                nodes.push(Node::Step(Step::Field(name)));
                &rest[end..]
            }
            '"' | '\'' => {
                // Go's escapes are not worth their code.
                let (literal, rest) = rest.split_once(first).filter(|(text, _)| !text.contains(['\\', '\n']))?;
                nodes.push(Node::Literal(Literal::Text(literal.to_owned())));
                rest
            }
            _ => {
                let end = text.find(is_terminator).unwrap_or(text.len());
                nodes.push(Node::Literal(Literal::Bool(text[..end].parse().ok()?)));
                &text[end..]
            }
        };
    }
    Some(nodes)
}

/// Parses the text between brackets, except filters.
fn parse_brackets(text: &str) -> Option<Vec<Node>> {
    if let Some(key) = text.strip_prefix('\'').and_then(|key| key.strip_suffix('\'')) {
        let is_plain = !key.contains(['\'', ',', '[']);
        return if is_plain { nodes(&format!(".{key}")) } else { None };
    }
    let text = if text == "*" { ":" } else { text };
    let mut parts = text.split(':');
    let (start, end, step) = (parts.next()?, parts.next(), parts.next());
    if parts.next().is_some() {
        return None;
    }
    let number = |text: &str| {
        let is_plain = !text.starts_with('+');
        if text.is_empty() { Some(None) } else { text.parse().ok().filter(|_| is_plain).map(Some) }
    };
    let end = match end.map(number) {
        None => SliceEnd::AfterStart,
        Some(end) => end?.map_or(SliceEnd::Open, SliceEnd::Given),
    };
    let slice = Slice { start: number(start)?, end, step: number(step.unwrap_or_default())? };
    Some(vec![Node::Step(Step::Slice(slice))])
}

/// Parses a filter after `[?(`. Returns it and what follows.
fn parse_filter(text: &str) -> Option<(Filter, &str)> {
    let (mut open, mut is_closed) = (None, false);
    let is_end = |(at, byte): (usize, u8)| {
        match byte {
            b'"' | b'\'' if open.is_none() => open = Some(byte),
            b'"' | b'\'' => is_closed |= open == Some(byte) && text.as_bytes()[at - 1] != b'\\',
            _ => {}
        }
        byte == b')' && open.is_some() == is_closed
    };
    let end = text.bytes().enumerate().position(is_end)?;
    let (inside, rest) = (&text[..end], text[end + 1..].strip_prefix(']')?);
    // Filters in filters would make the cost of a path exponential in its length.
    if inside.contains('\n') || inside.contains("[?(") {
        return None;
    }
    let is_operator = |c| "!<>=".contains(c);
    let Some(at) = inside.find(is_operator) else {
        return Some((Filter { left: JsonPath::of(nodes(inside)?)?, condition: FilterCondition::Exists }, rest));
    };
    let (left, right) = inside.split_at(at);
    let operand = right.trim_start_matches(is_operator);
    let is_negated = match &right[..right.len() - operand.len()] {
        "==" => false,
        "!=" => true,
        _ => return None,
    };
    let Ok([Node::Literal(right)]) = <[Node; 1]>::try_from(nodes(operand)?) else { return None };
    let left = JsonPath::of(nodes(left)?).filter(|left| !left.0.is_empty())?;
    Some((Filter { left, condition: FilterCondition::Equals { right, is_negated } }, rest))
}

/// Returns the length of a field's name up to the next character that ends it and is not escaped.
fn field_len(text: &str) -> Option<usize> {
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => _ = characters.next()?,
            character if is_terminator(character) => return Some(at),
            _ => {}
        }
    }
    Some(text.len())
}

fn is_terminator(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// R-PRINT-2: what client-go selects first. `None` is an error or nothing, which print alike.
    #[test]
    fn first_value_is_that_of_client_go() {
        let object = json!({
            "spec": {"a": [1, 2, 3], "c.d": {"e": "x"}, "n": null, "t": "text"},
            "status": {"conditions": [
                {"type": "Other", "status": "False", "on": true},
                {"type": "Ready", "status": "True", "on": false},
            ]},
        });
        let object = object.to_string();
        let root = Members::read(&object).expect("an object");
        for (path, expected) in [
            (".spec.a[0]", Some("1")),
            (".spec.a[-1]", Some("3")),
            (".spec.a[*]", Some("1")),
            (".spec.a[]", Some("1")),
            (".spec.a[1:]", Some("2")),
            (".spec.a[::2]", Some("1")),
            (".spec.a[-2:-1]", Some("2")),
            (".spec.a[3]", None),
            (".spec.a[2:1]", None),
            (".spec.a[1:1]", None),
            (".spec.a[0:2:0]", None),
            (".spec.t[0]", None),
            (".spec.n[0]", None),
            (".spec.n", Some("null")),
            (".spec.n.x", None),
            (".spec.t.x", None),
            (r".spec.c\.d.e", Some(r#""x""#)),
            (r".spec['c\.d'].e", Some(r#""x""#)),
            (".spec['c.d'].e", None),
            (r#".status.conditions[?(@.type=="Ready")].status"#, Some(r#""True""#)),
            (".status.conditions[?(@.type != 'Other')].status", Some(r#""True""#)),
            (".status.conditions[?(@.on==true)].status", Some(r#""False""#)),
            (".status.conditions[?(@.missing)].status", None),
            (".status.conditions[?(@.on)].type", Some(r#""Other""#)),
            // An error counts as existence.
            (".status.conditions[?(@.type[0])].type", Some(r#""Other""#)),
            // A boolean cannot be compared with text.
            (r#".status.conditions[?(@.on=="true")].status"#, None),
            (".spec.t[?(@.a)]", None),
            (".", None),
        ] {
            let parsed = JsonPath::parse(path).unwrap_or_else(|| panic!("{path} is refused"));
            let found = parsed.find(&root, &mut 10_000);
            assert_eq!(found.ok().and_then(|values| values.first().copied()), expected, "{path}");
        }
    }

    #[test]
    fn paths_whose_results_are_not_determined_are_refused() {
        for path in [
            ".spec..a",
            ".spec.*",
            ".spec.a[0,1]",
            ".spec['a','b']",
            ".spec}{.status",
            ".spec.a[",
            ".spec.a[x]",
            ".spec.a[1:2:3:4]",
            ".spec.a[+1]",
            ".spec b",
            ".spec.a\\",
            ".a[?(@.b==1)]",
            ".a[?(@.b<\"c\")]",
            ".a[?(@.b==@.c)]",
            ".a[?(@.b==\"c\" && @.d==\"e\")]",
            ".a[?(@.b==\"c\\\"d\")]",
            ".a[?(@.b==)]",
            ".a[?(@.b[?(@.c)])]",
            ".a[?(@.b)",
        ] {
            assert_eq!(JsonPath::parse(path), None, "{path}");
        }
    }

    #[test]
    fn visited_bytes_are_limited() {
        let object = json!({"a": [[1], [2], [3]]}).to_string();
        let root = Members::read(&object).expect("an object");
        let path = JsonPath::parse(".a[*][0]").expect("a path");
        let visited = "[[1],[2],[3]]".len() + "[1][2][3]".len();
        assert!(path.find(&root, &mut { visited }).is_ok());
        assert_eq!(path.find(&root, &mut (visited - 1)), Err(JsonPathError::Refused));
    }
}
