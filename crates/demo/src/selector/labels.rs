//! The grammar of label selectors.

use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct LabelRequirement {
    key: String,
    operator: DemoLabelOperator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum DemoLabelOperator {
    Exists,
    Missing,
    In,
    NotIn,
    Greater,
    Less,
}

impl LabelRequirement {
    pub(super) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let found = labels.get(&self.key);
        let number = |text: &String| text.parse::<i64>().ok();
        let compare = |ordering| match (found.and_then(number), self.values.first().and_then(number)) {
            (Some(found), Some(bound)) => found.cmp(&bound) == ordering,
            _ => false,
        };
        match self.operator {
            DemoLabelOperator::Exists => found.is_some(),
            DemoLabelOperator::Missing => found.is_none(),
            DemoLabelOperator::In => found.is_some_and(|value| self.values.contains(value)),
            DemoLabelOperator::NotIn => found.is_none_or(|value| !self.values.contains(value)),
            DemoLabelOperator::Greater => compare(std::cmp::Ordering::Greater),
            DemoLabelOperator::Less => compare(std::cmp::Ordering::Less),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Vec<LabelRequirement>, String> {
    let mut parser = DemoLabelParser { tokens: tokens(text), at: 0 };
    let mut requirements = vec![];
    if parser.peek().is_empty() {
        return Ok(requirements);
    }
    loop {
        requirements.push(parser.requirement()?);
        match parser.take() {
            "" => break,
            "," if !parser.peek().is_empty() => {}
            "," => return Err("found '', expected: identifier after ','".to_owned()),
            other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
        }
    }
    requirements.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(requirements)
}

/// Splits a label selector into identifiers and operators, each as long as possible. An empty token marks the end.
fn tokens(text: &str) -> Vec<&str> {
    let special = |c: char| "=!(),><".contains(c);
    let blank = |c: char| " \t\r\n".contains(c);
    let mut tokens = vec![];
    let mut rest = text.trim_start_matches(blank);
    while let Some(first) = rest.chars().next() {
        let len = if special(first) {
            if rest.starts_with("==") || rest.starts_with("!=") { 2 } else { 1 }
        } else {
            rest.find(|c| special(c) || blank(c)).unwrap_or(rest.len())
        };
        tokens.push(&rest[..len]);
        rest = rest[len..].trim_start_matches(blank);
    }
    tokens
}

struct DemoLabelParser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> DemoLabelParser<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or("")
    }

    fn take(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<LabelRequirement, String> {
        if self.peek() == "!" {
            self.take();
            let key = self.key()?;
            return Ok(LabelRequirement { key, operator: DemoLabelOperator::Missing, values: vec![] });
        }
        let key = self.key()?;
        if matches!(self.peek(), "" | ",") {
            return Ok(LabelRequirement { key, operator: DemoLabelOperator::Exists, values: vec![] });
        }
        let (operator, set) = match self.take() {
            "=" | "==" => (DemoLabelOperator::In, false),
            "!=" => (DemoLabelOperator::NotIn, false),
            ">" => (DemoLabelOperator::Greater, false),
            "<" => (DemoLabelOperator::Less, false),
            "in" => (DemoLabelOperator::In, true),
            "notin" => (DemoLabelOperator::NotIn, true),
            other => {
                let expected = "in, notin, =, ==, !=, gt, lt";
                return Err(format!("unable to parse requirement: found '{other}', expected: {expected}"));
            }
        };
        let values = if set { self.set()? } else { vec![self.value()?] };
        if matches!(operator, DemoLabelOperator::Greater | DemoLabelOperator::Less) && values[0].parse::<i64>().is_err()
        {
            let text = "for 'Gt', 'Lt' operators, the value must be an integer";
            return Err(format!("unable to parse requirement: values[0]: Invalid value: {:?}: {text}", values[0]));
        }
        if let Some(bad) = values.iter().position(|value| !is_name(value, true)) {
            let text = format!("values[{bad}][{key}]: Invalid value: {:?}: {VALUE_RULE}", values[bad]);
            return Err(format!("unable to parse requirement: {text}"));
        }
        Ok(LabelRequirement { key, operator, values })
    }

    fn key(&mut self) -> Result<String, String> {
        let key = self.take();
        if !is_word(key) {
            return Err(format!("unable to parse requirement: found '{key}', expected: identifier"));
        }
        let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
        if !is_name(name, false) {
            return Err(format!("unable to parse requirement: <nil>: Invalid value: {key:?}: {NAME_RULE}"));
        }
        Ok(key.to_owned())
    }

    /// Reads a value. It may be empty if the end or a comma follows.
    fn value(&mut self) -> Result<String, String> {
        match self.peek() {
            "" | "," => Ok(String::new()),
            word if is_word(word) => Ok(self.take().to_owned()),
            other => Err(format!("unable to parse requirement: found '{other}', expected: identifier")),
        }
    }

    fn set(&mut self) -> Result<Vec<String>, String> {
        let open = self.take();
        if open != "(" {
            return Err(format!("unable to parse requirement: found '{open}' expected: '('"));
        }
        let mut values = vec![];
        loop {
            match self.peek() {
                "," | ")" => values.push(String::new()),
                word if is_word(word) => values.push(self.take().to_owned()),
                other => {
                    return Err(format!("unable to parse requirement: found '{other}', expected: ',', or identifier"));
                }
            }
            match self.take() {
                "," => {}
                ")" => return Ok(values),
                other => return Err(format!("unable to parse requirement: found '{other}', expected: ',' or ')'")),
            }
        }
    }
}

const NAME_RULE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', \
    and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
    regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' \
    or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
    regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(['=', '!', '(', ')', ',', '>', '<'])
}

fn is_name(text: &str, may_be_empty: bool) -> bool {
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if text.is_empty() {
        return may_be_empty;
    }
    text.len() <= 63
        && ends(text.chars().next())
        && ends(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        parse(selector).unwrap().iter().all(|requirement| requirement.matches(&labels))
    }

    #[test]
    fn every_operator_matches_as_documented() {
        let app_x: &[_] = &[("app", "x"), ("n", "5"), ("empty", "")];
        for yes in [
            "",
            "app",
            "!other",
            "app=x",
            "app == x",
            "app!=y",
            "other!=y",
            "app in (x, y)",
            "app notin (z)",
            "n>4",
            "n<6",
            "empty=",
            "empty in ()",
            "app,n,app!=z",
            "other notin (a)",
            "empty in (,a)",
        ] {
            assert!(matches(yes, app_x), "{yes}");
        }
        for no in ["!app", "other", "app=y", "app!=x", "app in (y)", "app notin (x,y)", "n>5", "app>1", "other>1"] {
            assert!(!matches(no, app_x), "{no}");
        }
    }

    #[test]
    fn parse_errors_match_the_apiservers() {
        for (bad, text) in [
            ("a in", "unable to parse requirement: found '' expected: '('"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a===b", "unable to parse requirement: found '=', expected: identifier"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ] {
            assert_eq!(parse(bad).unwrap_err(), text);
        }
        assert!(
            parse("-a").unwrap_err().starts_with("unable to parse requirement: <nil>: Invalid value: \"-a\": name")
        );
    }
}
