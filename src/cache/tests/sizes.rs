//! Sizes of types with a million instances: ranges, so that growth and shrinking are both detected.

use std::ops::RangeInclusive;

use super::fixture::{POD, added, listed, pull_all, read_frame, ring, rv, view};
use crate::cache::{CacheReader, CollectionView, FeedCursor, FeedEvent, WatchStartPosition};
use kubeapi::EventType::Added;

/// Memory of a watch besides its connection, if it shares its view.
const CURSOR_BYTES: RangeInclusive<usize> = 48..=80;
/// Memory of an event besides its object and its frame.
const EVENT_BYTES: RangeInclusive<usize> = 80..=112;
/// Memory of a pod with six labels besides its body.
const OBJECT_BYTES: RangeInclusive<usize> = 350..=520;

#[test]
fn cursor_and_event_sizes_are_within_limits() {
    assert!(CURSOR_BYTES.contains(&size_of::<FeedCursor>()), "{}", size_of::<FeedCursor>());
    assert!(EVENT_BYTES.contains(&size_of::<FeedEvent>()), "{}", size_of::<FeedEvent>());
}

#[test]
fn object_attribute_overhead_is_within_limits() {
    let labels = concat!(
        r#""app.kubernetes.io/instance":"checkout-production","app.kubernetes.io/managed-by":"Helm","#,
        r#""app.kubernetes.io/name":"checkout","pod-template-hash":"6c8f9d7b54","team":"payments","#,
        r#""topology.kubernetes.io/zone":"eu-west-1a""#,
    );
    let frame = String::from_utf8(POD.frame(Added, 11).to_vec()).expect("JSON");
    let frame =
        frame.replace(r#""app":"x""#, labels).replace(r#""n1""#, r#""ip-10-0-12-34.eu-west-1.compute.internal""#);
    let object = read_frame(frame.clone().into()).object;
    assert_eq!(object.attributes.labels().len(), 6);
    let beside = object.size() - frame.len();
    assert!(OBJECT_BYTES.contains(&beside), "{beside}");
}

fn open(reader: &CacheReader, view: CollectionView) -> FeedCursor {
    reader.open(WatchStartPosition::After(rv(10)), view).expect("in the ring").cursor
}

#[test]
fn equal_views_are_shared_between_watches() {
    let (mut writer, reader) = listed(ring(10), 10, &[]);
    let [first, second, other, third] =
        ["app=x", "app=x", "app=x,tier!=front", "app=x,tier!=front"].map(|labels| open(&reader, view("", labels, "")));
    assert!(std::ptr::eq(first.view(), second.view()));
    assert!(std::ptr::eq(other.view(), third.view()));
    assert_eq!(*first.view(), view("", "app=x", ""));
    assert_eq!(*other.view(), view("", "app=x,tier!=front", ""));
    writer.apply([added(&POD, 11)]).expect("in order");
    for mut cursor in [first, second, other, third] {
        assert_eq!(pull_all(&mut cursor).0.len(), 1);
    }
}
