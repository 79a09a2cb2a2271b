//! Panics of tasks, which the runtime catches and the application may survive.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs a closure on this thread. Also returns the panics during it, caught or not.
pub fn with_panics<T>(run: impl FnOnce() -> T) -> (Option<T>, Vec<String>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            before(panic);
        }));
    });
    PANICS.take();
    let ran = catch_unwind(AssertUnwindSafe(run)).ok();
    (ran, PANICS.take())
}

#[test]
fn panic_is_recorded_even_if_caught() {
    let (ran, panics) = with_panics(|| catch_unwind(|| panic!("caught")).is_err());
    assert!(ran == Some(true) && panics.len() == 1 && panics[0].contains("caught"), "{panics:?}");
    let (ran, panics) = with_panics(|| panic!("not caught"));
    let ran: Option<()> = ran;
    assert!(ran.is_none() && panics.len() == 1, "{panics:?}");
    assert_eq!(with_panics(|| 1), (Some(1), Vec::new()));
}
