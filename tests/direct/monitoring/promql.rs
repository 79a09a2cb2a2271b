//! A strict parser of the subset of `PromQL` that deploy/monitoring uses. It knows the type and the labels of every
//! metric. So it finds queries that a server accepts but never answers: an impossible label or value, two sides that no
//! labels join, a rate of a gauge.

use std::collections::BTreeSet;

use super::documented::{Labels, MetricType, Metrics};

/// Type of a query's result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Scalar,
    /// Series with these labels.
    Vector(Labels),
    Range {
        labels: Labels,
        of_type: MetricType,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Number,
    Duration,
    Text(String),
    Sign(&'static str),
}

struct Parser<'a> {
    tokens: Vec<Token>,
    at: usize,
    metrics: &'a Metrics,
    names: BTreeSet<String>,
}

/// How the series of two sides are matched.
struct Matching {
    on: Option<Labels>,
    group: Option<(Side, Labels)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

type Parsed<T> = Result<T, String>;

/// Longer ones first.
const SIGNS: [&str; 21] =
    ["==", "!=", ">=", "<=", "=~", "!~", ">", "<", "=", "+", "-", "*", "/", "(", ")", "{", "}", "[", "]", ",", "%"];
const COMPARISONS: [&str; 6] = ["==", "!=", ">=", "<=", ">", "<"];
const AGGREGATIONS: [&str; 6] = ["sum", "min", "max", "count", "avg", "topk"];

/// Type of the query's result, and the metrics that it names.
///
/// # Errors
/// The query is outside of the known subset, or can never have a result.
pub fn check(query: &str, metrics: &Metrics) -> Parsed<(Answer, BTreeSet<String>)> {
    let mut parser = Parser { tokens: tokens(query)?, at: 0, metrics, names: BTreeSet::new() };
    let answer = parser.alternatives()?;
    match (parser.peek(), answer) {
        (Some(rest), _) => Err(format!("nothing is expected before {rest:?}")),
        (None, Answer::Range { .. }) => Err("a range is no answer".to_owned()),
        (None, answer) => Ok((answer, parser.names)),
    }
}

fn tokens(query: &str) -> Parsed<Vec<Token>> {
    let mut found = Vec::new();
    let mut rest = query.trim_start();
    while let Some(first) = rest.chars().next() {
        let while_in = |is: fn(char) -> bool| rest.find(|c: char| !is(c)).unwrap_or(rest.len());
        let (token, length) = if first.is_ascii_alphabetic() {
            let end = while_in(|c| c.is_ascii_alphanumeric() || c == '_');
            (Token::Word(rest[..end].to_owned()), end)
        } else if first.is_ascii_digit() {
            let end = while_in(|c| c.is_ascii_alphanumeric() || c == '.');
            let text = &rest[..end];
            let is_duration = text.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(|n| n.parse::<u32>().is_ok());
            match text.parse::<f64>() {
                Ok(_) => (Token::Number, end),
                Err(_) if is_duration => (Token::Duration, end),
                Err(_) => return Err(format!("{text} is neither a number nor a duration")),
            }
        } else if let Some(text) = rest.strip_prefix('"') {
            let end = text.find('"').ok_or("a text has no end")?;
            if text[..end].contains('\\') {
                return Err("escapes in texts are not known here".to_owned());
            }
            (Token::Text(text[..end].to_owned()), end + 2)
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| format!("{first:?} is not known"))?;
            (Token::Sign(sign), sign.len())
        };
        found.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Parsed<Token> {
        let token = self.peek().cloned().ok_or("it ends too early")?;
        self.at += 1;
        Ok(token)
    }

    fn takes(&mut self, sign: &str) -> bool {
        let is_it = matches!(self.peek(), Some(Token::Sign(found)) if *found == sign);
        self.at += usize::from(is_it);
        is_it
    }

    fn takes_word(&mut self, keywords: &[&str]) -> Option<String> {
        let Some(Token::Word(word)) = self.peek() else { return None };
        let word = keywords.contains(&word.as_str()).then(|| word.clone())?;
        self.at += 1;
        Some(word)
    }

    fn takes_sign(&mut self, signs: &[&'static str]) -> Option<&'static str> {
        signs.iter().copied().find(|sign| self.takes(sign))
    }

    fn expect(&mut self, sign: &str) -> Parsed<()> {
        if self.takes(sign) { Ok(()) } else { Err(format!("{sign} is expected, not {:?}", self.peek())) }
    }

    /// `or`.
    fn alternatives(&mut self) -> Parsed<Answer> {
        let mut left = self.conditions()?;
        while self.takes_word(&["or"]).is_some() {
            let right = self.conditions()?;
            left = same_labels("or", &left, &right)?;
        }
        Ok(left)
    }

    /// `and`, `unless`.
    fn conditions(&mut self) -> Parsed<Answer> {
        let mut left = self.comparison()?;
        while let Some(word) = self.takes_word(&["and", "unless"]) {
            let matching = self.matching()?;
            let right = self.comparison()?;
            let Some(on) = matching.on else {
                left = same_labels(&word, &left, &right)?;
                continue;
            };
            for side in [&left, &right] {
                has_all(vector(side)?, &on)?;
            }
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Parsed<Answer> {
        let left = self.sum()?;
        let Some(sign) = self.takes_sign(&COMPARISONS) else { return Ok(left) };
        let matching = self.matching()?;
        let right = self.sum()?;
        if left == Answer::Scalar {
            return Err(format!("the compared expression must be left of {sign}"));
        }
        joined(sign, &left, &right, matching)
    }

    fn sum(&mut self) -> Parsed<Answer> {
        let mut left = self.product()?;
        while let Some(sign) = self.takes_sign(&["+", "-"]) {
            let matching = self.matching()?;
            let right = self.product()?;
            left = joined(sign, &left, &right, matching)?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Parsed<Answer> {
        let mut left = self.operand()?;
        while let Some(sign) = self.takes_sign(&["*", "/", "%"]) {
            let matching = self.matching()?;
            let right = self.operand()?;
            left = joined(sign, &left, &right, matching)?;
        }
        Ok(left)
    }

    fn matching(&mut self) -> Parsed<Matching> {
        let mut matching = Matching { on: None, group: None };
        if self.takes_word(&["on"]).is_some() {
            matching.on = Some(self.label_list()?);
        }
        if let Some(word) = self.takes_word(&["group_left", "group_right"]) {
            let many = if word == "group_left" { Side::Left } else { Side::Right };
            let more = if self.peek() == Some(&Token::Sign("(")) { self.label_list()? } else { Labels::new() };
            matching.group = Some((many, more));
        }
        Ok(matching)
    }

    fn operand(&mut self) -> Parsed<Answer> {
        if self.takes("(") {
            let inner = self.alternatives()?;
            self.expect(")")?;
            return Ok(inner);
        }
        match self.next()? {
            Token::Number => Ok(Answer::Scalar),
            Token::Word(word) if AGGREGATIONS.contains(&word.as_str()) => self.aggregation(&word),
            Token::Word(word) if self.peek() == Some(&Token::Sign("(")) => self.call(&word),
            Token::Word(name) => self.selector(&name),
            other => Err(format!("{other:?} begins nothing")),
        }
    }

    fn aggregation(&mut self, name: &str) -> Parsed<Answer> {
        let mut by = self.takes_word(&["by"]).map(|_| self.label_list()).transpose()?;
        self.expect("(")?;
        if name == "topk" {
            if self.alternatives()? != Answer::Scalar {
                return Err("topk begins with a number".to_owned());
            }
            self.expect(",")?;
        }
        let inner = self.alternatives()?;
        self.expect(")")?;
        if by.is_none() {
            by = self.takes_word(&["by"]).map(|_| self.label_list()).transpose()?;
        }
        let labels = vector(&inner)?;
        let by = by.unwrap_or_default();
        has_all(labels, &by)?;
        Ok(if name == "topk" { inner } else { Answer::Vector(by) })
    }

    fn call(&mut self, name: &str) -> Parsed<Answer> {
        self.expect("(")?;
        let mut arguments = Vec::new();
        while !self.takes(")") {
            if !arguments.is_empty() {
                self.expect(",")?;
            }
            arguments.push(self.alternatives()?);
        }
        match (name, &arguments[..]) {
            ("time", []) => Ok(Answer::Scalar),
            ("rate" | "increase", [Answer::Range { labels, of_type: MetricType::Counter }])
            | ("changes", [Answer::Range { labels, of_type: MetricType::Gauge }]) => Ok(Answer::Vector(labels.clone())),
            // Its labels are those that the selector compares for equality; no expression here shows them.
            ("absent", [Answer::Vector(_)]) => Ok(Answer::Vector(Labels::new())),
            ("histogram_quantile", [Answer::Scalar, Answer::Vector(labels)]) => {
                let mut labels = labels.clone();
                if labels.remove("le") { Ok(Answer::Vector(labels)) } else { Err("there are no buckets".to_owned()) }
            }
            _ => Err(format!("{name} is not known here, or not of {arguments:?}")),
        }
    }

    /// A metric with its matchers, range and offset.
    fn selector(&mut self, name: &str) -> Parsed<Answer> {
        let metric = self.metrics.get(name).ok_or_else(|| format!("{name} is no metric"))?;
        self.names.insert(name.to_owned());
        if self.takes("{") {
            while !self.takes("}") {
                let Token::Word(label) = self.next()? else { return Err("a label is expected".to_owned()) };
                let sign = self.takes_sign(&["=~", "!~", "!=", "="]).ok_or("a label has to be compared")?;
                let Token::Text(text) = self.next()? else { return Err(format!("{label} is compared with a text")) };
                has_all(&metric.labels, &Labels::from([label.clone()]))?;
                let values: Vec<_> = if sign.contains('~') { text.split('|').collect() } else { vec![text.as_str()] };
                // A variable has any value of the data source.
                let is_open = text.starts_with('$');
                if let Some(value) = values.iter().find(|value| !is_open && !metric.has(&label, value)) {
                    return Err(format!("{name} has no {label} {value:?}"));
                }
                if !self.takes(",") && self.peek() != Some(&Token::Sign("}")) {
                    return Err("a comma is expected between labels".to_owned());
                }
            }
        }
        let (labels, of_type) = (metric.labels.clone(), metric.of_type);
        let is_range = self.takes("[");
        if is_range {
            self.duration()?;
            self.expect("]")?;
        }
        if self.takes_word(&["offset"]).is_some() {
            self.duration()?;
        }
        Ok(if is_range { Answer::Range { labels, of_type } } else { Answer::Vector(labels) })
    }

    fn duration(&mut self) -> Parsed<()> {
        match self.next()? {
            Token::Duration => Ok(()),
            other => Err(format!("a duration is expected, not {other:?}")),
        }
    }

    fn label_list(&mut self) -> Parsed<Labels> {
        self.expect("(")?;
        let mut labels = Labels::new();
        while !self.takes(")") {
            if !labels.is_empty() {
                self.expect(",")?;
            }
            match self.next()? {
                Token::Word(label) => labels.insert(label),
                other => return Err(format!("{other:?} is no label")),
            };
        }
        Ok(labels)
    }
}

fn vector(answer: &Answer) -> Parsed<&Labels> {
    match answer {
        Answer::Vector(labels) => Ok(labels),
        other => Err(format!("series are expected, not {other:?}")),
    }
}

fn has_all(labels: &Labels, required: &Labels) -> Parsed<()> {
    let missing: Vec<_> = required.difference(labels).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("there are no labels {missing:?} among {labels:?}")) }
}

fn same_labels(sign: &str, left: &Answer, right: &Answer) -> Parsed<Answer> {
    let (of_left, of_right) = (vector(left)?, vector(right)?);
    if of_left == of_right {
        return Ok(left.clone());
    }
    Err(format!("{of_left:?} {sign} {of_right:?} never meet"))
}

/// Type of the result of an arithmetic operation or a comparison.
fn joined(sign: &str, left: &Answer, right: &Answer, matching: Matching) -> Parsed<Answer> {
    let (of_left, of_right) = match (left, right) {
        (Answer::Scalar, other) | (other, Answer::Scalar) if matching.on.is_none() && matching.group.is_none() => {
            if matches!(other, Answer::Range { .. }) {
                return Err(format!("{sign} takes no range"));
            }
            return Ok(other.clone());
        }
        _ => (vector(left)?, vector(right)?),
    };
    match matching {
        Matching { on: None, group: None } => same_labels(sign, left, right),
        Matching { on: Some(on), group: Some((many, more)) } => {
            let (many, one) = if many == Side::Left { (of_left, of_right) } else { (of_right, of_left) };
            has_all(many, &on)?;
            has_all(one, &on)?;
            has_all(one, &more)?;
            Ok(Answer::Vector(many.union(&more).cloned().collect()))
        }
        _ => Err(format!("{sign}: on() and group_left() or group_right() go together here")),
    }
}
