use super::fixtures::{FEEDS, Pod};
use super::reader::change;
use kubeapi::ResourceVersion;

#[test]
fn restamped_object_equals_object_encoded_with_that_version() {
    // Equal, fewer and more digits; and metadata whose length crosses a varint boundary as a result.
    let versions = [1, 9, 10, 4710, 9999, 10_000, 123_456_789, u64::MAX];
    for (encoding, shape) in FEEDS {
        for padding in (0..260).chain([16_200, 16_250, 16_384]) {
            for from in versions {
                let pod = Pod { rv: from, padding, ..Pod::default() };
                let (_, object, _) = change(encoding, shape, &pod, "ADDED");
                for to in versions {
                    let rebuilt = Pod { rv: to, ..pod.clone() }.body(encoding, shape);
                    assert_eq!(
                        object.with_resource_version(ResourceVersion(to)),
                        rebuilt,
                        "{encoding} {padding} {from} {to}"
                    );
                }
            }
        }
    }
}

#[test]
fn restamping_with_the_same_version_does_not_copy() {
    for (encoding, shape) in FEEDS {
        let (_, object, _) = change(encoding, shape, &Pod::default(), "ADDED");
        assert_eq!(object.with_resource_version(object.rv).as_ptr(), object.body().as_ptr());
    }
}

#[test]
fn debug_output_shows_no_content() {
    for (encoding, shape) in FEEDS {
        let (_, object, _) = change(encoding, shape, &Pod::default(), "ADDED");
        let printed = format!("{object:?}");
        assert!(printed.contains("default/web-1 @ 4711"), "{printed}");
        assert!(!printed.contains("node-7"), "{printed}");
    }
}

#[test]
fn object_struct_is_at_most_120_bytes() {
    assert!(size_of::<crate::wire::ObjectRevision>() <= 120);
}
