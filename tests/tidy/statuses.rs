//! Only `serve` and `admin`, which answer clients, create Statuses and status codes, with the words from `kubeapi`. The
//! layers below return errors as values.

use crate::assert_none;
use crate::files;
use crate::source::{Kind, Source, is};

/// Rooms of the daemon that answer clients.
const ANSWERING: [&str; 2] = ["serve", "admin"];
/// Rooms that parse upstream's responses.
const READING: [&str; 3] = ["upstream", "reflect", "wire"];
/// Functions that parse a response. Only received codes may be converted, because a literal number would be a response
/// of our own.
const READS: [&str; 3] = ["from_json", "from_protobuf", "from_code"];
/// Not a response, but the switch to another protocol.
const UPGRADED: &str = "SWITCHING_PROTOCOLS";

/// Lines on which a forbidden status is created, and how.
fn violations(file: &str, text: &str) -> Vec<(usize, String)> {
    let module = file.trim_start_matches("src/").split(['/', '.']).next().unwrap_or_default();
    if ANSWERING.contains(&module) {
        return Vec::new();
    }
    let source = Source::parse(file, text);
    let shipped = (0..source.tokens.len()).filter(|at| !source.tokens[*at].test);
    let found = shipped.filter_map(|at| Some((source.tokens[at].line, made(&source, at, READING.contains(&module))?)));
    found.collect()
}

/// How a status is created at this token, if one is.
fn made(source: &Source, at: usize, reads: bool) -> Option<String> {
    let token = source.tokens.get(at).filter(|token| token.kind == Kind::Word)?;
    let next = |ahead: usize| source.tokens.get(at + ahead);
    let is_number = |ahead| next(ahead).is_some_and(|token| token.text.starts_with(|c: char| c.is_ascii_digit()));
    let path = source.reads(at + 1, &[":", ":"]).then(|| next(3)).flatten().map_or("", |token| token.text.as_str());
    let previous = at.checked_sub(1).map(|at| &source.tokens[at]);
    // In `-> Status {` the brace opens a function.
    let is_named = previous.is_some_and(|token| ["struct", "impl", "for", ">"].iter().any(|word| is(token, word)));
    let is_made = match token.text.as_str() {
        "StatusCode" => !path.is_empty() && path != UPGRADED,
        "Status" if !reads => true,
        "Status" if path == "from_code" => is_number(5),
        "Status" => !path.is_empty() && !READS.contains(&path) || source.reads(at + 1, &["{"]) && !is_named,
        "status_mut" => true,
        "status" => source.reads(at + 1, &["("]) && is_number(2),
        _ => false,
    };
    is_made.then(|| format!("{}: an error that says what is wrong; `serve` says it to clients", token.text))
}

#[test]
fn statuses_are_created_only_in_the_serve_layer() {
    let files = files::rust();
    let shipped = files.iter().filter(|file| file.name.starts_with("src/"));
    let found = shipped.flat_map(|file| {
        let found = violations(&file.name, &file.text);
        found.into_iter().map(|(line, what)| format!("{}:{line}: {what}", file.name)).collect::<Vec<_>>()
    });
    assert_none("statuses that are not for this layer to make", &found.collect::<Vec<_>>());
}

#[test]
fn status_created_below_the_serve_layer_is_reported() {
    for (file, text, count) in [
        ("src/auth/authorizer.rs", "fn f() -> Status { why.status() }", 1),
        ("src/auth.rs", "use kubeapi::{Access, Status};", 1),
        ("src/net/serve.rs", "fn f() { StatusCode::FORBIDDEN }", 1),
        ("src/net/serve.rs", "fn f() { http::StatusCode::from_u16(code) }", 1),
        ("src/listing/page.rs", "fn f() { *response.status_mut() = code; }", 1),
        ("src/listing/page.rs", "fn f() { Response::builder().status(403) }", 1),
        ("src/upstream/client.rs", "fn f() { Status::from_code(403, why) }", 1),
        ("src/upstream/client.rs", "fn f() { Status::forbidden(why) }", 1),
        ("src/reflect/session.rs", "fn f() { Status { code, ..rest } }", 1),
        ("src/upstream/client.rs", "fn f() { Status::from_code(head.status.as_u16(), text) }", 0),
        ("src/upstream/client.rs", "fn f(body: &[u8]) -> Status { Status::from_json(body) }", 0),
        ("src/upstream/discovery/definitions.rs", "struct Status { names: Names } impl Status { fn f() {} }", 0),
        ("src/net/serve.rs", "use http::StatusCode; fn f() { answer.status() != StatusCode::SWITCHING_PROTOCOLS }", 0),
        (
            "src/auth/authorizer.rs",
            "// Status\nfn f() { \"Status\" } #[cfg(test)] mod tests { use kubeapi::Status; }",
            0,
        ),
        ("src/serve/response/context.rs", "fn f() { Status::forbidden(why) }", 0),
    ] {
        assert_eq!(violations(file, text).len(), count, "{file}: {text}");
    }
}
