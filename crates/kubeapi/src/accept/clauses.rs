//! The clauses of an Accept header in the order in which the apiserver tries them.
//!
//! Its parser, munnerz/goautoneg, deviates from RFC 9110. It splits at every comma, trims only spaces, drops clauses
//! that it cannot parse, and sorts with a comparison that is not a strict order. All of this affects the bytes that a
//! client gets.

/// The maximum length in bytes of an Accept header that is parsed. Clients, including browsers, send up to about 300.
pub(super) const ACCEPT_BYTES_MAX: usize = 4 << 10;
/// The maximum number of clauses. The sort compares each with each in the worst case.
pub(super) const CLAUSES_MAX: usize = 64;

/// One media range of an Accept header, with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AcceptClause<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl AcceptClause<'_> {
    /// Whether the media range, `type/subtype`, `type/*` or `*/*`, includes `media_type`.
    pub(super) fn covers(&self, media_type: &str) -> bool {
        let (main, sub) = media_type.split_once('/').unwrap_or((media_type, ""));
        match (self.main, self.sub) {
            ("*", "*") => true,
            (own, "*") => own == main,
            own => own == (main, sub),
        }
    }

    /// Whether the clause's media range is exactly `range`, rather than a wildcard that covers it.
    pub(super) fn names(&self, range: &str) -> bool {
        range.split_once('/') == Some((self.main, self.sub))
    }

    /// Whether the media range has parameters other than `known`. The quality is not a parameter.
    pub(super) fn has_others(&self, known: &[&str]) -> bool {
        self.parameters.iter().any(|(name, _)| !known.contains(name))
    }

    /// Returns the last value given for the parameter `name`.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().rev().find(|(candidate, _)| *candidate == name).map(|(_, value)| *value)
    }

    /// Whether the apiserver sorts `self` before `other`: by higher quality, or because it is concrete where the other
    /// is a wildcard. The latter ignores the qualities, so `application/json;q=0.1` precedes `*/*`.
    fn before(&self, other: &Self) -> bool {
        self.quality > other.quality || (self.main != "*" && other.main == "*") || (self.sub != "*" && other.sub == "*")
    }
}

/// Returns all well-formed clauses, best first. A header that is too long has none; callers refuse it before
/// ([`super::check_accept_length`]).
pub(super) fn clauses(accept: &str) -> Vec<AcceptClause<'_>> {
    if is_too_long(accept) {
        return Vec::new();
    }
    let mut clauses: Vec<AcceptClause<'_>> = accept.split(',').filter_map(clause).collect();
    // Up to twelve elements, Go's sort is this insertion sort. Beyond that, its order under such a comparison depends
    // on its implementation; no client sends that many.
    for end in 1..clauses.len() {
        for at in (1..=end).rev() {
            if !clauses[at].before(&clauses[at - 1]) {
                break;
            }
            clauses.swap(at, at - 1);
        }
    }
    clauses
}

/// Whether the header exceeds [`ACCEPT_BYTES_MAX`] or [`CLAUSES_MAX`].
pub(super) fn is_too_long(accept: &str) -> bool {
    accept.len() > ACCEPT_BYTES_MAX || accept.bytes().filter(|byte| *byte == b',').count() >= CLAUSES_MAX
}

fn clause(text: &str) -> Option<AcceptClause<'_>> {
    let text = text.trim_matches(' ');
    let (range, rest) = text.split_once(';').unwrap_or((text, ""));
    let (main, sub) = match range.split_once('/') {
        Some((main, sub)) if !sub.is_empty() => (main.trim_matches(' '), sub),
        _ => (range.trim_end_matches('/').trim_matches(' '), ""),
    };
    let sub = match (main, sub) {
        ("*", "") => "*",
        (_, "") => return None,
        // A second slash is an error only if text follows it.
        (_, sub) => match sub.split_once('/') {
            None => sub,
            Some((sub, "")) => sub,
            Some(_) => return None,
        },
    };
    let mut clause = AcceptClause { main, sub: sub.trim_matches(' '), quality: 1.0, parameters: Vec::new() };
    for parameter in rest.split(';') {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        // A second `=` is an error only if text follows it.
        let value = match value.split_once('=') {
            None if value.is_empty() => continue,
            None => value,
            Some((value, "")) => value,
            Some(_) => continue,
        };
        match name.trim_matches(' ') {
            "q" => clause.quality = value.parse().unwrap_or(0.0),
            name => clause.parameters.push((name, value.trim_matches(' '))),
        }
    }
    Some(clause)
}
