//! What a store's plain client reaches, for `cargo xtask bench store` to compare a volume with.
//!
//! It uses the store as the server does (the same crate, the same policies), and nothing else: no log,
//! no index, no order. `upload` compresses what it generates and PUTs it in large objects; `replay`
//! repeats the ranged GETs that a server made.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Parser, Subcommand};
use store::{SharedStore, Store};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Bytes that compress to a half: of each block this much is random, and the rest zero.
const BLOCK_BYTES: usize = 4096;
const ZSTD_LEVEL: i32 = 1;

#[derive(Parser)]
struct Arguments {
    /// The store.
    url: String,
    #[command(subcommand)]
    what: PlainCommand,
}

#[derive(Subcommand)]
enum PlainCommand {
    /// Compresses and PUTs objects for a time; prints seconds, bytes before and after
    /// compression, and processor seconds.
    Upload {
        #[arg(long)]
        seconds: f64,
        #[arg(long)]
        concurrency: usize,
        #[arg(long, default_value_t = 32)]
        object_mib: usize,
    },
    /// GETs `KEY OFFSET LENGTH`, one a line of the file; prints seconds, requests
    /// and bytes, and processor seconds.
    Replay {
        file: std::path::PathBuf,
        #[arg(long)]
        concurrency: usize,
    },
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let store = store::with_policies(store::open_url(&arguments.url)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match arguments.what {
            PlainCommand::Upload {
                seconds,
                concurrency,
                object_mib,
            } => upload(store, seconds, concurrency, object_mib << 20).await,
            PlainCommand::Replay { file, concurrency } => {
                replay(store, &std::fs::read_to_string(file)?, concurrency).await
            }
        }
    })?;
    println!("{}", cpu_seconds()?);
    Ok(())
}

/// Processor time of this process, user and system, in seconds.
fn cpu_seconds() -> Result<f64, Failure> {
    const TICKS: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let times = fields.split_whitespace().skip(11).take(2);
    Ok(times
        .filter_map(|field| field.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS)
}

/// Content like that of fio with `--buffer_compress_percentage=50`.
fn content(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut content = vec![0; bytes];
    for block in content.chunks_mut(BLOCK_BYTES) {
        let half = block.len() / 2;
        random.fill(&mut block[..half]);
    }
    content
}

async fn upload(
    store: SharedStore,
    seconds: f64,
    concurrency: usize,
    object_bytes: usize,
) -> Result<(), Failure> {
    // Generated once: what is measured compresses and sends.
    let content = Arc::new(content(object_bytes, 1));
    let (plain, packed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let started = Instant::now();
    let length = Duration::from_secs_f64(seconds);
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..concurrency {
        let (store, content) = (Arc::clone(&store), Arc::clone(&content));
        let (plain, packed) = (Arc::clone(&plain), Arc::clone(&packed));
        senders.spawn(async move {
            for n in 0.. {
                if started.elapsed() >= length {
                    break;
                }
                let content = Arc::clone(&content);
                let object =
                    tokio::task::spawn_blocking(move || zstd::bulk::compress(&content, ZSTD_LEVEL))
                        .await??;
                let bytes = object.len() as u64;
                let key = format!("plain/{sender}/{n}");
                store.put(&key, Bytes::from(object)).await?;
                plain.fetch_add(object_bytes as u64, Ordering::Relaxed);
                packed.fetch_add(bytes, Ordering::Relaxed);
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(ended) = senders.join_next().await {
        ended??;
    }
    println!(
        "{} {} {}",
        started.elapsed().as_secs_f64(),
        plain.load(Ordering::Relaxed),
        packed.load(Ordering::Relaxed)
    );
    Ok(())
}

async fn replay(store: SharedStore, list: &str, concurrency: usize) -> Result<(), Failure> {
    let mut ranges = VecDeque::new();
    for line in list.lines() {
        let mut words = line.split_whitespace();
        let (Some(key), Some(offset), Some(length)) = (words.next(), words.next(), words.next())
        else {
            return Err(format!("{line:?} is not KEY OFFSET LENGTH").into());
        };
        ranges.push_back((
            key.to_owned(),
            offset.parse::<u64>()?,
            length.parse::<u64>()?,
        ));
    }
    let requests = ranges.len();
    let bytes: u64 = ranges.iter().map(|(_, _, length)| length).sum();
    let ranges = Arc::new(Mutex::new(ranges));
    let started = Instant::now();
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..concurrency {
        let (store, ranges) = (Arc::clone(&store), Arc::clone(&ranges));
        readers.spawn(async move {
            loop {
                let next = ranges
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .pop_front();
                let Some((key, offset, length)) = next else {
                    return Ok::<_, Failure>(());
                };
                store.get_range(&key, offset, length).await?;
            }
        });
    }
    while let Some(ended) = readers.join_next().await {
        ended??;
    }
    println!("{} {requests} {bytes}", started.elapsed().as_secs_f64());
    Ok(())
}
