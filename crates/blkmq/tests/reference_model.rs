//! The queues against a sequential reference model that shares no code with them.
//!
//! One interpreter, [`world::World`], does what a random number says: admit, submit, complete,
//! drop, park, wake (in time, too early, too late), run, quiesce, cancel, re-arm, let time pass,
//! add and remove queues and devices. After every step it compares what happened with the model:
//! no request lost, doubled, out of order, or run while the gate was shut. The property test
//! shrinks what it finds; the long run goes where short ones do not.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests drive the core with threads and clocks"
)]
#![cfg(not(any(feature = "loom", feature = "shuttle")))]
#![allow(clippy::unwrap_used, reason = "these are tests")]

#[path = "reference/doubles.rs"]
mod doubles;
#[path = "reference/queue_model.rs"]
mod queue_model;
#[path = "reference/world.rs"]
mod world;

use proptest::prelude::*;
use world::World;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_sequence_of_steps_agrees_with_the_model(
        choices in prop::collection::vec(any::<u64>(), 1..500),
    ) {
        let mut world = World::new();
        for choice in choices {
            world.step(choice);
        }
        world.finish();
    }
}

/// A million steps, or `BLKMQ_STEPS` (`cargo xtask models` takes ten million), from the seed
/// `BLKMQ_SEED`.
#[test]
fn no_request_is_lost_doubled_or_run_while_quiesced() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (steps, seed) = (number("BLKMQ_STEPS", 1_000_000), number("BLKMQ_SEED", 1));
    let mut world = World::new();
    let mut random = doubles::Random(seed);
    println!("BLKMQ_SEED={seed} BLKMQ_STEPS={steps}");
    for _ in 0..steps {
        world.step(random.next());
    }
    let events = world.finish();
    println!("{events:?}");
    // A kind of event that never happened was not tested.
    assert!(
        events.missing().is_empty(),
        "never happened: {:?}",
        events.missing()
    );
}
