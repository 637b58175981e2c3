//! Options of the example servers.

use std::error::Error;
use std::str::FromStr;

use ublk::{Capability, ModeChoice, Want, Wants};

/// What `--help` says of the options that all example servers take.
const COMMON: &str = "\
Options of all example servers (SIZE is a number with an optional K, M or G):
  --id N                first device number [the kernel's choice]
  --queues N            queues of each device [1]
  --depth N             tags of each queue [128]
  --io-bytes SIZE       largest request [1M]
  --mode MODE           auto, zero-copy, user-copy, get-data or copy [auto]
  --slots N             buffer slots of a zero-copy queue [64]
  --pool SIZE           memory of its own for all get-data writes [that of the reactors]
  --reactors N          threads, each with one ring, for all devices together [1]
  --spread              share every queue among all reactors
  --completions N       completion queue of each ring [4096]
  --recovery HOW        none, plain, reissue or fail-io [none]
  --no-part-scan        leave partitions alone
  --recover             take the devices over where they are there; needs --id
  --leave               leave the devices to a successor at the end
  --help                this text

It prints the path of each disk and serves until standard input ends, or SIGTERM or SIGINT comes.
For every line of standard input, and at the end, it says what each queue has done.";

/// What all example servers take.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--id N`: number of the first device; the others follow.
    pub id: Option<u32>,
    /// `--queues N`.
    pub queues: u16,
    /// `--depth N`.
    pub depth: u16,
    /// `--io-bytes SIZE`: largest request.
    pub io_bytes: u32,
    /// `--mode auto|zero-copy|user-copy|get-data|copy`.
    pub mode: ModeChoice,
    /// `--slots N`: buffer slots of a zero-copy queue.
    pub slots: u16,
    /// `--pool SIZE`: memory for the writes of get-data queues, for all of them together.
    pub pool: Option<usize>,
    /// `--reactors N`: threads and rings, shared by all devices.
    pub reactors: usize,
    /// `--spread`: every queue is shared by all reactors.
    pub spread: bool,
    /// `--completions N`: of each ring.
    pub completions: u32,
    /// `--recovery none|plain|reissue|fail-io`, `--no-part-scan`.
    pub wants: Wants,
    /// `--recover`: takes the devices over where they are there. Needs `--id`.
    pub recover: bool,
    /// `--leave`: leaves the devices to a successor at the end, instead of deleting them.
    pub leave: bool,
    /// `--quiesce-by-ring`: when it leaves, the driver quiesces devices as their rings close, one
    /// after the other, and not side by side before that. To compare.
    pub quiesce_by_ring: bool,
}

/// An example's arguments: the common options, its own flags and what is no flag.
#[derive(Debug)]
pub struct Arguments {
    /// Common.
    pub options: Options,
    own: Vec<(String, String)>,
    /// The rest, in order.
    pub rest: Vec<String>,
}

fn wants(recovery: &str) -> Result<Wants, Box<dyn Error>> {
    let nothing = Wants::NOTHING
        .with(Capability::Resize, Want::Prefer)
        .with(Capability::SafeStop, Want::Prefer)
        .with(Capability::PerIoTask, Want::Prefer);
    let plain = nothing
        .with(Capability::Recovery, Want::Require)
        .with(Capability::Quiesce, Want::Prefer);
    match recovery {
        "none" => Ok(nothing),
        "plain" => Ok(plain),
        "reissue" => Ok(plain.with(Capability::Reissue, Want::Require)),
        "fail-io" => Ok(plain.with(Capability::FailIo, Want::Require)),
        other => Err(format!("--recovery {other}: use none, plain, reissue or fail-io").into()),
    }
}

/// A number with an optional K, M or G (binary).
pub fn size(text: &str) -> Result<u64, Box<dyn Error>> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size"))?;
    Ok(number << shift)
}

impl Options {
    fn defaults() -> Result<Options, Box<dyn Error>> {
        Ok(Options {
            id: None,
            queues: 1,
            depth: 128,
            io_bytes: 1 << 20,
            mode: ModeChoice::Auto,
            slots: 64,
            pool: None,
            reactors: 1,
            spread: false,
            completions: 4096,
            wants: wants("none")?,
            recover: false,
            leave: false,
            quiesce_by_ring: false,
        })
    }
}

impl Arguments {
    /// Reads the process's arguments. `own` are the example's flags that take a value, `switches`
    /// those that take none; `usage` is what `--help` says of the example, and ends the process.
    pub fn parse(
        usage: &str,
        own: &[&str],
        switches: &[&str],
    ) -> Result<Arguments, Box<dyn Error>> {
        let mut arguments = Arguments {
            options: Options::defaults()?,
            own: Vec::new(),
            rest: Vec::new(),
        };
        let mut args = std::env::args().skip(1);
        let mut part_scan = true;
        while let Some(arg) = args.next() {
            let options = &mut arguments.options;
            let mut value = || args.next().ok_or_else(|| format!("{arg} takes a value"));
            match arg.as_str() {
                "--help" | "-h" => {
                    println!("{usage}\n\n{COMMON}");
                    std::process::exit(0);
                }
                "--id" => options.id = Some(number(&arg, &value()?)?),
                "--queues" => options.queues = number(&arg, &value()?)?,
                "--depth" => options.depth = number(&arg, &value()?)?,
                "--io-bytes" => options.io_bytes = u32::try_from(size(&value()?)?)?,
                "--mode" => options.mode = value()?.parse()?,
                "--slots" => options.slots = number(&arg, &value()?)?,
                "--pool" => options.pool = Some(usize::try_from(size(&value()?)?)?),
                "--reactors" => options.reactors = number::<usize>(&arg, &value()?)?.max(1),
                "--spread" => options.spread = true,
                "--completions" => options.completions = number(&arg, &value()?)?,
                "--recovery" => options.wants = wants(&value()?)?,
                "--no-part-scan" => part_scan = false,
                "--recover" => options.recover = true,
                "--leave" => options.leave = true,
                "--quiesce-by-ring" => options.quiesce_by_ring = true,
                name if switches.contains(&name) => {
                    arguments.own.push((arg.clone(), String::new()))
                }
                name if own.contains(&name) => {
                    let value = value()?;
                    arguments.own.push((arg.clone(), value));
                }
                name if name.starts_with("--") => {
                    return Err(format!("no option {arg}; see --help").into());
                }
                _ => arguments.rest.push(arg),
            }
        }
        let options = &mut arguments.options;
        if options.recover && options.id.is_none() {
            return Err("--recover needs --id".into());
        }
        if options
            .pool
            .is_some_and(|bytes| bytes < options.io_bytes as usize)
        {
            return Err("--pool must have room for one request of --io-bytes".into());
        }
        if !part_scan {
            options.wants = options.wants.with(Capability::NoPartScan, Want::Require);
        }
        Ok(arguments)
    }

    /// Whether one of the example's switches is there.
    pub fn has(&self, name: &str) -> bool {
        self.own.iter().any(|(own, _)| own == name)
    }

    /// One of the example's own values.
    pub fn text(&self, name: &str) -> Option<&str> {
        let found = self.own.iter().rev().find(|(own, _)| own == name)?;
        Some(&found.1)
    }

    /// One of the example's own numbers, or zero.
    pub fn number(&self, name: &str) -> Result<u64, Box<dyn Error>> {
        self.text(name).map_or(Ok(0), size)
    }
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, Box<dyn Error>> {
    let value = text
        .parse()
        .map_err(|_| format!("{name} {text}: no number that fits"))?;
    Ok(value)
}
