//! A minimal protobuf reader that finds an object's identity and version. It is independent, because the server under
//! test reads protobuf with other code.

/// The prefix of every object document in protobuf.
const MAGIC: &[u8] = b"k8s\0";

/// One field of a protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtobufField<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A fixed-width field, which is not decoded.
    Other,
}

/// An iterator over the fields of a message in their order. It yields `None` where the message is malformed.
pub(crate) struct ProtobufFields<'a>(&'a [u8]);

pub(crate) fn fields(message: &[u8]) -> ProtobufFields<'_> {
    ProtobufFields(message)
}

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = Option<(u64, ProtobufField<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let read = self.read();
        if read.is_none() {
            self.0 = &[];
        }
        Some(read)
    }
}

impl<'a> ProtobufFields<'a> {
    fn read(&mut self) -> Option<(u64, ProtobufField<'a>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => ProtobufField::Number(self.varint()?),
            1 => self.skip(8)?,
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(len)?;
                self.0 = rest;
                ProtobufField::Bytes(bytes)
            }
            5 => self.skip(4)?,
            _ => return None,
        };
        Some((tag >> 3, field))
    }

    fn skip(&mut self, len: usize) -> Option<ProtobufField<'a>> {
        self.0 = self.0.get(len..)?;
        Some(ProtobufField::Other)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (at, byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(at).ok()?)?;
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
        }
        None
    }
}

/// Returns the last bytes field with the number `field_number`, because the last of repeated fields counts.
pub(crate) fn bytes(message: &[u8], field_number: u64) -> Option<&[u8]> {
    let mut found = None;
    for field in fields(message) {
        if let (number, ProtobufField::Bytes(bytes)) = field?
            && number == field_number
        {
            found = Some(bytes);
        }
    }
    found
}

pub(crate) fn text(message: &[u8], field_number: u64) -> Option<&str> {
    std::str::from_utf8(bytes(message, field_number)?).ok()
}

pub(crate) fn number(message: &[u8], field_number: u64) -> Option<u64> {
    fields(message).flatten().find_map(|(number, field)| match field {
        ProtobufField::Number(value) if number == field_number => Some(value),
        _ => None,
    })
}

/// Returns the object in a document: `runtime.Unknown.raw` after the magic.
pub(crate) fn object(document: &[u8]) -> Option<&[u8]> {
    bytes(document.strip_prefix(MAGIC)?, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_parse_in_order_and_truncated_input_is_malformed() {
        let message = b"\x08\x96\x01\x12\x02hi\x1d\0\0\0\0";
        let read: Vec<_> = fields(message).collect();
        assert_eq!(
            read,
            [
                Some((1, ProtobufField::Number(150))),
                Some((2, ProtobufField::Bytes(b"hi"))),
                Some((3, ProtobufField::Other))
            ]
        );
        assert_eq!(bytes(b"\x12\x01a\x12\x01b", 2), Some(&b"b"[..]));
        for end in 1..message.len() {
            let whole = [3, 7].contains(&end);
            assert_eq!(fields(&message[..end]).all(|field| field.is_some()), whole, "{end}");
        }
        assert_eq!(fields(&[0xff; 20]).collect::<Vec<_>>(), [None]);
    }
}
