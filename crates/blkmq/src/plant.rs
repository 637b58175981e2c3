//! Planted bugs: each must make a named model fail, or that model proves nothing.
//!
//! Without `--cfg plant`, [`planted`] is the constant `false`, and nothing of a plant reaches a
//! program. With it, which bug is on is read from `BLKMQ_PLANT` once, so that one build of the
//! models serves all of them. The list, with the model each must fail, is in `models/plants.rs`.

/// Whether this bug is planted in this run.
#[cfg(plant)]
pub(crate) fn planted(name: &str) -> bool {
    static PLANT: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    PLANT
        .get_or_init(|| std::env::var("BLKMQ_PLANT").ok())
        .as_deref()
        == Some(name)
}

/// Whether this bug is planted in this run: never.
#[cfg(not(plant))]
#[inline(always)]
pub(crate) const fn planted(_name: &str) -> bool {
    false
}
