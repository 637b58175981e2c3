//! What a disk may hold: the judge of every byte that a client reads.
//!
//! Each sector has a stamp. A write that ended well leaves one possible stamp; one that failed,
//! or that still runs, leaves several. A read must find one of those that were possible at some
//! moment while it ran, the same for all bytes of a sector.

use std::collections::BTreeMap;

use crate::deliver::ClientRequest;
use crate::device::{ClientId, ClientOp};

const SECTOR: usize = 512;

/// Stamps of one sector.
#[derive(Clone, Debug)]
struct Possible {
    settled: Vec<u64>,
    /// Of requests that run.
    coming: Vec<(ClientId, u64)>,
}

#[derive(Debug)]
struct Running {
    request: ClientRequest,
    stamp: u64,
    /// Of a read: what its sectors could hold since it began.
    seen: Vec<Vec<u64>>,
}

/// Knows what a disk of so many sectors may hold. New disks hold zeroes.
#[derive(Debug)]
pub struct Oracle {
    sectors: Vec<Possible>,
    running: BTreeMap<ClientId, Running>,
    stamp_next: u64,
    ended: u64,
}

impl Oracle {
    /// A disk of zeroes.
    pub fn new(sectors: usize) -> Oracle {
        let zero = Possible {
            settled: vec![0],
            coming: Vec::new(),
        };
        Oracle {
            sectors: vec![zero; sectors],
            running: BTreeMap::new(),
            stamp_next: 1,
            ended: 0,
        }
    }

    /// Requests that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Whether a request may change sectors of this one while it runs.
    pub fn busy(&self, sector: u64, sectors: u64) -> bool {
        self.running.values().any(|other| {
            let begin = other.request.sector;
            let end = begin + (len_of(&other.request.op) / SECTOR) as u64;
            begin < sector + sectors && sector < end
        })
    }

    /// A write of whole sectors whose bytes this judge knows again.
    pub fn write(&mut self, sectors: usize) -> ClientOp {
        let stamp = self.stamp_next;
        let bytes = stamp.to_ne_bytes();
        ClientOp::Write(bytes.repeat(sectors * SECTOR / bytes.len()))
    }

    /// A request was submitted.
    pub fn began(&mut self, id: ClientId, request: ClientRequest) {
        let stamp = match request.op {
            ClientOp::Write(_) => self.stamp_next,
            _ => 0,
        };
        self.stamp_next += 1;
        let (begin, count) = (request.sector as usize, len_of(&request.op) / SECTOR);
        let range = begin..begin + count;
        let mut seen = Vec::new();
        if let ClientOp::Read(_) = request.op {
            seen = self.sectors[range].iter().map(Possible::all).collect();
        } else {
            for sector in &mut self.sectors[range] {
                sector.coming.push((id, stamp));
            }
            self.reads_see(begin, count, stamp);
        }
        let running = Running {
            request,
            stamp,
            seen,
        };
        assert!(self.running.insert(id, running).is_none(), "begun twice");
    }

    fn reads_see(&mut self, begin: usize, count: usize, stamp: u64) {
        for running in self.running.values_mut() {
            let first = running.request.sector as usize;
            for (at, seen) in running.seen.iter_mut().enumerate() {
                if (begin..begin + count).contains(&(first + at)) {
                    seen.push(stamp);
                }
            }
        }
    }

    /// A request ended; what is wrong about it.
    pub fn ended_with(
        &mut self,
        id: ClientId,
        answer: &Result<Vec<u8>, i32>,
    ) -> Result<(), String> {
        let Some(running) = self.running.remove(&id) else {
            return Err(format!("{id:?} ended twice, or never began"));
        };
        self.ended += 1;
        let request = &running.request;
        let (begin, count) = (request.sector as usize, len_of(&request.op) / SECTOR);
        if let ClientOp::Read(_) = request.op {
            let Ok(bytes) = answer else { return Ok(()) };
            return check(bytes, &running.seen, begin);
        }
        let certain = answer.is_ok();
        // A discard may leave what was there.
        let forgets = matches!(request.op, ClientOp::Discard(_));
        for sector in &mut self.sectors[begin..begin + count] {
            sector.coming.retain(|&(other, _)| other != id);
            if certain && !forgets {
                sector.settled.clear();
                // Writes that ran beside this one may have come before or after it.
                let beside = sector.coming.iter().map(|&(_, stamp)| stamp);
                sector.settled.extend(beside);
            }
            sector.settled.push(running.stamp);
        }
        Ok(())
    }
}

impl Possible {
    fn all(&self) -> Vec<u64> {
        let coming = self.coming.iter().map(|&(_, stamp)| stamp);
        self.settled.iter().copied().chain(coming).collect()
    }
}

fn len_of(op: &ClientOp) -> usize {
    match op {
        ClientOp::Read(len) | ClientOp::Discard(len) | ClientOp::Zeroes(len) => *len as usize,
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

    fn write(oracle: &mut Oracle, sector: u64) -> ClientRequest {
        ClientRequest {
            op: oracle.write(1),
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
        let mut oracle = Oracle::new(8);
        let request = write(&mut oracle, 3);
        oracle.began(ClientId(1), request.clone());
        oracle.ended_with(ClientId(1), &Ok(Vec::new())).unwrap();
        oracle.began(ClientId(2), read(3));
        assert!(oracle.ended_with(ClientId(2), &Ok(vec![0; 512])).is_err());
        oracle.began(ClientId(3), read(3));
        oracle
            .ended_with(ClientId(3), &Ok(bytes(&request)))
            .unwrap();
    }

    #[test]
    fn a_failed_write_may_have_come_or_not() {
        let mut oracle = Oracle::new(8);
        let request = write(&mut oracle, 0);
        oracle.began(ClientId(1), request.clone());
        oracle.ended_with(ClientId(1), &Err(-5)).unwrap();
        for (id, content) in [(2, vec![0; 512]), (3, bytes(&request))] {
            oracle.began(ClientId(id), read(0));
            oracle.ended_with(ClientId(id), &Ok(content)).unwrap();
        }
    }

    #[test]
    fn a_torn_sector_and_a_second_end_are_seen() {
        let mut oracle = Oracle::new(8);
        oracle.began(ClientId(1), read(0));
        let mut torn = vec![0; 512];
        torn[511] = 1;
        assert!(oracle.ended_with(ClientId(1), &Ok(torn)).is_err());
        assert!(oracle.ended_with(ClientId(1), &Ok(vec![0; 512])).is_err());
    }
}
