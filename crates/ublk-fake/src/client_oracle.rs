//! Checks every answer that a client gets, and every byte that it reads.
//!
//! What sectors may hold is for [`SectorOracle`] to say; this file knows which request of a client is
//! which of its generations, and that each completes once.

use std::collections::BTreeMap;
use std::ops::Range;

use oracle::stamp::SECTOR_BYTES;
use oracle::{ReadStart, SectorOracle};

use crate::deliver::ClientRequest;
use crate::device::{ClientId, ClientOp};

/// What the oracle calls a request in flight.
#[derive(Debug)]
enum InFlight {
    Read(ReadStart),
    Change {
        generation: u32,
        /// A discard may leave what was there.
        is_discard: bool,
    },
    Flush,
}

/// The requests of all clients of one disk. New disks hold zeroes.
#[derive(Debug)]
pub struct ClientOracle {
    sectors: SectorOracle,
    requests: BTreeMap<ClientId, (Range<u64>, InFlight)>,
    /// The generation of the write that was filled last.
    filled: u32,
}

impl ClientOracle {
    /// A disk of so many sectors.
    pub fn new(sectors: u64) -> ClientOracle {
        ClientOracle {
            sectors: SectorOracle::new(0, sectors),
            requests: BTreeMap::new(),
            filled: 0,
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Whether a request in flight overlaps these sectors.
    pub fn overlaps(&self, sectors: &Range<u64>) -> bool {
        let mut others = self.requests.values().map(|(other, _)| other);
        others.any(|other| other.start < sectors.end && sectors.start < other.end)
    }

    /// A write of these sectors, which is to be submitted next.
    pub fn begin_write(&mut self, sectors: Range<u64>) -> ClientOp {
        let (generation, bytes) = self.sectors.begin_filled(sectors);
        self.filled = generation;
        ClientOp::Write(bytes)
    }

    /// A request was submitted.
    pub fn on_submit(&mut self, id: ClientId, request: &ClientRequest) {
        let count = (len_of(&request.op) / SECTOR_BYTES) as u64;
        let sectors = request.sector..request.sector + count;
        let mut zeroing = || self.sectors.begin_zeroing(sectors.clone());
        let in_flight = match request.op {
            ClientOp::Flush => InFlight::Flush,
            ClientOp::Write(_) => InFlight::Change {
                generation: self.filled,
                is_discard: false,
            },
            ClientOp::WriteZeroes(_) => InFlight::Change {
                generation: zeroing(),
                is_discard: false,
            },
            ClientOp::Discard(_) => InFlight::Change {
                generation: zeroing(),
                is_discard: true,
            },
            ClientOp::Read(_) => InFlight::Read(self.sectors.begin_read(sectors.clone())),
        };
        let former = self.requests.insert(id, (sectors, in_flight));
        assert!(former.is_none(), "submitted twice");
    }

    /// A request completed; the error says what is wrong with its answer.
    pub fn on_complete(
        &mut self,
        id: ClientId,
        answer: &Result<Vec<u8>, i32>,
    ) -> Result<(), String> {
        let Some((_, in_flight)) = self.requests.remove(&id) else {
            return Err(format!("{id:?} completed twice, or was never submitted"));
        };
        match (in_flight, answer) {
            (InFlight::Read(read), Ok(bytes)) => return self.sectors.check_bytes(&read, bytes),
            (InFlight::Read(_), Err(_)) | (InFlight::Flush, _) => {}
            (
                InFlight::Change {
                    generation,
                    is_discard: false,
                },
                Ok(_),
            ) => {
                self.sectors.acknowledge(generation);
            }
            (InFlight::Change { generation, .. }, _) => self.sectors.fail(generation),
        }
        Ok(())
    }
}

fn len_of(op: &ClientOp) -> usize {
    match op {
        ClientOp::Read(len) | ClientOp::Discard(len) | ClientOp::WriteZeroes(len) => *len as usize,
        ClientOp::Write(bytes) => bytes.len(),
        ClientOp::Flush => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(sector: u64) -> ClientRequest {
        ClientRequest {
            op: ClientOp::Read(512),
            sector,
            fua: false,
        }
    }

    fn write(oracle: &mut ClientOracle, sector: u64) -> ClientRequest {
        ClientRequest {
            op: oracle.begin_write(sector..sector + 1),
            sector,
            fua: false,
        }
    }

    fn bytes(request: &ClientRequest) -> Vec<u8> {
        let ClientOp::Write(bytes) = &request.op else {
            panic!("no write")
        };
        bytes.clone()
    }

    #[test]
    fn a_lost_write_is_seen() {
        let mut oracle = ClientOracle::new(8);
        let request = write(&mut oracle, 3);
        oracle.on_submit(ClientId(1), &request);
        oracle.on_complete(ClientId(1), &Ok(Vec::new())).unwrap();
        oracle.on_submit(ClientId(2), &read(3));
        assert!(oracle.on_complete(ClientId(2), &Ok(vec![0; 512])).is_err());
        oracle.on_submit(ClientId(3), &read(3));
        oracle
            .on_complete(ClientId(3), &Ok(bytes(&request)))
            .unwrap();
    }

    #[test]
    fn a_failed_write_may_have_come_or_not() {
        for happened in [false, true] {
            let mut oracle = ClientOracle::new(8);
            let request = write(&mut oracle, 0);
            oracle.on_submit(ClientId(1), &request);
            oracle.on_complete(ClientId(1), &Err(-5)).unwrap();
            let content = if happened {
                bytes(&request)
            } else {
                vec![0; 512]
            };
            oracle.on_submit(ClientId(2), &read(0));
            oracle.on_complete(ClientId(2), &Ok(content)).unwrap();
        }
    }

    #[test]
    fn a_torn_sector_and_a_second_end_are_seen() {
        let mut oracle = ClientOracle::new(8);
        oracle.on_submit(ClientId(1), &read(0));
        let mut torn = vec![0; 512];
        torn[511] = 1;
        assert!(oracle.on_complete(ClientId(1), &Ok(torn)).is_err());
        assert!(oracle.on_complete(ClientId(1), &Ok(vec![0; 512])).is_err());
    }
}
