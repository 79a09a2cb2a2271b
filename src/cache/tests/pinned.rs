//! States that are kept while they are being sent.

use super::fixture::{POD, Pod, added, deleted, listed, ring};
use crate::cache::{CacheReader, CacheWriter, FeedEndReason, FeedState, SnapshotPin, SnapshotPins};
use base::AbortSignal;

const OTHERS: [Pod; 3] = [Pod { name: "q", ..POD }, Pod { name: "r", ..POD }, Pod { name: "s", ..POD }];

fn feed() -> (CacheWriter, CacheReader) {
    listed(ring(10), 10, &[(POD, 5), (OTHERS[0], 6), (OTHERS[1], 7), (OTHERS[2], 8)])
}

fn pin(pins: &SnapshotPins, reader: &CacheReader) -> (AbortSignal, SnapshotPin) {
    let cut = AbortSignal::default();
    (cut.clone(), reader.pin(pins, &reader.snapshot(), cut))
}

/// Returns the size of the feed's state.
fn whole(reader: &CacheReader) -> usize {
    reader.stats().object_bytes
}

#[test]
fn pin_is_charged_only_for_objects_gone_from_the_store() {
    let (mut writer, reader) = feed();
    let (pins, whole) = (SnapshotPins::default(), whole(&reader));
    let len = whole / 4;
    let (_cut, old) = pin(&pins, &reader);
    assert_eq!((pins.len(), pins.bytes()), (1, 0), "all of it is the store's own");
    writer.apply([added(&POD, 11)]).expect("in order");
    let (_cut, _young) = pin(&pins, &reader);
    assert_eq!(pins.bytes(), len, "the younger keeps nothing that the older does not");
    writer.apply([deleted(&OTHERS[0], 12)]).expect("in order");
    assert!(pins.bytes() > len);
    for rv in 13..100 {
        writer.apply([added(&POD, rv)]).expect("in order");
    }
    assert_eq!(pins.bytes(), whole, "what has come and gone since is nothing of the state's");
    drop(old);
    assert_eq!(pins.len(), 1);
    assert!(pins.bytes() <= whole + 2, "versions may have a digit more");
}

#[test]
fn pin_is_charged_for_its_whole_state_after_feed_ends() {
    let (mut writer, reader) = feed();
    let pins = SnapshotPins::default();
    let (_cut, _pin) = pin(&pins, &reader);
    assert_eq!(pins.bytes(), 0);
    writer.set_state(FeedState::Ended(FeedEndReason::Idle));
    assert_eq!(pins.bytes(), whole(&reader));
}

#[test]
fn freeing_pins_cuts_only_as_many_of_the_oldest_as_needed() {
    let (mut writer, reader) = feed();
    let (mut busy, still) = (feed(), feed());
    let (pins, mut pinned) = (SnapshotPins::default(), Vec::new());
    // A feed without changes costs nothing, however old its pins are.
    pinned.push(pin(&pins, &still.1));
    for rv in 11..14 {
        pinned.push(pin(&pins, &reader));
        writer.apply([added(&POD, rv)]).expect("in order");
    }
    pinned.push(pin(&pins, &busy.1));
    busy.0.apply([added(&POD, 11)]).expect("in order");
    let cut = |pinned: &[(AbortSignal, SnapshotPin)]| {
        pinned.iter().map(|(cut, _)| cut.reason().is_some()).collect::<Vec<_>>()
    };
    assert_eq!(pins.free(0), 0);
    assert_eq!(cut(&pinned), [false; 5]);
    let before = pins.bytes();
    let freed = pins.free(1);
    assert_eq!(cut(&pinned), [true, true, false, false, false]);
    assert_eq!(pins.bytes(), before - freed, "who has been cut does not count");
    assert_eq!(pins.len(), 5, "until they are gone");
    assert_eq!(pins.free(usize::MAX), before - freed);
    assert_eq!(cut(&pinned), [true; 5]);
    assert!(pinned.iter().all(|(cut, _)| cut.reason() == Some("memory_pressure")));
    drop(pinned);
    assert!(pins.is_empty() && pins.bytes() == 0);
}
