//! The Accept header's clauses in the order in which the apiserver tries them.
//!
//! Its parser, munnerz/goautoneg, is not RFC 9110: it splits at every comma, trims only spaces, drops what it does not
//! understand, and sorts with a comparison that is no order. All of it decides which bytes a client gets.

/// One media range with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Clause<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl Clause<'_> {
    /// `type/subtype`, `type/*` or `*/*`.
    pub(super) fn covers(&self, media_type: &str) -> bool {
        let (main, sub) = media_type.split_once('/').unwrap_or((media_type, ""));
        match (self.main, self.sub) {
            ("*", "*") => true,
            (own, "*") => own == main,
            own => own == (main, sub),
        }
    }

    /// The last value given for `name`.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().rev().find(|(candidate, _)| *candidate == name).map(|(_, value)| *value)
    }

    /// Whether the apiserver sorts `self` before `other`: better quality, or concrete where the other is a wildcard.
    /// The latter whatever the qualities, so `application/json;q=0.1` comes before `*/*`.
    fn before(&self, other: &Self) -> bool {
        self.quality > other.quality || (self.main != "*" && other.main == "*") || (self.sub != "*" && other.sub == "*")
    }
}

/// All well-formed clauses, best first.
pub(super) fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(clause).collect();
    // Go's sort is this insertion sort up to twelve elements. Beyond, its order under such a comparison is an accident
    // of its implementation; no client sends that many.
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

fn clause(text: &str) -> Option<Clause<'_>> {
    let text = text.trim_matches(' ');
    let (range, rest) = text.split_once(';').unwrap_or((text, ""));
    let (main, sub) = match range.split_once('/') {
        Some((main, sub)) if !sub.is_empty() => (main.trim_matches(' '), sub),
        _ => (range.trim_end_matches('/').trim_matches(' '), ""),
    };
    let sub = match (main, sub) {
        ("*", "") => "*",
        (_, "") => return None,
        // A second slash is an error only with something behind it.
        (_, sub) => match sub.split_once('/') {
            None => sub,
            Some((sub, "")) => sub,
            Some(_) => return None,
        },
    };
    let mut clause = Clause { main, sub: sub.trim_matches(' '), quality: 1.0, parameters: Vec::new() };
    for parameter in rest.split(';') {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        // Here too, a second `=` is an error only with something behind it.
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
