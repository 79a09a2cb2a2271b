//! Valid and invalid header blocks (RFC 7541). A block that cannot be decoded ends the connection, because no later
//! block could be decoded either (RFC 9113 §4.3).

use super::frames::{
    COMPRESSION_ERROR, ENHANCE_YOUR_CALM, FRAME_BYTES, PROTOCOL_ERROR, get, head, head_in_parts, request,
};
use super::hpack::{
    Literal, TABLE_BYTES, block, code, coded, coded_literal, indexed, integer, literal, packed, resized, text,
};
use super::rows::{
    Before,
    Outcome::{Answered, Closed, Ends, Reset},
    Row, SMALL, hold, proxy,
};

/// Index of the newest entry of the dynamic table.
const NEWEST: usize = 62;

/// A request with these bytes at the end of its block.
fn behind(more: &[u8]) -> Vec<u8> {
    head(1, &[request("GET", SMALL, &[]), more.to_vec()].concat())
}

fn remembered(name: &str, value: &str) -> Vec<u8> {
    literal(Literal::Remembered, name.as_bytes(), value.as_bytes())
}

fn what_can_be_read() -> Vec<Row> {
    // GET and http by index, the path with an indexed name, the authority Huffman-coded.
    let mixed = [indexed(2), indexed(6), integer(0, 4, 4), coded(SMALL.as_bytes()), integer(0x40, 6, 1)].concat();
    let mixed = [mixed, coded(b"localhost")].concat();
    // Octets that a value may contain (RFC 9110 §5.5), without white space, which must not begin or end it.
    let all: Vec<u8> = (33..=126).chain(128..=255).collect();
    let again = [indexed(2), indexed(6), integer(0, 4, 4), text(SMALL.as_bytes()), indexed(NEWEST)].concat();
    let in_codes: Vec<u8> = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", SMALL)]
        .iter()
        .flat_map(|(name, value)| coded_literal(Literal::Never, name, value))
        .collect();
    let twice = |first: Vec<u8>, second: Vec<u8>| [head(1, &first), head(3, &second)].concat();
    let answered = || vec![Answered(1, 200)];
    vec![
        ("numbers and codes", head(1, &mixed), answered()),
        ("names in codes", head(1, &in_codes), answered()),
        ("every symbol in codes", behind(&[vec![0], text(b"x-all"), coded(&all)].concat()), answered()),
        ("an empty string in codes", behind(&[vec![0], text(b"x"), vec![0x80]].concat()), answered()),
        ("an entry of the connection's own", twice(mixed.clone(), again), vec![Answered(3, 200)]),
        ("an entry of the same block", behind(&[remembered("x-a", "b"), indexed(NEWEST)].concat()), answered()),
        (
            "a table of nothing and then of all",
            twice(mixed.clone(), [resized(0), resized(TABLE_BYTES), mixed].concat()),
            vec![Answered(3, 200)],
        ),
        ("the same size again", head(1, &[resized(TABLE_BYTES), request("GET", SMALL, &[])].concat()), answered()),
        // An entry larger than the table evicts every entry (RFC 7541 §4.4).
        ("an entry larger than the table", behind(&remembered("x", &"y".repeat(TABLE_BYTES))), answered()),
        (
            "a number of more bytes than it needs",
            behind(
                &[vec![0, 0x7f, 0x80, 0]]
                    .concat()
                    .into_iter()
                    .chain(vec![b'x'; 127])
                    .chain(text(b"a"))
                    .collect::<Vec<_>>(),
            ),
            answered(),
        ),
    ]
}

fn what_cannot() -> Vec<Row> {
    let refused = || vec![Ends(COMPRESSION_ERROR)];
    let value = |bytes: &[u8]| behind(&[&[0, 1, b'x'], bytes].concat());
    // "&" has a code of eight bits. The padding of a string is ones, fewer than eight of them (RFC 7541 §5.2).
    let symbol = code(usize::from(b'&'));
    let zeros = packed(&[code(usize::from(b'a')), vec![0, 0, 0]].concat());
    let end = packed(&code(256));
    let string = |bytes: &[u8]| value(&[integer(0x80, 7, bytes.len()), bytes.to_vec()].concat());
    let updated = |bytes: Vec<u8>| head(1, &[bytes, request("GET", SMALL, &[])].concat());
    vec![
        ("an index of nothing", behind(&[0x80]), refused()),
        ("an index beyond both tables", behind(&indexed(NEWEST)), refused()),
        ("a far index", behind(&indexed(1 << 20)), refused()),
        ("a name beyond both tables", behind(&[integer(0x40, 6, NEWEST), text(b"a")].concat()), refused()),
        ("an index that never ends", behind(&[&[0xff], [0xff; 12].as_slice(), &[0]].concat()), refused()),
        ("a length that never ends", behind(&[&[0, 0x7f], [0xff; 12].as_slice(), &[0]].concat()), refused()),
        ("a number that stops", behind(&[0xff, 0x80]), refused()),
        ("a name longer than the block", behind(&[0, 10, b'x']), refused()),
        ("a value longer than the block", value(&[10, b'x']), refused()),
        ("a field that stops at its name", behind(&[0, 1, b'x']), refused()),
        ("a field that stops at its kind", behind(&[0x40]), refused()),
        ("a string filled with zeros", string(&zeros), refused()),
        ("a string filled with a whole byte", string(&[packed(&symbol), vec![0xff]].concat()), refused()),
        ("a string with its end in it", string(&end), refused()),
        ("a string that stops within a code", string(&[0xff, 0xfe]), refused()),
        ("a table larger than allowed", updated(resized(TABLE_BYTES + 1)), refused()),
        ("a table of any size", updated(resized(usize::MAX >> 8)), refused()),
        // RFC 7541 §4.2: only at the beginning of a block.
        ("a table size update after a field", behind(&resized(0)), refused()),
        (
            "an entry that went with the others",
            {
                let first = [request("GET", SMALL, &[]), remembered("x-a", "b")].concat();
                [head(1, &first), head(3, &[resized(0), request("GET", SMALL, &[]), indexed(NEWEST)].concat())].concat()
            },
            refused(),
        ),
        (
            "an entry that made room",
            {
                let block =
                    [remembered("x-a", "b"), remembered("x-c", &"d".repeat(4_050)), indexed(NEWEST + 1)].concat();
                behind(&block)
            },
            refused(),
        ),
    ]
}

/// A header list of more than 64 KiB is refused, and costs neither the connection nor memory.
fn what_is_too_much() -> Vec<Row> {
    let refused = |stream| vec![Answered(stream, 431), Reset(stream, ENHANCE_YOUR_CALM), Reset(stream, PROTOCOL_ERROR)];
    let long = "y".repeat(8 << 10);
    let many: Vec<_> = (0..10).map(|_| ("x-long", long.as_str())).collect();
    let many = [request("GET", SMALL, &[]), block(&many)].concat();
    // A table entry of four kilobytes, and one byte for each reference to it.
    let again = |times| behind(&[remembered("x", &"y".repeat(4_000)), vec![0xbe; times]].concat());
    let huge = [request("GET", SMALL, &[]), block(&[("x-huge", &"z".repeat(1 << 20))])].concat();
    let later = [refused(1), vec![Ends(ENHANCE_YOUR_CALM)]].concat();
    vec![
        ("eighty KiB", head_in_parts(1, &many, FRAME_BYTES), refused(1)),
        ("an entry repeated twenty times", again(20), refused(1)),
        (
            "eighty KiB, and then a request",
            [head_in_parts(1, &many, FRAME_BYTES), get(3, SMALL)].concat(),
            vec![Answered(3, 200)],
        ),
        // The server may close the connection far beyond the limit, because it need not read everything (RFC 9113
        // §10.5.1).
        ("an entry repeated four thousand times, sixteen MB in one frame", again(4_000), later.clone()),
        ("a MiB in one field", head_in_parts(1, &huge, FRAME_BYTES), later),
        // An incomplete request must not be buffered without a limit either.
        ("a MiB that never ends", head_in_parts(1, &huge, FRAME_BYTES)[..500_000].to_vec(), vec![Closed]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn header_blocks_are_decoded_or_rejected_per_rfc_7541() {
    let (_upstream, app) = proxy().await;
    let tables = vec![
        ("valid blocks", Before::Hello, what_can_be_read()),
        ("invalid blocks", Before::Hello, what_cannot()),
        ("oversized blocks", Before::Hello, what_is_too_much()),
    ];
    hold(&app, tables).await;
}
