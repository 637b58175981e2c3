//! The counters and pins of segments: writers, readers and the reclaim job on threads of their own.

use std::sync::{Arc, Mutex as Contents};

use shuttle::thread;

use super::check;
use crate::lock::lock;
use crate::log::layout::{BLOCK_SECTORS, Layout};
use crate::log::ring::TailId;
use crate::log::segments::{Segments, Stream};
use crate::map::layers::LogAddr;
use crate::sync::Mutex;
use crate::units::{Epoch, Span, VolumeId};

const TAIL: TailId = TailId {
    volume: VolumeId([1; 16]),
    since: Epoch(1),
};
const BLOCK: Span = Span {
    start: 0,
    end: BLOCK_SECTORS,
};
const WRITERS: u32 = 2;
const WRITES: u32 = 4;
/// As many as leave the reclaim job something to do beside every write.
const PASSES: u32 = 10;

/// What a map names: where a write's bytes are, and which bytes.
#[derive(Clone, Copy)]
struct Mapped {
    addr: LogAddr,
    generation: u32,
    write: u32,
}

/// A log with a block in each segment, and a map with room for one extent.
struct Log {
    segments: Segments,
    map: Mutex<Option<Mapped>>,
    /// Which write's bytes stand in each sector. Never held across a step of the model.
    contents: Contents<Vec<(LogAddr, u32)>>,
}

impl Log {
    fn put(&self, addr: LogAddr, write: u32) {
        let mut contents = self.contents.lock().unwrap();
        contents.retain(|(at, _)| *at != addr);
        contents.push((addr, write));
    }

    fn assert_holds(&self, mapped: Mapped, who: &str) {
        let contents = self.contents.lock().unwrap();
        let found = contents.iter().find(|(at, _)| *at == mapped.addr);
        assert_eq!(
            found.map(|(_, write)| *write),
            Some(mapped.write),
            "{who}: other bytes"
        );
        drop(contents);
        let generation = self.segments.generation_of(mapped.addr.sector());
        assert_eq!(
            generation,
            Some(mapped.generation),
            "{who}: another generation"
        );
    }

    /// A write: space, bytes, and the extent that supersedes the one before.
    fn write(&self, write: u32) {
        let Some(lots) = self.segments.allocate(Stream::Writer, TAIL, BLOCK) else {
            return;
        };
        let mapped = Mapped {
            addr: lots[0].addr,
            generation: lots[0].generation,
            write,
        };
        self.put(mapped.addr, write);
        thread::yield_now();
        self.assert_holds(mapped, "a write");
        let mut map = lock(&self.map);
        if let Some(superseded) = map.replace(mapped) {
            self.segments.release_dirty(superseded.addr, BLOCK_SECTORS);
        }
        drop(map);
    }

    fn read(&self) {
        let map = lock(&self.map);
        let Some(mapped) = *map else { return };
        let pin = self.segments.pin(mapped.addr);
        drop(map);
        thread::yield_now();
        self.assert_holds(mapped, "a read");
        drop(pin);
    }

    /// What the reclaim job does, its frames and headers being durable at once.
    fn reclaim(&self) {
        for (segment, _) in self.segments.idle_segments(9) {
            self.segments.mark_dying(segment, 0);
        }
        self.segments.free_dying(0);
        for (segment, generation, _) in self.segments.start_preparing(9) {
            self.segments.mark_ready(segment, generation);
        }
    }
}

fn model() {
    let layout = Layout::new(640 << 10, 8 << 10).expect("valid");
    let log = Arc::new(Log {
        segments: Segments::new(layout),
        map: Mutex::new(None),
        contents: Contents::default(),
    });
    for (segment, generation, _) in log.segments.start_preparing(4) {
        log.segments.mark_ready(segment, generation);
    }
    let mut threads = Vec::new();
    for writer in 0..WRITERS {
        let log = Arc::clone(&log);
        threads.push(thread::spawn(move || {
            (0..WRITES).for_each(|n| log.write(writer * WRITES + n));
        }));
    }
    let reader = Arc::clone(&log);
    threads.push(thread::spawn(move || {
        (0..WRITES).for_each(|_| reader.read())
    }));
    (0..PASSES).for_each(|_| log.reclaim());
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
pub(super) fn a_segment_is_given_out_again_only_when_nobody_names_its_bytes() {
    check(2000, model);
}
