//! Panics inside worlds: kept quiet, and turned into violations that name their place.

use crate::trace::Violation;

thread_local! {
    /// Where this thread panicked last.
    static PLACE: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Keeps panics quiet and notes where they happen: they are reported with their seed.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        PLACE.with_borrow_mut(|held| *held = place);
    }));
}

/// What a caught panic amounts to.
pub fn panic_violation(panic: &(dyn std::any::Any + Send)) -> Violation {
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic".into());
    let detail = PLACE.with_borrow(|place| format!("{text} at {place}"));
    Violation::new("no panic", detail)
}
