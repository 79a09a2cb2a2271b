//! States that are kept while they are being sent.

use std::time::Duration;

use tokio::time::{Instant, advance};

use super::fixture::{POD, Pod, added, deleted, listed, ring};
use crate::cache::{CacheReader, CacheWriter, FeedEnd, FeedState, Pin, PinTerms, Pins};
use base::Cut;

const OTHERS: [Pod; 3] = [Pod { name: "q", ..POD }, Pod { name: "r", ..POD }, Pod { name: "s", ..POD }];
const FOREVER: PinTerms = PinTerms { until: None, idle_max: None };

fn feed() -> (CacheWriter, CacheReader) {
    listed(ring(10), 10, &[(POD, 5), (OTHERS[0], 6), (OTHERS[1], 7), (OTHERS[2], 8)])
}

fn pin(pins: &Pins, reader: &CacheReader, terms: PinTerms) -> (Cut, Pin) {
    let cut = Cut::default();
    (cut.clone(), reader.pin(pins, &reader.snapshot(), cut, terms))
}

/// Returns the size of the feed's state.
fn whole(reader: &CacheReader) -> usize {
    reader.stats().object_bytes
}

async fn pass(seconds: u64) {
    for _ in 0..seconds {
        advance(Duration::from_secs(1)).await;
    }
}

#[test]
fn pin_is_charged_only_for_objects_gone_from_the_store() {
    let (mut writer, reader) = feed();
    let (pins, whole) = (Pins::default(), whole(&reader));
    let len = whole / 4;
    let (_cut, old) = pin(&pins, &reader, FOREVER);
    assert_eq!((pins.len(), pins.bytes()), (1, 0), "all of it is the store's own");
    writer.apply(added(&POD, 11)).expect("in order");
    let (_cut, _young) = pin(&pins, &reader, FOREVER);
    assert_eq!(pins.bytes(), len, "the younger keeps nothing that the older does not");
    writer.apply(deleted(&OTHERS[0], 12)).expect("in order");
    assert!(pins.bytes() > len);
    for rv in 13..100 {
        writer.apply(added(&POD, rv)).expect("in order");
    }
    assert_eq!(pins.bytes(), whole, "what has come and gone since is nothing of the state's");
    drop(old);
    assert_eq!(pins.len(), 1);
    assert!(pins.bytes() <= whole + 2, "versions may have a digit more");
}

#[test]
fn pin_is_charged_for_its_whole_state_after_feed_ends() {
    let (mut writer, reader) = feed();
    let pins = Pins::default();
    let (_cut, _pin) = pin(&pins, &reader, FOREVER);
    assert_eq!(pins.bytes(), 0);
    writer.set_state(FeedState::Ended(FeedEnd::Idle));
    assert_eq!(pins.bytes(), whole(&reader));
}

#[test]
fn freeing_pins_cuts_only_as_many_of_the_oldest_as_needed() {
    let (mut writer, reader) = feed();
    let (mut busy, still) = (feed(), feed());
    let (pins, mut pinned) = (Pins::default(), Vec::new());
    // A feed without changes costs nothing, however old its pins are.
    pinned.push(pin(&pins, &still.1, FOREVER));
    for rv in 11..14 {
        pinned.push(pin(&pins, &reader, FOREVER));
        writer.apply(added(&POD, rv)).expect("in order");
    }
    pinned.push(pin(&pins, &busy.1, FOREVER));
    busy.0.apply(added(&POD, 11)).expect("in order");
    let cut = |pinned: &[(Cut, Pin)]| pinned.iter().map(|(cut, _)| cut.why().is_some()).collect::<Vec<_>>();
    assert_eq!(pins.free(0), 0);
    assert_eq!(cut(&pinned), [false; 5]);
    let before = pins.bytes();
    let freed = pins.free(1);
    assert_eq!(cut(&pinned), [true, true, false, false, false]);
    assert_eq!(pins.bytes(), before - freed, "who has been cut does not count");
    assert_eq!(pins.len(), 5, "until they are gone");
    assert_eq!(pins.free(usize::MAX), before - freed);
    assert_eq!(cut(&pinned), [true; 5]);
    assert!(pinned.iter().all(|(cut, _)| cut.why() == Some("memory_pressure")));
    drop(pinned);
    assert!(pins.is_empty() && pins.bytes() == 0);
}

#[tokio::test(start_paused = true)]
async fn pin_waiting_for_other_than_its_client_is_not_idle() {
    let (_writer, reader) = feed();
    let pins = Pins::default();
    let kept = tokio::spawn(pins.clone().keep());
    let (waits, pin_of_it) = pin(&pins, &reader, PinTerms { until: None, idle_max: Some(Duration::from_secs(10)) });
    pin_of_it.rests();
    pass(1_000).await;
    assert_eq!(waits.why(), None);
    pin_of_it.told();
    pass(12).await;
    assert_eq!(waits.why(), Some("stalled"));
    kept.abort();
}

#[tokio::test(start_paused = true)]
async fn pin_deadlines_are_enforced_in_the_background() {
    let (_writer, reader) = feed();
    let pins = Pins::default();
    let kept = tokio::spawn(pins.clone().keep());
    let idle = PinTerms { until: None, idle_max: Some(Duration::from_secs(60)) };
    let (stuck, stuck_pin) = pin(&pins, &reader, idle);
    let (slow, pin_of_slow) = pin(&pins, &reader, idle);
    let until = PinTerms { until: Some((Instant::now() + Duration::from_secs(30), "too_slow")), idle_max: None };
    let (list, list_pin) = pin(&pins, &reader, until);
    pass(29).await;
    assert_eq!(list.why(), None);
    pass(3).await;
    assert_eq!((list.why(), stuck.why()), (Some("too_slow"), None));
    drop(list_pin);
    pin_of_slow.told();
    pass(32).await;
    assert_eq!((stuck.why(), slow.why()), (Some("stalled"), None));
    pass(32).await;
    assert_eq!(slow.why(), Some("stalled"), "later than the other by what it was told later");
    drop((stuck_pin, pin_of_slow));
    assert!(pins.is_empty());
    // The same again after all pins are gone.
    pass(100).await;
    let (late, _pin) = pin(&pins, &reader, idle);
    pass(63).await;
    assert_eq!(late.why(), Some("stalled"));
    kept.abort();
}
