//! Keys of objects: what is accepted never leaves the directory of a directory store.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/store/src/key_rule.rs"]
mod key_rule;

fuzz_target!(|input: &str| {
    if key_rule::find_fault(input).is_some() {
        return;
    }
    assert!(!input.is_empty() && input.len() <= 1024 && input.is_ascii());
    let path = std::path::Path::new(input);
    let normal = |part| matches!(part, std::path::Component::Normal(_));
    assert!(path.is_relative() && path.components().all(normal));
    // The path says exactly what the key says: no two keys share a file.
    let again: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    assert_eq!(again.join("/"), input);
    assert!(
        path.iter()
            .all(|part| part.len() <= 255 && !part.to_string_lossy().starts_with('.'))
    );
});
