//! The client's side of the handshake: greeting, structured replies, allocation, GO.

use std::io::{Read, Write};

use super::{Client, ClientError, ExportFacts};
use crate::codec::wire;

/// Longest option reply that is believed: no fact, name or reason is longer.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// Facts and contexts before the end of one option's answer.
const REPLIES_MAX: usize = 1000;
/// What holds where a server says nothing of block sizes.
const BLOCK_BYTES: u32 = 512;
const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

const CONTEXT: &str = "base:allocation";

struct Reply {
    kind: u32,
    data: Vec<u8>,
}

pub(super) fn enter<S: Read + Write>(stream: S, name: &str) -> Result<Client<S>, ClientError> {
    let facts = ExportFacts {
        bytes: 0,
        flags: 0,
        block_bytes: BLOCK_BYTES,
        payload_bytes_max: PAYLOAD_BYTES_MAX,
    };
    let mut client = Client {
        stream,
        facts,
        structured: false,
        allocation: None,
        cookie: 0,
    };
    client.greet()?;
    client.structured = client.is_taken(wire::OPT_STRUCTURED_REPLY, &[])?;
    if client.structured {
        client.allocation = client.select_allocation(name)?;
    }
    client.go(name)?;
    Ok(client)
}

impl<S: Read + Write> Client<S> {
    fn greet(&mut self) -> Result<(), ClientError> {
        let greeting: [u8; 18] = self.take_array()?;
        let expected = [
            wire::GREETING_MAGIC.to_be_bytes(),
            wire::OPTION_MAGIC.to_be_bytes(),
        ];
        if greeting[..16] != expected.concat() {
            return Err(ClientError::Protocol(
                "it does not greet as an NBD server does",
            ));
        }
        let flags = u16::from_be_bytes([greeting[16], greeting[17]]);
        if flags & wire::HANDSHAKE_FIXED_NEWSTYLE == 0 {
            return Err(ClientError::Protocol(
                "it lacks the fixed newstyle handshake",
            ));
        }
        let answer = match flags & wire::HANDSHAKE_NO_ZEROES {
            0 => wire::CLIENT_FIXED_NEWSTYLE,
            _ => wire::CLIENT_FIXED_NEWSTYLE | wire::CLIENT_NO_ZEROES,
        };
        let lost = ClientError::connection_lost("in the handshake");
        self.stream.write_all(&answer.to_be_bytes()).map_err(lost)
    }

    fn ask(&mut self, option: u32, data: &[u8]) -> Result<(), ClientError> {
        let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        let lost = ClientError::connection_lost("in the handshake");
        self.stream.write_all(&bytes).map_err(&lost)?;
        self.stream.flush().map_err(&lost)
    }

    fn reply(&mut self, option: u32) -> Result<Reply, ClientError> {
        let head: [u8; 20] = self.take_array()?;
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if head[..8] != wire::OPTION_REPLY_MAGIC.to_be_bytes() || word(8) != option {
            return Err(ClientError::Protocol("an answer is not to what was asked"));
        }
        if word(16) > REPLY_BYTES_MAX {
            return Err(ClientError::Protocol("an option's answer is too long"));
        }
        let mut data = vec![0; word(16) as usize];
        self.take(&mut data)?;
        Ok(Reply {
            kind: word(12),
            data,
        })
    }

    /// Whether the server goes along with an option that it may not know.
    fn is_taken(&mut self, option: u32, data: &[u8]) -> Result<bool, ClientError> {
        self.ask(option, data)?;
        Ok(self.reply(option)?.kind == wire::REP_ACK)
    }

    /// The number of the allocation context in this session. A server that refuses says why at GO, if it matters.
    fn select_allocation(&mut self, name: &str) -> Result<Option<u32>, ClientError> {
        let option = wire::OPT_SET_META_CONTEXT;
        let mut data = text(name);
        data.extend_from_slice(&1_u32.to_be_bytes());
        data.extend_from_slice(&text(CONTEXT));
        self.ask(option, &data)?;
        let mut selected = None;
        for _ in 0..REPLIES_MAX {
            let reply = self.reply(option)?;
            match reply.kind {
                wire::REP_META_CONTEXT => {
                    let (id, context) = reply
                        .data
                        .split_first_chunk()
                        .ok_or(ClientError::Protocol("a context has no number"))?;
                    if context == CONTEXT.as_bytes() {
                        selected = Some(u32::from_be_bytes(*id));
                    }
                }
                wire::REP_ACK => return Ok(selected),
                _ => return Ok(None),
            }
        }
        Err(ClientError::Protocol("it never ends to name contexts"))
    }

    fn go(&mut self, name: &str) -> Result<(), ClientError> {
        let option = wire::OPT_GO;
        let mut data = text(name);
        data.extend_from_slice(&1_u16.to_be_bytes());
        data.extend_from_slice(&wire::INFO_BLOCK_SIZE.to_be_bytes());
        self.ask(option, &data)?;
        let mut has_info = false;
        for _ in 0..REPLIES_MAX {
            let reply = self.reply(option)?;
            match reply.kind {
                wire::REP_INFO => has_info |= self.learn(&reply.data)?,
                wire::REP_ACK if has_info => return Ok(()),
                wire::REP_ACK => return Err(ClientError::Protocol("it does not say the size")),
                error => return Err(refusal_error(name, error, &reply.data)),
            }
        }
        Err(ClientError::Protocol(
            "it never ends to describe the export",
        ))
    }

    /// Takes a fact; whether it is the size.
    fn learn(&mut self, fact: &[u8]) -> Result<bool, ClientError> {
        let short = ClientError::Protocol("a fact of the export is too short");
        let Some((kind, value)) = fact.split_first_chunk() else {
            return Err(short);
        };
        match u16::from_be_bytes(*kind) {
            wire::INFO_EXPORT => {
                let Some((bytes, [high, low, ..])) = value.split_first_chunk() else {
                    return Err(short);
                };
                self.facts.bytes = u64::from_be_bytes(*bytes);
                self.facts.flags = u16::from_be_bytes([*high, *low]);
                Ok(true)
            }
            wire::INFO_BLOCK_SIZE => {
                let Some([least, _, most]) = value.as_chunks::<4>().0.first_chunk() else {
                    return Err(short);
                };
                let least = u32::from_be_bytes(*least);
                let most = u32::from_be_bytes(*most);
                if !least.is_power_of_two() || most < least {
                    return Err(ClientError::Protocol("its block sizes make no sense"));
                }
                self.facts.block_bytes = least;
                self.facts.payload_bytes_max = most.min(PAYLOAD_BYTES_MAX);
                Ok(false)
            }
            _ => Ok(false),
        }
    }
}

/// A string as options carry it.
fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn refusal_error(name: &str, error: u32, said: &[u8]) -> ClientError {
    let said = String::from_utf8_lossy(said).into_owned();
    let why = match error {
        _ if !said.is_empty() => said,
        wire::REP_ERR_TLS_REQD => "it wants TLS first".to_owned(),
        wire::REP_ERR_UNKNOWN => "it has none of this name".to_owned(),
        _ => format!("option reply {error:#x}"),
    };
    ClientError::Refused {
        name: name.to_owned(),
        error,
        why,
    }
}
