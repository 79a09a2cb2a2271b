//! A protobuf reader that identifies fields by number, which is enough for comparisons. Independent of the product's
//! own reader, so that the tests can judge that.

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order; `None` if the bytes are not a message.
pub fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Field::Bytes(value)
            }
            _ => return None,
        };
        fields.push((tag >> 3, field));
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The first field with this number, if it is length-delimited.
pub fn bytes(message: &[u8], number: u64) -> Option<&[u8]> {
    fields(message)?.into_iter().find_map(|(at, field)| match field {
        Field::Bytes(bytes) if at == number => Some(bytes),
        _ => None,
    })
}

pub fn text(message: &[u8], number: u64) -> String {
    String::from_utf8_lossy(bytes(message, number).unwrap_or_default()).into_owned()
}

/// The kind and the message of a document with an envelope (R-PROTO-1).
pub fn document(document: &[u8]) -> Option<(String, &[u8])> {
    let unknown = document.strip_prefix(b"k8s\0")?;
    let kind = text(bytes(unknown, 1)?, 2);
    Some((kind, bytes(unknown, 2).unwrap_or_default()))
}

/// The apiVersion of a document with an envelope.
pub fn version(document: &[u8]) -> String {
    let unknown = document.strip_prefix(b"k8s\0").unwrap_or_default();
    bytes(unknown, 1).map_or_else(String::new, |meta| text(meta, 1))
}
