//! What the cache keeps, what it lets go, and how much work that may be.

mod resize;

use super::*;
use crate::log::layout::BLOCK_BYTES;

fn key(n: u32) -> ChunkKey {
    ChunkKey {
        pack: ObjectId::default(),
        offset: n,
    }
}

/// A cache whose disk file has chunks alone.
fn of_chunks(memory_bytes: u64, disk_bytes: u64) -> Cache {
    let blocks = disk_bytes / BLOCK_BYTES;
    let length = region_blocks(blocks, blocks);
    let mut cache = Cache::with_parts(memory_bytes, disk_bytes, length, [Part::Whole; 2]);
    cache.tiers.get_mut().expect("nobody has it")[INDEX].set_regions(0);
    cache
}

fn put(cache: &Cache, n: u32, bytes: u64, now: u64) {
    let allocation = cache
        .allocate_in_memory(key(n), bytes, now)
        .expect("memory is elastic");
    cache.fill(allocation, now);
}

#[test]
fn a_checksum_takes_no_memory_that_an_entry_did_not_have() {
    assert_eq!(size_of::<queues::CachedChunk>(), 96);
}

fn provable(cache: &Cache) -> Vec<scrub::ProvableChunk> {
    let mut cursor = scrub::CacheCursor::START;
    let mut found = Vec::new();
    loop {
        match cache.next_provable(&mut cursor) {
            scrub::NextProvable::Chunk(chunk) => found.push(chunk),
            scrub::NextProvable::Continue => {}
            scrub::NextProvable::End => return found,
        }
    }
}

#[test]
fn a_chunk_that_is_given_up_is_not_found_and_keeps_its_slot_as_long_as_a_plan_reads_there() {
    let cache = Cache::new(0, 2 << 20);
    let content = [7; BLOCK_BYTES as usize];
    let write = |n, is_index: bool| {
        let allocation = match is_index {
            true => cache.allocate_block(key(n), BLOCK_BYTES, 0),
            false => cache.allocate_on_disk(key(n), BLOCK_BYTES, 0),
        };
        let mut allocation = allocation.expect("room");
        allocation.set_checksum(&content);
        cache.fill(allocation, 0);
    };
    (0..600).for_each(|n| write(n, n % 10 == 9));
    // What nobody has a checksum of is left out.
    let plain = cache.allocate_on_disk(key(700), BLOCK_BYTES, 0);
    cache.fill(plain.expect("room"), 0);
    let all = provable(&cache);
    assert!(all.len() > 400, "{}", all.len());
    assert!(all.iter().any(scrub::ProvableChunk::is_index));
    assert!(all.iter().all(|one| one.checksum == Checksum::of(&content)));
    drop(all);
    let first = provable(&cache).swap_remove(0);
    let first_key = first.key;
    let reader = cache.find(first_key).expect("it is there");
    assert!(cache.give_up_chunk(first));
    assert!(cache.find(first_key).is_none());
    assert!(cache.allocate_on_disk(first_key, BLOCK_BYTES, 0).is_none());
    cache.invariants().expect("whole");
    drop(reader);
    let second = provable(&cache).swap_remove(0);
    let second_key = second.key;
    assert_ne!(second_key, first_key);
    let used = cache.usage().disk_bytes;
    assert!(cache.give_up_chunk(second));
    assert_eq!(cache.usage().disk_bytes, used - BLOCK_BYTES);
    write(second_key.offset, false);
    assert!(cache.find(second_key).is_some());
    cache.invariants().expect("whole");
}

#[test]
fn the_cache_keeps_to_its_size_once_chunks_were_used() {
    let cache = of_chunks(4 * BLOCK_BYTES, 0);
    for n in 0..100 {
        put(&cache, n, BLOCK_BYTES, 0);
        assert!(cache.find(key(n)).is_some());
        cache.mark_planned(&[key(n)]);
    }
    assert!(cache.usage().memory_bytes <= 4 * BLOCK_BYTES);
}

#[test]
fn what_a_waiting_read_needs_is_kept_until_it_was_used_or_is_old() {
    let cache = of_chunks(2 * BLOCK_BYTES, 0);
    (0..8).for_each(|n| put(&cache, n, BLOCK_BYTES, 0));
    assert!(
        (0..8).all(|n| cache.find(key(n)).is_some()),
        "all were fresh"
    );
    (0..8).for_each(|n| cache.mark_planned(&[key(n)]));
    (8..16).for_each(|n| put(&cache, n, BLOCK_BYTES, 1));
    let old = FRESH_NS + 2;
    (16..32).for_each(|n| put(&cache, n, BLOCK_BYTES, old));
    assert!(
        (8..16).all(|n| cache.find(key(n)).is_none()),
        "nobody came for them"
    );
}

#[test]
fn a_pinned_chunk_is_not_evicted() {
    let cache = of_chunks(BLOCK_BYTES, 0);
    put(&cache, 0, BLOCK_BYTES, 0);
    let hit = cache.find(key(0)).expect("there");
    for n in 1..20 {
        put(&cache, n, BLOCK_BYTES, 0);
        cache.mark_planned(&[key(n)]);
    }
    assert_eq!(
        cache.find(key(0)).map(|again| again.offset),
        Some(hit.offset)
    );
}

#[test]
fn a_second_copy_of_a_chunk_does_not_take_the_place_of_a_pinned_one() {
    let cache = of_chunks(0, 3 * BLOCK_BYTES);
    let first = cache
        .allocate_on_disk(key(0), BLOCK_BYTES, 0)
        .expect("room");
    let second = cache
        .allocate_on_disk(key(0), BLOCK_BYTES, 0)
        .expect("room");
    cache.fill(first, 0);
    let hit = cache.find(key(0)).expect("there");
    cache.fill(second, 0);
    let other = cache
        .allocate_on_disk(key(1), BLOCK_BYTES, 0)
        .expect("room");
    assert_ne!(other.offset, hit.offset, "the pinned bytes stay");
    assert_eq!(cache.usage().disk_bytes, 2 * BLOCK_BYTES);
}

#[test]
fn the_disk_tier_never_exceeds_its_size() {
    let cache = of_chunks(0, 3 * BLOCK_BYTES);
    for n in 0..50 {
        if let Some(allocation) = cache.allocate_on_disk(key(n), BLOCK_BYTES + 1, 0) {
            assert!(allocation.offset + 2 * BLOCK_BYTES <= 3 * BLOCK_BYTES);
            cache.fill(allocation, 0);
        }
    }
    assert_eq!(cache.usage().disk_bytes, 2 * BLOCK_BYTES);
    assert!(
        cache
            .allocate_on_disk(key(99), 4 * BLOCK_BYTES, 0)
            .is_none()
    );
}

fn put_on_disk(cache: &Cache, n: u32, blocks: u64) -> bool {
    let allocation = cache.allocate_on_disk(key(n), blocks * BLOCK_BYTES, 0);
    let is_granted = allocation.is_some();
    allocation
        .into_iter()
        .for_each(|allocation| cache.fill(allocation, 0));
    is_granted
}

fn evicted(cache: &Cache) -> u64 {
    lock(&cache.tiers)[DISK].evicted
}

fn chunks_on_disk(cache: &Cache) -> usize {
    lock(&cache.tiers)[DISK].numbers.len()
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "it also prints how long the lock was held"
)]
fn one_insertion_evicts_at_most_a_region_whatever_the_cache_is_full_of() {
    // 1 GiB full of chunks of one block, used at random; then chunks of other lengths come in.
    let cache = of_chunks(0, 1 << 30);
    let mut random = fastrand::Rng::with_seed(1);
    for n in 0..600_000 {
        assert!(put_on_disk(&cache, n, 1));
        cache.find(key(random.u32(0..=n)));
    }
    let mut times = Vec::new();
    let lengths = [16, 1, 12, 3, 16, 7, 1];
    for (round, blocks) in lengths.into_iter().cycle().take(2_000).enumerate() {
        let before = evicted(&cache);
        let started = std::time::Instant::now();
        assert!(put_on_disk(&cache, 1_000_000 + round as u32, blocks));
        times.push(started.elapsed());
        let gone = evicted(&cache) - before;
        assert!(
            gone <= 128,
            "round {round}: {gone} for one of {blocks} blocks"
        );
    }
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 1000];
    println!(
        "an insertion, two steps under the lock: median {:?}, 99 of 100 {:?}, longest {:?}",
        at(500),
        at(990),
        at(1000)
    );
    let used = cache.usage().disk_bytes;
    assert!(used * 10 >= (1 << 30) * 9, "it stays full: {used} bytes");
    cache.invariants().unwrap();
}

/// A disk that is full after so many places were written.
#[derive(Default)]
struct FullDisk {
    places: std::collections::BTreeSet<u64>,
    refused: usize,
}

impl FullDisk {
    const PLACES_MAX: usize = 256;

    fn write(&mut self, cache: &Cache, n: u32, now: u64) {
        let allocation = cache.allocate_on_disk(key(n), BLOCK_BYTES, now);
        let Some(allocation) = allocation else { return };
        let offset = allocation.offset;
        if self.places.contains(&offset) || self.places.len() < FullDisk::PLACES_MAX {
            self.places.insert(offset);
            cache.fill(allocation, 0);
        } else {
            self.refused += 1;
            cache.on_write_failed(allocation, true, now);
        }
    }
}

#[test]
fn a_cache_on_a_full_disk_goes_on_with_the_space_that_it_has_and_asks_for_more_after_a_while() {
    let cache = of_chunks(0, 64 << 20);
    let mut disk = FullDisk::default();
    (0..20_000).for_each(|n| disk.write(&cache, n, 1));
    // The places of one region that were never written, each of them once.
    assert!(disk.refused <= 256, "{} writes were refused", disk.refused);
    let newest = 20_000 - FullDisk::PLACES_MAX as u32 / 4..20_000;
    let kept = newest.filter(|n| cache.contains(key(*n))).count();
    assert!(kept > 30, "only {kept} of what came last are there");
    cache.invariants().unwrap();
    // Somebody made room.
    disk = FullDisk::default();
    let later = 3_600_000_000_000;
    (20_000..20_200).for_each(|n| disk.write(&cache, n, later));
    let used = cache.usage().disk_bytes / BLOCK_BYTES;
    assert!(used > FullDisk::PLACES_MAX as u64 + 100, "{used} blocks");
    cache.invariants().unwrap();
}

/// A disk on which one block cannot be written.
#[test]
fn a_bad_place_of_the_cache_disk_is_left_out_and_all_others_are_used() {
    const BAD: u64 = 5 * BLOCK_BYTES;
    let cache = of_chunks(0, 4 << 20);
    let mut refused = 0;
    let mut put = |n, blocks: u64, now| {
        let bytes = blocks * BLOCK_BYTES;
        let Some(allocation) = cache.allocate_on_disk(key(n), bytes, now) else {
            return;
        };
        if (allocation.offset..allocation.offset + bytes).contains(&BAD) {
            refused += 1;
            cache.on_write_failed(allocation, false, now);
        } else {
            cache.fill(allocation, 0);
        }
    };
    // Longer than it is left alone, so that it is tried again and again.
    let seconds = |n: u32| u64::from(n) * 1_000_000_000;
    (0..2_000).for_each(|n| put(n, 1, seconds(n)));
    // Chunks of a size that nothing has yet get regions, whatever the disk refused a moment ago.
    (2_000..2_400).for_each(|n| put(n, 16, seconds(n)));
    let large = (2_000..2_400).filter(|n| cache.contains(key(*n))).count();
    assert!(large >= 40, "{large} of at most 64 large chunks are there");
    let used = cache.usage().disk_bytes;
    assert!(used * 10 >= (4 << 20) * 8, "it stays full: {used} bytes");
    assert!((1..=8).contains(&refused), "{refused} insertions were lost");
    cache.invariants().unwrap();
}

#[test]
fn each_planted_bug_is_seen() {
    let seen = |name, test: fn()| {
        let planted = move || canary::with(name, test);
        assert!(std::panic::catch_unwind(planted).is_err(), "{name}");
    };
    seen(
        "insertion_evicts_a_class",
        one_insertion_evicts_at_most_a_region_whatever_the_cache_is_full_of,
    );
    seen(
        "bad_place_is_a_full_disk",
        a_bad_place_of_the_cache_disk_is_left_out_and_all_others_are_used,
    );
    seen(
        "shrinking_cache_evicts_pinned_chunks",
        resize::a_file_of_changing_size_gives_readers_the_bytes_that_it_was_given,
    );
    seen(
        "shrinking_cache_is_cut_at_once",
        resize::a_file_of_changing_size_gives_readers_the_bytes_that_it_was_given,
    );
    seen(
        "refused_slot_is_given_again",
        a_cache_on_a_full_disk_goes_on_with_the_space_that_it_has_and_asks_for_more_after_a_while,
    );
}

#[test]
fn a_long_scan_leaves_what_is_used_again() {
    let cache = of_chunks(0, 1 << 20);
    // 64 chunks that are used again and again, beside as many as fit; then ten times the cache once.
    for round in 0..40 {
        (0..64).for_each(|n| {
            if cache.find(key(n)).is_none() {
                put_on_disk(&cache, n, 1);
            }
        });
        (0..32).for_each(|n| assert!(put_on_disk(&cache, 1_000 + round * 32 + n, 1)));
    }
    for n in 0..2_560 {
        assert!(put_on_disk(&cache, 100_000 + n, 1));
        // A reader in small steps uses each chunk several times while it is there.
        (0..4).for_each(|_| drop(cache.find(key(100_000 + n))));
    }
    let kept = (0..64).filter(|n| cache.contains(key(*n))).count();
    assert!(kept >= 60, "{kept} of 64 are still there");
    cache.invariants().unwrap();
}

#[test]
fn a_working_set_of_another_size_of_chunks_gets_the_cache_in_the_end() {
    let cache = of_chunks(0, 4 << 20);
    (0..2_000).for_each(|n| assert!(put_on_disk(&cache, n, 1)));
    for n in 0..400 {
        assert!(put_on_disk(&cache, 10_000 + n, 16));
    }
    let large = (0..400).filter(|n| cache.contains(key(10_000 + n))).count();
    assert!(
        large >= 40,
        "{large} of at most 64 chunks of 64 KiB are there"
    );
    cache.invariants().unwrap();
}

#[test]
fn a_chunk_longer_than_a_region_is_kept_in_memory_and_its_space_comes_back() {
    let cache = of_chunks(1 << 20, 1 << 20);
    assert!(cache.allocate_on_disk(key(0), 4 << 20, 0).is_none());
    for n in 0..4 {
        put(&cache, n, 4 << 20, 0);
        cache.invariants().unwrap();
        cache.mark_planned(&[key(n)]);
    }
    assert!(cache.usage().memory_bytes <= 4 << 20);
    assert_eq!(chunks_on_disk(&cache), 0);
}

#[test]
fn random_steps_keep_every_byte_counted_once() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let cache = of_chunks(
            random.u64(0..64) * BLOCK_BYTES,
            random.u64(0..300) * BLOCK_BYTES,
        );
        let (mut hits, mut allocations) = (Vec::new(), Vec::new());
        for now in 0..3_000 {
            let n = key(random.u32(0..200));
            let bytes = random.u64(1..20 * BLOCK_BYTES);
            match random.u8(0..10) {
                0..=2 => allocations.extend(cache.allocate_in_memory(n, bytes, now)),
                3..=4 => allocations.extend(cache.allocate_on_disk(n, bytes, now)),
                5..=6 if !allocations.is_empty() => {
                    let at = random.usize(0..allocations.len());
                    let allocation = allocations.swap_remove(at);
                    match random.u8(0..4) {
                        0 => cache.cancel(allocation),
                        _ => cache.fill(allocation, now),
                    }
                }
                7 => hits.extend(cache.find(n)),
                8 => cache.mark_planned(&[n]),
                _ if !hits.is_empty() => drop(hits.swap_remove(random.usize(0..hits.len()))),
                _ => drop(cache.mark_damaged_on_disk(&[n])),
            }
            if now % 16 == 0 {
                cache
                    .invariants()
                    .unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
            }
        }
    }
}

#[test]
fn index_blocks_have_a_part_of_the_disk_file_that_no_chunk_enters() {
    let cache = Cache::new(0, 8 << 20);
    let region_bytes = u64::from(cache.region_blocks) * BLOCK_BYTES;
    let is_index = |offset: u64| offset / region_bytes % INDEX_SHARE == 1;
    let mut blocks = Vec::new();
    for n in 0..100 {
        let block = cache
            .allocate_block(key(n), 2 * BLOCK_BYTES, 0)
            .expect("room");
        assert!(is_index(block.offset) && block.offset + 2 * BLOCK_BYTES <= 8 << 20);
        blocks.push(block.offset);
        cache.fill(block, 0);
    }
    for n in 1_000..10_000 {
        let chunk = cache
            .allocate_on_disk(key(n), BLOCK_BYTES, 0)
            .expect("room");
        assert!(!is_index(chunk.offset) && chunk.offset + BLOCK_BYTES <= 8 << 20);
        cache.fill(chunk, 0);
    }
    for n in 0..100 {
        let hit = cache.find_block(key(n)).expect("it stays");
        assert_eq!(hit.offset, blocks[n as usize]);
        assert!(cache.find(key(n)).is_none(), "it is no chunk");
    }
    cache.invariants().unwrap();
}
