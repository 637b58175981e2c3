//! What each sector of a disk may hold: checks every byte that a client reads.
//!
//! Each sector has a stamp. A write that succeeded leaves one possible stamp; one that failed or is
//! in flight leaves several. A read must find one that was possible at some moment while it was in
//! flight, the same for all bytes of a sector.

use std::collections::BTreeMap;

use crate::deliver::ClientRequest;
use crate::device::{ClientId, ClientOp};

const SECTOR: usize = 512;

/// The stamps that one sector may hold.
#[derive(Clone, Debug)]
struct Candidates {
    settled: Vec<u64>,
    /// Of requests in flight.
    in_flight: Vec<(ClientId, u64)>,
}

#[derive(Debug)]
struct InFlight {
    request: ClientRequest,
    stamp: u64,
    /// Of a read: what its sectors could hold since it began.
    seen: Vec<Vec<u64>>,
}

/// The stamps that every sector of a disk may hold. New disks hold zeroes.
#[derive(Debug)]
pub struct ClientOracle {
    sectors: Vec<Candidates>,
    requests: BTreeMap<ClientId, InFlight>,
    stamp_next: u64,
    completed: u64,
}

impl ClientOracle {
    /// A disk of zeroes.
    pub fn new(sectors: usize) -> ClientOracle {
        let zero = Candidates {
            settled: vec![0],
            in_flight: Vec::new(),
        };
        ClientOracle {
            sectors: vec![zero; sectors],
            requests: BTreeMap::new(),
            stamp_next: 1,
            completed: 0,
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Requests that completed.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Whether a request in flight overlaps these sectors.
    pub fn overlaps(&self, sector: u64, sectors: u64) -> bool {
        self.requests.values().any(|other| {
            let begin = other.request.sector;
            let end = begin + (len_of(&other.request.op) / SECTOR) as u64;
            begin < sector + sectors && sector < end
        })
    }

    /// A write of whole sectors, filled with a stamp of its own.
    pub fn stamped_write(&mut self, sectors: usize) -> ClientOp {
        let stamp = self.stamp_next;
        let bytes = stamp.to_ne_bytes();
        ClientOp::Write(bytes.repeat(sectors * SECTOR / bytes.len()))
    }

    /// A request was submitted.
    pub fn on_submit(&mut self, id: ClientId, request: ClientRequest) {
        let stamp = match request.op {
            ClientOp::Write(_) => self.stamp_next,
            _ => 0,
        };
        self.stamp_next += 1;
        let (begin, count) = (request.sector as usize, len_of(&request.op) / SECTOR);
        let range = begin..begin + count;
        let mut seen = Vec::new();
        if let ClientOp::Read(_) = request.op {
            seen = self.sectors[range].iter().map(Candidates::all).collect();
        } else {
            for sector in &mut self.sectors[range] {
                sector.in_flight.push((id, stamp));
            }
            self.add_to_reads(begin, count, stamp);
        }
        let entry = InFlight {
            request,
            stamp,
            seen,
        };
        assert!(self.requests.insert(id, entry).is_none(), "submitted twice");
    }

    fn add_to_reads(&mut self, begin: usize, count: usize, stamp: u64) {
        for running in self.requests.values_mut() {
            let first = running.request.sector as usize;
            for (at, seen) in running.seen.iter_mut().enumerate() {
                if (begin..begin + count).contains(&(first + at)) {
                    seen.push(stamp);
                }
            }
        }
    }

    /// A request completed; the error says what is wrong with its answer.
    pub fn on_complete(
        &mut self,
        id: ClientId,
        answer: &Result<Vec<u8>, i32>,
    ) -> Result<(), String> {
        let Some(running) = self.requests.remove(&id) else {
            return Err(format!("{id:?} completed twice, or was never submitted"));
        };
        self.completed += 1;
        let request = &running.request;
        let (begin, count) = (request.sector as usize, len_of(&request.op) / SECTOR);
        if let ClientOp::Read(_) = request.op {
            let Ok(bytes) = answer else { return Ok(()) };
            return check(bytes, &running.seen, begin);
        }
        let succeeded = answer.is_ok();
        // A discard may leave what was there.
        let is_discard = matches!(request.op, ClientOp::Discard(_));
        for sector in &mut self.sectors[begin..begin + count] {
            sector.in_flight.retain(|&(other, _)| other != id);
            if succeeded && !is_discard {
                sector.settled.clear();
                // Writes in flight beside this one may take effect before or after it.
                let concurrent = sector.in_flight.iter().map(|&(_, stamp)| stamp);
                sector.settled.extend(concurrent);
            }
            sector.settled.push(running.stamp);
        }
        Ok(())
    }
}

impl Candidates {
    fn all(&self) -> Vec<u64> {
        let in_flight = self.in_flight.iter().map(|&(_, stamp)| stamp);
        self.settled.iter().copied().chain(in_flight).collect()
    }
}

fn len_of(op: &ClientOp) -> usize {
    match op {
        ClientOp::Read(len) | ClientOp::Discard(len) | ClientOp::WriteZeroes(len) => *len as usize,
        ClientOp::Write(bytes) => bytes.len(),
        ClientOp::Flush => 0,
    }
}

fn check(bytes: &[u8], seen: &[Vec<u64>], first: usize) -> Result<(), String> {
    if bytes.len() != seen.len() * SECTOR {
        return Err(format!(
            "a read of {} sectors brought {}",
            seen.len(),
            bytes.len()
        ));
    }
    for (at, (sector, allowed)) in bytes.chunks(SECTOR).zip(seen).enumerate() {
        let mut words = sector.chunks(8).map(|word| {
            u64::from_ne_bytes(word.try_into().expect("a sector is made of whole words"))
        });
        let stamp = words.next().unwrap_or(0);
        if words.any(|other| other != stamp) {
            return Err(format!("sector {} is torn", first + at));
        }
        if !allowed.contains(&stamp) {
            let sector = first + at;
            return Err(format!(
                "sector {sector} holds {stamp}, not one of {allowed:?}"
            ));
        }
    }
    Ok(())
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
            op: oracle.stamped_write(1),
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
        oracle.on_submit(ClientId(1), request.clone());
        oracle.on_complete(ClientId(1), &Ok(Vec::new())).unwrap();
        oracle.on_submit(ClientId(2), read(3));
        assert!(oracle.on_complete(ClientId(2), &Ok(vec![0; 512])).is_err());
        oracle.on_submit(ClientId(3), read(3));
        oracle
            .on_complete(ClientId(3), &Ok(bytes(&request)))
            .unwrap();
    }

    #[test]
    fn a_failed_write_may_have_come_or_not() {
        let mut oracle = ClientOracle::new(8);
        let request = write(&mut oracle, 0);
        oracle.on_submit(ClientId(1), request.clone());
        oracle.on_complete(ClientId(1), &Err(-5)).unwrap();
        for (id, content) in [(2, vec![0; 512]), (3, bytes(&request))] {
            oracle.on_submit(ClientId(id), read(0));
            oracle.on_complete(ClientId(id), &Ok(content)).unwrap();
        }
    }

    #[test]
    fn a_torn_sector_and_a_second_end_are_seen() {
        let mut oracle = ClientOracle::new(8);
        oracle.on_submit(ClientId(1), read(0));
        let mut torn = vec![0; 512];
        torn[511] = 1;
        assert!(oracle.on_complete(ClientId(1), &Ok(torn)).is_err());
        assert!(oracle.on_complete(ClientId(1), &Ok(vec![0; 512])).is_err());
    }
}
