//! Replies, simple or in chunks, as a client takes them off the stream.

use std::io::{Read, Write};
use std::ops::Range;

use super::error::{command_name, error_text};
use super::{Allocation, Client, ClientError, SentRequest};
use crate::codec::wire;

/// Longest payload of a chunk that is not data.
const CHUNK_BYTES_MAX: u32 = 1 << 20;

/// The header of a reply, or of one of its chunks.
enum Header {
    Simple {
        error: u32,
    },
    Chunk {
        kind: u16,
        is_last: bool,
        length: u32,
    },
}

impl<S: Read + Write> Client<S> {
    fn header(&mut self, sent: SentRequest) -> Result<Header, ClientError> {
        let magic = u32::from_be_bytes(self.take_array()?);
        let (cookie, header) = match magic {
            wire::SIMPLE_REPLY_MAGIC => {
                let error = u32::from_be_bytes(self.take_array()?);
                let cookie = u64::from_be_bytes(self.take_array()?);
                (cookie, Header::Simple { error })
            }
            wire::STRUCTURED_REPLY_MAGIC if self.structured => {
                let flags = u16::from_be_bytes(self.take_array()?);
                let kind = u16::from_be_bytes(self.take_array()?);
                let cookie = u64::from_be_bytes(self.take_array()?);
                let length = u32::from_be_bytes(self.take_array()?);
                let is_last = flags & wire::REPLY_FLAG_DONE != 0;
                (
                    cookie,
                    Header::Chunk {
                        kind,
                        is_last,
                        length,
                    },
                )
            }
            _ => return Err(ClientError::Protocol("a reply begins with nothing known")),
        };
        if cookie != sent.cookie {
            return Err(ClientError::Protocol("a reply is to no request"));
        }
        Ok(header)
    }

    /// The payload of a chunk that is not data.
    fn payload(&mut self, length: u32) -> Result<Vec<u8>, ClientError> {
        if length > CHUNK_BYTES_MAX {
            return Err(ClientError::Protocol("a chunk is too long"));
        }
        let mut data = vec![0; length as usize];
        self.take(&mut data)?;
        Ok(data)
    }

    /// The error that a chunk brings, if it is of that kind.
    fn error_chunk(
        &mut self,
        sent: SentRequest,
        kind: u16,
        length: u32,
    ) -> Result<Option<ClientError>, ClientError> {
        if kind & 1 << 15 == 0 {
            return Ok(None);
        }
        let payload = self.payload(length)?;
        let Some((error, rest)) = payload.split_first_chunk() else {
            return Err(ClientError::Protocol("an error has no number"));
        };
        let said = rest.split_first_chunk().and_then(|(count, text)| {
            let count = usize::from(u16::from_be_bytes(*count));
            text.get(..count)
        });
        let said = String::from_utf8_lossy(said.unwrap_or_default());
        Ok(Some(request_error(sent, u32::from_be_bytes(*error), &said)))
    }

    /// The reply to a request that brings nothing.
    pub(super) fn receive_done(&mut self, sent: SentRequest) -> Result<(), ClientError> {
        let mut outcome = Ok(());
        loop {
            match self.header(sent)? {
                Header::Simple { error: 0 } => return outcome,
                Header::Simple { error } => return Err(request_error(sent, error, "")),
                Header::Chunk {
                    kind,
                    is_last,
                    length,
                } => {
                    if let Some(error) = self.error_chunk(sent, kind, length)? {
                        outcome = Err(error);
                    } else if kind != wire::REPLY_NONE || length != 0 {
                        return Err(ClientError::Protocol("a chunk is of no known kind"));
                    }
                    if is_last {
                        return outcome;
                    }
                }
            }
        }
    }

    /// The reply to a read. Bytes that no chunk brought are an error, for they would be those that were there before.
    pub(super) fn receive_data(
        &mut self,
        sent: SentRequest,
        data: &mut [u8],
    ) -> Result<(), ClientError> {
        let mut outcome = Ok(());
        let mut brought = Vec::new();
        loop {
            match self.header(sent)? {
                Header::Simple { error: 0 } if !self.structured => return self.take(data),
                Header::Simple { error: 0 } => {
                    return Err(ClientError::Protocol("a read is answered without data"));
                }
                Header::Simple { error } => return Err(request_error(sent, error, "")),
                Header::Chunk {
                    kind,
                    is_last,
                    length,
                } => {
                    match kind {
                        wire::REPLY_NONE if length == 0 => {}
                        wire::REPLY_OFFSET_DATA => {
                            brought.push(self.data_chunk(sent, length, data)?)
                        }
                        wire::REPLY_OFFSET_HOLE => {
                            brought.push(self.hole_chunk(sent, length, data)?)
                        }
                        _ => match self.error_chunk(sent, kind, length)? {
                            Some(error) => outcome = Err(error),
                            None => {
                                return Err(ClientError::Protocol("a chunk is of no known kind"));
                            }
                        },
                    }
                    if is_last {
                        outcome?;
                        return match covers_exactly(brought, data.len()) {
                            true => Ok(()),
                            false => {
                                Err(ClientError::Protocol("a read's chunks do not make it up"))
                            }
                        };
                    }
                }
            }
        }
    }

    fn data_chunk(
        &mut self,
        sent: SentRequest,
        length: u32,
        data: &mut [u8],
    ) -> Result<Range<usize>, ClientError> {
        let outside = ClientError::Protocol("a chunk is outside its read");
        let Some(bytes) = length.checked_sub(8) else {
            return Err(outside);
        };
        let at = u64::from_be_bytes(self.take_array()?);
        let Some(place) = within(sent, at, bytes) else {
            return Err(outside);
        };
        self.take(&mut data[place.clone()])?;
        Ok(place)
    }

    fn hole_chunk(
        &mut self,
        sent: SentRequest,
        length: u32,
        data: &mut [u8],
    ) -> Result<Range<usize>, ClientError> {
        let outside = ClientError::Protocol("a hole is outside its read");
        if length != 12 {
            return Err(outside);
        }
        let at = u64::from_be_bytes(self.take_array()?);
        let bytes = u32::from_be_bytes(self.take_array()?);
        let Some(place) = within(sent, at, bytes) else {
            return Err(outside);
        };
        data[place.clone()].fill(0);
        Ok(place)
    }

    /// The reply to a request for block status.
    pub(super) fn receive_allocation(
        &mut self,
        sent: SentRequest,
        context: u32,
    ) -> Result<Vec<Allocation>, ClientError> {
        let mut outcome = Ok(());
        let mut ranges = Vec::new();
        loop {
            let Header::Chunk {
                kind,
                is_last,
                length,
            } = self.header(sent)?
            else {
                return Err(ClientError::Protocol("block status is not told in chunks"));
            };
            if kind == wire::REPLY_BLOCK_STATUS {
                let payload = self.payload(length)?;
                let (words, rest) = payload.as_chunks::<4>();
                let [id, words @ ..] = words else {
                    return Err(ClientError::Protocol("block status is of no context"));
                };
                if !rest.is_empty() || u32::from_be_bytes(*id) != context {
                    return Err(ClientError::Protocol("block status is of another context"));
                }
                ranges = words.as_chunks::<2>().0.iter().map(range).collect();
            } else if let Some(error) = self.error_chunk(sent, kind, length)? {
                outcome = Err(error);
            } else if kind != wire::REPLY_NONE || length != 0 {
                return Err(ClientError::Protocol("a chunk is of no known kind"));
            }
            if is_last {
                outcome?;
                clip_to_request(&mut ranges, u64::from(sent.length));
                return match ranges.is_empty() {
                    true => Err(ClientError::Protocol("block status says nothing")),
                    false => Ok(ranges),
                };
            }
        }
    }
}

fn range([bytes, state]: &[[u8; 4]; 2]) -> Allocation {
    Allocation {
        bytes: u64::from(u32::from_be_bytes(*bytes)),
        zero: u32::from_be_bytes(*state) & wire::STATE_ZERO != 0,
    }
}

/// Leaves out what is behind the request's end, where the protocol lets the last range reach, and what is empty.
fn clip_to_request(ranges: &mut Vec<Allocation>, length: u64) {
    let mut left = length;
    for range in ranges.iter_mut() {
        range.bytes = range.bytes.min(left);
        left -= range.bytes;
    }
    ranges.retain(|range| range.bytes > 0);
}

/// Where in a read's bytes those are that are `bytes` long from byte `at` of the export on.
fn within(sent: SentRequest, at: u64, bytes: u32) -> Option<Range<usize>> {
    let from = at.checked_sub(sent.offset)?;
    let to = from.checked_add(u64::from(bytes))?;
    (to <= u64::from(sent.length)).then_some(from as usize..to as usize)
}

/// Whether so many bytes are there, each once.
fn covers_exactly(mut parts: Vec<Range<usize>>, bytes: usize) -> bool {
    parts.sort_by_key(|part| part.start);
    let mut end = 0;
    parts.iter().all(|part| {
        let follows = part.start == end;
        end = part.end;
        follows
    }) && end == bytes
}

fn request_error(sent: SentRequest, error: u32, said: &str) -> ClientError {
    let why = match said {
        "" => error_text(error),
        said => said.to_owned(),
    };
    ClientError::Failed {
        command: command_name(sent.command),
        offset: sent.offset,
        length: sent.length,
        error,
        why,
    }
}
