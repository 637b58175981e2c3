//! What the engine says in its log of I/O that failed.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::with_volume;

/// Keeps every line of the log.
#[derive(Clone, Default)]
struct LogLines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{field}={value:?} ").expect("a string takes it");
    }
}

impl Subscriber for LogLines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().expect("one thread").push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn reads_of_the_log_that_fail_for_an_upload_are_logged_with_their_place_once_a_second() {
    let (mut world, volume) = with_volume();
    for block in 0..16 {
        // Far from each other in the volume, so that each is read by itself when the run of all fails.
        world.write(&volume, block * 4096, block as u8 + 1, 4096);
    }
    world.flush(&volume);
    world.env.unreadable.push(0..u64::MAX);
    let lines = LogLines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let answer = world.host.sync(&volume);
        world.pass(3000);
        assert!(answer.try_take().is_none(), "nothing can be read");
    });
    let lines = lines.0.lock().unwrap();
    let failed = lines
        .iter()
        .filter(|line| line.contains("I/O of the engine failed"));
    let failed: Vec<_> = failed.collect();
    let first = failed.first().expect("the failure is logged");
    assert!(first.contains("read of "), "{first}");
    assert!(first.contains(" bytes at offset "), "{first}");
    assert!(
        first.contains("of the log: read: input/output error"),
        "{first}"
    );
    assert!(failed.len() <= 4, "{failed:?}");
    let last = failed.last().expect("as above");
    assert!(!last.contains("unlogged=0 "), "those between: {last}");
}
