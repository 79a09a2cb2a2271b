//! The time of the latest write of an object.

use super::fixtures::{bytes, number, text};
use crate::wire::last_write;

/// 2026-01-02T03:04:05Z
const WRITTEN: i64 = 1_767_323_045;

#[test]
fn newest_time_of_managed_fields_is_read_from_json() {
    for (body, expected) in [
        (
            r#""metadata":{"name":"n","managedFields":[{"manager":"a","time":"2026-01-02T03:04:05Z","fieldsV1":{"f:x":{}}},{"time":"2025-12-31T23:59:59Z"}]},"spec":{}}"#,
            Some(WRITTEN),
        ),
        (r#"{"apiVersion":"v1","metadata":{"managedFields":[{"time":"2026-01-02T03:04:05Z"}]}}"#, Some(WRITTEN)),
        (r#""metadata":{"managedFields":[{"time":"soon"},{"time":"2026-01-02T03:04:05Z"},{}]}}"#, Some(WRITTEN)),
        (r#""metadata":{"managedFields":[{"manager":"m"}]}}"#, None),
        (r#""metadata":{"managedFields":[]}}"#, None),
        (r#""metadata":{"creationTimestamp":"2026-01-02T03:04:05Z"}}"#, None),
        (r#""metadata":{"managedFields":[{"time":5}]}}"#, None),
        (r#""metadata":{"managedFields":"#, None),
        ("{", None),
        ("", None),
    ] {
        assert_eq!(last_write(body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn newest_time_of_managed_fields_is_read_from_protobuf() {
    let entry = |seconds: i64| {
        let time = number(1, seconds.cast_unsigned());
        bytes(17, &[text(1, "kubelet"), bytes(4, &time), bytes(7, &text(1, "{}"))].concat())
    };
    let object = |metadata: &[u8]| [bytes(1, metadata), bytes(2, &text(1, "spec"))].concat();
    let both = [text(1, "n"), entry(WRITTEN), entry(WRITTEN - 60)].concat();
    assert_eq!(last_write(&object(&both)), Some(WRITTEN));
    assert_eq!(last_write(&object(&[bytes(8, &number(1, 7)), text(1, "n")].concat())), None, "only a creation");
    assert_eq!(last_write(&object(&bytes(17, &text(1, "m")))), None, "an entry without time");
    assert_eq!(last_write(&object(&number(17, 5))), None);
    let whole = object(&both);
    for len in 0..whole.len() {
        let _ = last_write(&whole[..len]);
    }
}
