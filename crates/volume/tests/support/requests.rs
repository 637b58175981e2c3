//! What a test asks of a host: volumes, and reads and writes of them, each carried to its end.

use blkmq::error::ErrorKind;
use blkmq::io::{Backend, Op, Place, Plan, Step};
use volume::driver::DiskOp;
use volume::{OpenError, OpenMode, Volume, VolumeSpec};

use super::{World, random_bytes, waker};

impl World {
    pub(crate) fn create(&mut self, name: &str, bytes: u64) {
        let spec = VolumeSpec {
            name: name.into(),
            bytes,
            block: 512,
        };
        let answer = self.host.create_volume(spec);
        self.wait(|_| answer.try_take()).expect("created");
    }

    pub(crate) fn open(&mut self, name: &str) -> Volume {
        self.try_open(name, false).expect("opened")
    }

    pub(crate) fn try_open(&mut self, name: &str, take_over: bool) -> Result<Volume, OpenError> {
        let answer = self.host.open_volume(
            name,
            OpenMode {
                take_over,
                ..OpenMode::default()
            },
        );
        self.wait(|_| answer.try_take())
    }

    pub(crate) fn grow(&mut self, volume: &Volume, bytes: u64) -> Result<(), OpenError> {
        let answer = self.host.grow_volume(volume, bytes);
        self.wait(|_| answer.try_take())
    }

    pub(crate) fn sync(&mut self, volume: &Volume) {
        let answer = self.host.sync(volume);
        self.wait(|_| answer.try_take()).expect("synced");
    }

    /// Runs one request to its end; `data` is what a write takes and a read gives.
    pub(crate) fn request(
        &mut self,
        volume: &Volume,
        op: Op,
        data: &mut [u8],
    ) -> Result<(), ErrorKind> {
        let waker = waker();
        let mut step = volume.begin(&op, &waker);
        loop {
            step = match step {
                Step::Done(result) => return result,
                Step::Read(plan) => {
                    for piece in plan.pieces() {
                        let part = &mut data[piece.at as usize..(piece.at + piece.len) as usize];
                        match piece.place {
                            Place::Hole => part.fill(0),
                            Place::At { file, offset } => {
                                let len = part.len();
                                let found = self.disk(DiskOp::Read { file, offset, len });
                                part.copy_from_slice(&found.expect("reads do not fail here"));
                            }
                        }
                    }
                    volume.read(plan, Ok(()), &waker)
                }
                Step::Write(plan) => {
                    for piece in plan.pieces() {
                        let part = &data[piece.at as usize..(piece.at + piece.len) as usize];
                        let Place::At { file, offset } = piece.place else {
                            panic!("a hole")
                        };
                        self.put(file, offset, part);
                    }
                    volume.written(plan, Ok(()), &waker)
                }
                Step::Park(_) => {
                    self.run_until_idle();
                    let mut next = volume.begin(&op, &waker);
                    if matches!(next, Step::Park(_)) {
                        self.pass(10);
                        next = volume.begin(&op, &waker);
                    }
                    if matches!(next, Step::Park(_)) && self.now_ns > 3_600_000_000_000 {
                        panic!("parked for an hour");
                    }
                    next
                }
                Step::Status(_) => panic!("asked for with `status`"),
                Step::Sync(wait) => {
                    self.run_until_idle();
                    volume.poll_sync(wait, &waker)
                }
            };
        }
    }

    pub(crate) fn write(&mut self, volume: &Volume, sector: u64, fill: u8, bytes: usize) {
        let op = Op::Write {
            sector,
            sectors: (bytes / 512) as u32,
            fua: false,
        };
        self.request(volume, op, &mut vec![fill; bytes])
            .expect("written");
    }

    /// Writes what does not compress.
    pub(crate) fn write_noise(&mut self, volume: &Volume, sector: u64, seed: u64, bytes: u64) {
        let op = Op::Write {
            sector,
            sectors: (bytes / 512) as u32,
            fua: false,
        };
        self.request(volume, op, &mut random_bytes(seed, bytes))
            .expect("written");
    }

    pub(crate) fn flush(&mut self, volume: &Volume) {
        self.request(volume, Op::Flush, &mut []).expect("flushed");
    }

    pub(crate) fn read(&mut self, volume: &Volume, sector: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0xee; bytes];
        let op = Op::Read {
            sector,
            sectors: (bytes / 512) as u32,
        };
        self.request(volume, op, &mut data).expect("read");
        data
    }

    /// The byte of which the whole range consists.
    pub(crate) fn read_fill(&mut self, volume: &Volume, sector: u64, bytes: usize) -> u8 {
        let data = self.read(volume, sector, bytes);
        assert!(
            data.iter().all(|byte| *byte == data[0]),
            "mixed content at {sector}"
        );
        data[0]
    }
}
