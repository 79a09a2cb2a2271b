//! The unions in apiextensions' `JSONSchemaProps`: each is written as the member that is set
//! (apiextensions/v1/marshal.go).

use super::RefusalReason;
use super::facts::MessageId;
use super::go_json::put_text;
use super::scalar::{for_each, once, put_null, unknown};
use super::writer::{BodyWriter, Item};
use crate::wire::protobuf::Value;

impl<'b> BodyWriter<'_, 'b, '_> {
    pub(super) fn schema_or_bool(&mut self, schema: MessageId, union: &'b [u8]) -> Result<(), RefusalReason> {
        let (mut allows, mut props) = (None, None);
        for_each(union, |field| match (field.number, field.value) {
            (1, Value::Varint(value)) => once(&mut allows, value),
            (2, Value::Bytes(value)) => once(&mut props, value),
            _ => Err(unknown(field)),
        })?;
        if let Some(props) = props {
            return self.message(schema, props);
        }
        let allows = Item::Varint(allows.unwrap_or_default()).bool()?;
        self.out.extend_from_slice(if allows { b"true" } else { b"false" });
        Ok(())
    }

    pub(super) fn schema_or_array(&mut self, schema: MessageId, union: &'b [u8]) -> Result<(), RefusalReason> {
        self.schema_or_list(schema, union, |writer, props| writer.message(schema, props))
    }

    pub(super) fn schema_or_strings(&mut self, schema: MessageId, union: &'b [u8]) -> Result<(), RefusalReason> {
        self.schema_or_list(schema, union, |writer, text| {
            put_text(writer.out, text);
            Ok(())
        })
    }

    /// Writes a list if it has elements, else the schema, else `null`.
    fn schema_or_list(
        &mut self,
        schema: MessageId,
        union: &'b [u8],
        put: impl Fn(&mut Self, &'b [u8]) -> Result<(), RefusalReason>,
    ) -> Result<(), RefusalReason> {
        let mut props = None;
        let mut separator = b'[';
        for_each(union, |field| match (field.number, field.value) {
            (1, Value::Bytes(value)) => once(&mut props, value),
            (2, Value::Bytes(value)) => {
                self.out.push(separator);
                separator = b',';
                put(self, value)
            }
            _ => Err(unknown(field)),
        })?;
        match props {
            _ if separator == b',' => self.out.push(b']'),
            Some(props) => self.message(schema, props)?,
            None => put_null(self.out),
        }
        Ok(())
    }
}
