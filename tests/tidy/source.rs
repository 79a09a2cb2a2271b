//! A tokenizer for Rust source, so that imports, functions and literals are not confused with comments and strings.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Identifiers, keywords and numbers.
    Word,
    /// A string literal of any kind. The text is between its quotes, with escapes as written.
    Text,
    /// A single punctuation character.
    Mark,
}

#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    pub(crate) line: usize,
    /// Whether the token is inside code that is compiled for tests only.
    pub(crate) test: bool,
}

/// One file, tokenized.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) tokens: Vec<Token>,
    /// Comments with their first line. Consecutive line comments are one.
    pub(crate) comments: Vec<(usize, String)>,
}

impl Source {
    /// Tokenizes `text`. `file` determines what is a test as a whole: `tests.rs`, and everything below a folder
    /// `tests`.
    pub(crate) fn parse(file: &str, text: &str) -> Self {
        let (mut tokens, comments) = tokenize(text);
        let all = file.split('/').any(|part| part == "tests" || part == "tests.rs");
        let regions = if all { std::iter::once(0..tokens.len()).collect() } else { test_regions(&tokens) };
        for region in regions {
            tokens[region].iter_mut().for_each(|token| token.test = true);
        }
        Self { tokens, comments }
    }

    /// Whether the words and marks from `at` on are these, in this order.
    pub(crate) fn reads(&self, at: usize, expected: &[&str]) -> bool {
        reads(&self.tokens, at, expected)
    }

    /// Positions of the first words of `path::word` or `path::{word, word::{…}}`, where `at` is the position after
    /// `path::`.
    pub(crate) fn imported(&self, at: usize) -> Vec<usize> {
        let is_word = |at: &usize| self.tokens.get(*at).is_some_and(|token| token.kind == Kind::Word);
        if !self.reads(at, &["{"]) {
            return Some(at).filter(is_word).into_iter().collect();
        }
        let (mut depth, mut found) = (0_usize, Vec::new());
        for (next, token) in self.tokens.iter().enumerate().skip(at) {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            match depth {
                0 => break,
                1 if matches!(token.text.as_str(), "{" | ",") => found.push(next + 1),
                _ => {}
            }
        }
        found.into_iter().filter(is_word).collect()
    }

    /// The items with the attribute `#[cfg(target_os = "linux")]`.
    pub(crate) fn on_linux(&self) -> Vec<std::ops::Range<usize>> {
        let is_linux = |token: &Token| token.kind == Kind::Text && token.text == "linux";
        let is_attribute = |at: &usize| {
            self.reads(*at, &["#", "[", "cfg", "(", "target_os", "="])
                && self.tokens.get(at + 6).is_some_and(is_linux)
                && self.reads(at + 7, &[")", "]"])
        };
        let attributes = (0..self.tokens.len()).filter(is_attribute);
        attributes.map(|at| at..past_item(&self.tokens, at + 9)).collect()
    }

    /// The names of all functions with a body.
    pub(crate) fn functions(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let name = self.tokens.get(at + 1).filter(|name| name.kind == Kind::Word);
            if let (true, Some(name)) = (is(token, "fn"), name)
                && let Some(end) = item_end(&self.tokens, at)
                && is(&self.tokens[end], "}")
            {
                found.push(name.text.clone());
            }
        }
        found
    }

    /// The tokens between the braces of the first item that starts with `head`: `["impl", "ForwardReason"]`.
    pub(crate) fn block(&self, head: &[&str]) -> &[Token] {
        let opening: Vec<_> = head.iter().copied().chain(["{"]).collect();
        let start = (0..self.tokens.len()).find(|at| self.reads(*at, &opening));
        let end = start.and_then(|start| item_end(&self.tokens, start));
        match (start, end) {
            (Some(start), Some(end)) => &self.tokens[start + opening.len()..end],
            _ => &[],
        }
    }
}

pub(crate) fn is(token: &Token, text: &str) -> bool {
    token.kind != Kind::Text && token.text == text
}

fn reads(tokens: &[Token], at: usize, expected: &[&str]) -> bool {
    expected.iter().enumerate().all(|(i, text)| tokens.get(at + i).is_some_and(|token| is(token, text)))
}

/// The last token of the item that starts at `start`: a semicolon, or the closing brace of its body.
fn item_end(tokens: &[Token], start: usize) -> Option<usize> {
    let (mut braces, mut others) = (0_usize, 0_usize);
    for (at, token) in tokens.iter().enumerate().skip(start).filter(|(_, token)| token.kind == Kind::Mark) {
        match token.text.as_str() {
            "{" => braces += 1,
            "}" => {
                braces = braces.checked_sub(1)?;
                if braces == 0 && others == 0 {
                    return Some(at);
                }
            }
            "(" | "[" => others += 1,
            ")" | "]" => others = others.checked_sub(1)?,
            ";" if braces == 0 && others == 0 => return Some(at),
            _ => {}
        }
    }
    None
}

/// The items with the attribute `#[cfg(test)]` or `#[test]`.
fn test_regions(tokens: &[Token]) -> Vec<std::ops::Range<usize>> {
    let attributes: [&[&str]; 2] = [&["#", "[", "cfg", "(", "test", ")", "]"], &["#", "[", "test", "]"]];
    let mut regions = Vec::new();
    for at in 0..tokens.len() {
        for attribute in attributes.iter().filter(|attribute| reads(tokens, at, attribute)) {
            regions.push(at..past_item(tokens, at + attribute.len()));
        }
    }
    regions
}

/// The position after the item whose first attribute ends before `item`.
fn past_item(tokens: &[Token], mut item: usize) -> usize {
    // Further attributes belong to the same item.
    while reads(tokens, item, &["#", "["]) {
        let closing = (item..tokens.len()).find(|at| is(&tokens[*at], "]"));
        item = closing.map_or(tokens.len(), |closing| closing + 1);
    }
    item_end(tokens, item).map_or(tokens.len(), |end| end + 1)
}

fn tokenize(text: &str) -> (Vec<Token>, Vec<(usize, String)>) {
    let mut cursor = Cursor { chars: text.chars().collect(), at: 0, line: 1, comments: Vec::new() };
    let mut tokens = Vec::new();
    while let Some(next) = cursor.peek(0) {
        let line = cursor.line;
        let token = match next {
            '/' if cursor.peek(1) == Some('/') => cursor.line_comment(),
            '/' if cursor.peek(1) == Some('*') => cursor.block_comment(),
            '"' => Some(cursor.string(None)),
            '\'' => cursor.quote(),
            c if c.is_alphanumeric() || c == '_' => Some(cursor.word()),
            c if c.is_whitespace() => cursor.skip(1),
            c => {
                cursor.skip(1);
                Some((Kind::Mark, c.to_string()))
            }
        };
        tokens.extend(token.map(|(kind, text)| Token { kind, text, line, test: false }));
    }
    (tokens, cursor.comments)
}

type Read = Option<(Kind, String)>;

struct Cursor {
    chars: Vec<char>,
    at: usize,
    line: usize,
    comments: Vec<(usize, String)>,
}

impl Cursor {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn skip(&mut self, count: usize) -> Read {
        let end = (self.at + count).min(self.chars.len());
        self.line += self.chars[self.at..end].iter().filter(|c| **c == '\n').count();
        self.at = end;
        None
    }

    fn line_comment(&mut self) -> Read {
        let start = self.at;
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.skip(1);
        }
        let text: String = self.chars[start..self.at].iter().collect();
        let text = text.trim_start_matches(['/', '!']).trim();
        match self.comments.last_mut() {
            Some((line, before)) if !before.ends_with("*/") && *line + before.lines().count() == self.line => {
                before.push('\n');
                before.push_str(if text.is_empty() { " " } else { text });
            }
            _ => self.comments.push((self.line, if text.is_empty() { " " } else { text }.to_owned())),
        }
        None
    }

    fn block_comment(&mut self) -> Read {
        let (start, line) = (self.at, self.line);
        let read = self.skip_block_comment();
        self.comments.push((line, self.chars[start..self.at].iter().collect()));
        read
    }

    fn skip_block_comment(&mut self) -> Read {
        let mut depth = 0_usize;
        loop {
            match (self.peek(0)?, self.peek(1)) {
                ('/', Some('*')) => {
                    depth += 1;
                    self.skip(2);
                }
                ('*', Some('/')) => {
                    depth -= 1;
                    self.skip(2);
                    if depth == 0 {
                        return None;
                    }
                }
                _ => drop(self.skip(1)),
            }
        }
    }

    /// A literal whose opening quote is at the cursor; `raw` is the number of hashes around a raw one.
    fn string(&mut self, raw: Option<usize>) -> (Kind, String) {
        self.skip(1);
        let mut text = String::new();
        let hashes = raw.unwrap_or(0);
        while let Some(c) = self.peek(0) {
            if c == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#')) {
                self.skip(1 + hashes);
                break;
            }
            text.push(c);
            if c == '\\' && raw.is_none() {
                text.extend(self.peek(1));
                self.skip(1);
            }
            self.skip(1);
        }
        (Kind::Text, text)
    }

    /// A character or a lifetime.
    fn quote(&mut self) -> Read {
        match (self.peek(1), self.peek(2)) {
            (Some('\\'), _) => {
                self.skip(3);
                while self.peek(0).is_some_and(|c| c != '\'') {
                    self.skip(1);
                }
                self.skip(1)
            }
            (Some(_), Some('\'')) => self.skip(3),
            _ => self.skip(1),
        }
    }

    fn word(&mut self) -> (Kind, String) {
        let mut text = String::new();
        while let Some(c) = self.peek(0).filter(|c| c.is_alphanumeric() || *c == '_') {
            text.push(c);
            self.skip(1);
        }
        let rest = self.chars.get(self.at..).unwrap_or_default();
        let hashes = rest.iter().take_while(|c| **c == '#').count();
        match text.as_str() {
            "b" | "c" if self.peek(0) == Some('"') => return self.string(None),
            "r" | "br" | "cr" if self.peek(hashes) == Some('"') => {
                self.skip(hashes);
                return self.string(Some(hashes));
            }
            _ => {}
        }
        if text == "r" && hashes == 1 {
            self.skip(1);
            return self.word();
        }
        (Kind::Word, text)
    }
}
