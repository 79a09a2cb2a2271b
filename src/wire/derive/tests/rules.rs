//! Rules of R-DERIVE-6 and R-DERIVE-7 that random objects rarely or never exercise.

use super::super::facts::ReleaseSchema;
use super::super::go_json::{put_compact, put_double, put_duration, put_text};
use super::super::scalar::put_time;
use super::super::{ProtobufJsonTranscoder, TranscodeRefusal};
use kubeapi::protobuf::put_varint;

fn printed(put: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    put(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn strings_are_escaped_like_go() {
    let rows: [(&[u8], &str); 8] = [
        (b"plain /\x7f'", "\"plain /\x7f'\""),
        (b"\"\\\x08\x0c\n\r\t", r#""\"\\\b\f\n\r\t""#),
        (b"\x00\x1f<>&", r#""\u0000\u001f\u003c\u003e\u0026""#),
        ("é世🎉\u{2027}\u{2028}\u{2029}".as_bytes(), "\"é世🎉\u{2027}\\u2028\\u2029\""),
        (b"a\xffb\xc3", r#""a\ufffdb\ufffd""#),
        (b"\xe2\x80", r#""\ufffd\ufffd""#),
        (b"\xed\xa0\x80", r#""\ufffd\ufffd\ufffd""#),
        (b"\xf4\x90\x80\x80", r#""\ufffd\ufffd\ufffd\ufffd""#),
    ];
    for (text, want) in rows {
        assert_eq!(printed(|out| put_text(out, text)), want);
    }
}

#[test]
fn raw_json_is_compacted_and_html_escaped() {
    let rows = [
        (" { \"a\" : [ 1 ,\n2.50 ] } ", r#"{"a":[1,2.50]}"#),
        (r#"{"a b":" \" <&> \\"}"#, r#"{"a b":" \" \u003c\u0026\u003e \\"}"#),
        ("\"\u{2028}é\"", "\"\\u2028é\""),
        (r#""\ud800""#, r#""\ud800""#),
        ("null", "null"),
    ];
    for (json, want) in rows {
        assert_eq!(printed(|out| put_compact(out, json.as_bytes()).unwrap()), want);
    }
    let bad: [&[u8]; 7] = [b"", b"{", b"{} {}", b"01", b"\xd9\xd9\xf7\xa0", b"k8s\0", b"\"\n\""];
    for json in bad {
        assert!(put_compact(&mut Vec::new(), json).is_err(), "{}", json.escape_ascii());
    }
}

#[test]
fn numbers_render_like_go() {
    let rows = [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (0.1, "0.1"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1e-6, "0.000001"),
        (9.5e-7, "9.5e-7"),
        (1e-10, "1e-10"),
        (f64::MAX, "1.7976931348623157e+308"),
    ];
    for (value, want) in rows {
        assert_eq!(printed(|out| put_double(out, value).unwrap()), want);
    }
    assert!(put_double(&mut Vec::new(), f64::NAN).is_err());
    let rows = [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (-2_000_000, "-2ms"),
        (60_000_000_000, "1m0s"),
        (3_605_500_000_000, "1h0m5.5s"),
        (i64::MIN, "-2562047h47m16.854775808s"),
    ];
    for (value, want) in rows {
        assert_eq!(printed(|out| put_duration(out, value)), format!("\"{want}\""));
    }
}

/// Clients choose the times of objects. JSON of `9999-12-31T23:59:59-23:59` is in the year 10000, and protobuf has any
/// number of seconds. The texts are those of Go's `time.Unix(seconds, nanoseconds).UTC()`.
#[test]
fn times_outside_four_digit_years_render_like_go() {
    let rows = [
        (0, 0, "1970-01-01T00:00:00", "000000"),
        (951_782_400, 999_999_999, "2000-02-29T00:00:00", "999999"),
        (253_402_300_799, 0, "9999-12-31T23:59:59", "000000"),
        (253_402_387_139, 1_000, "10000-01-01T23:58:59", "000001"),
        (-62_135_596_801, 0, "0000-12-31T23:59:59", "000000"),
        (-62_167_219_200, 0, "0000-01-01T00:00:00", "000000"),
        (-62_167_219_201, 0, "-0001-12-31T23:59:59", "000000"),
        (-377_705_116_800, 0, "-9999-01-01T00:00:00", "000000"),
        (i64::MAX, 0, "292277026596-12-04T15:30:07", "000000"),
    ];
    for (seconds, nanoseconds, want, micros) in rows {
        let mut message = vec![8];
        put_varint(&mut message, i64::cast_unsigned(seconds));
        message.push(16);
        put_varint(&mut message, nanoseconds);
        assert_eq!(printed(|out| put_time(out, &message, false).unwrap()), format!("\"{want}Z\""));
        assert_eq!(printed(|out| put_time(out, &message, true).unwrap()), format!("\"{want}.{micros}Z\""));
    }
    assert!(
        put_time(&mut Vec::new(), b"\x08\x00\x10\x80\x94\xeb\xdc\x03", false).is_err(),
        "a whole second of nanoseconds"
    );
}

/// Metadata with only an empty creationTimestamp, as in a bookmark.
const ZERO_TIME: &[u8] = b"\x0a\x02\x42\x00";

#[test]
fn zero_creation_timestamp_is_null_through_1_33_and_then_omitted() {
    for (minor, want) in [(33, r#""metadata":{"creationTimestamp":null}}"#), (34, r#""metadata":{}}"#)] {
        let transcoder = ProtobufJsonTranscoder::for_server(minor, "v1", "ConfigMap").unwrap();
        assert_eq!(printed(|out| transcoder.json(ZERO_TIME, out).unwrap()), want);
    }
}

#[test]
fn releases_outside_the_table_have_no_transcoder() {
    assert_eq!(ReleaseSchema::minors(), 33..=37);
    for minor in [0, 32, 38, u32::MAX] {
        assert!(ProtobufJsonTranscoder::for_server(minor, "v1", "Pod").is_none());
    }
    assert!(ProtobufJsonTranscoder::for_server(37, "v1", "Pod").is_some());
    assert!(ProtobufJsonTranscoder::for_server(37, "example.com/v1", "Gadget").is_none());
    assert!(ProtobufJsonTranscoder::for_server(37, "apps/v1", "Pod").is_none());
}

#[test]
fn transcoder_error_names_the_field_and_keeps_the_output() {
    let rows: [(&[u8], &str, TranscodeRefusal); 10] = [
        (b"\x9a\x06\x00", "", TranscodeRefusal::UnknownField(99)),
        (b"\x12\x02\xa2\x06", "spec", TranscodeRefusal::Malformed("truncated field")),
        (b"\x0a\x00\x0a\x00", "metadata", TranscodeRefusal::Malformed("a singular field twice")),
        (b"\x0a\x02\x0a\x05", "metadata", TranscodeRefusal::Malformed("truncated field")),
        (b"\x08\x00", "metadata", TranscodeRefusal::Malformed("wire type differs from the API's")),
        (b"\x12\x05\x12\x03\xa2\x06\x00", "spec.containers", TranscodeRefusal::UnknownField(100)),
        (b"\x0a\x04\x42\x02\x18\x00", "metadata.creationTimestamp", TranscodeRefusal::UnknownField(3)),
        (b"\x0a\x04\x5a\x02\x0a\x00", "metadata.labels", TranscodeRefusal::Malformed("a map entry without a value")),
        (
            b"\x0a\x06\x8a\x01\x03\x3a\x01\x00",
            "metadata.managedFields.fieldsV1",
            TranscodeRefusal::Malformed("impossible field number"),
        ),
        (b"\x12\x02\x58\x02", "spec.hostNetwork", TranscodeRefusal::Value("neither true nor false")),
    ];
    let transcoder = ProtobufJsonTranscoder::for_server(37, "v1", "Pod").unwrap();
    for (body, path, why) in rows {
        let mut out = b"before".to_vec();
        let refused = transcoder.json(body, &mut out).unwrap_err();
        assert_eq!((refused.path.as_str(), refused.reason), (path, why), "{}", body.escape_ascii());
        assert_eq!(out, b"before");
    }
}

#[test]
fn schema_nesting_depth_is_limited() {
    let within = |tag: &[u8], message: Vec<u8>| {
        let mut outer = tag.to_vec();
        put_varint(&mut outer, message.len() as u64);
        [outer, message].concat()
    };
    let nested = |levels: usize| {
        // spec = 2, versions = 7, schema = 4, openAPIV3Schema = 1, and not = 28 nested in itself.
        let schema = (0..levels).fold(Vec::new(), |schema, _| within(&[0xe2, 1], schema));
        [0x0a, 0x22, 0x3a, 0x12].into_iter().fold(schema, |message, tag| within(&[tag], message))
    };
    let transcoder =
        ProtobufJsonTranscoder::for_server(37, "apiextensions.k8s.io/v1", "CustomResourceDefinition").unwrap();
    let refused = transcoder.json(&nested(10_000), &mut Vec::new()).unwrap_err();
    assert_eq!(refused.reason, TranscodeRefusal::TooDeep);
    let json = printed(|out| transcoder.json(&nested(100), out).unwrap());
    assert_eq!(json.matches(r#"{"not":"#).count(), 100);
}

#[test]
fn transcoder_output_is_limited_relative_to_its_input() {
    // An endpoint of two bytes is `{"addresses":null}`.
    let body: Vec<u8> = std::iter::repeat_n([0x12, 0], 100_000).flatten().collect();
    let transcoder = ProtobufJsonTranscoder::for_server(37, "discovery.k8s.io/v1", "EndpointSlice").unwrap();
    let error = transcoder.json(&body, &mut Vec::new()).unwrap_err();
    assert!(matches!(error.reason, TranscodeRefusal::TooLarge(_)), "{error}");
}
