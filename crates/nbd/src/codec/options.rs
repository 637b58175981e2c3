//! Answers to single options of the handshake: exports and their facts, metadata contexts.
//!
//! Each takes an option's whole data, appends its whole answer, and keeps nothing: what an option
//! changes in the session is the handshake's to remember.

use super::directory::{Directory, ExportState, Opening};
use super::meta::ContextSet;
use super::reply::Headers;
use super::{NAME_BYTES_MAX, PAYLOAD_BYTES_MAX, clip, wire};

/// Why an export is refused that there is not.
pub(super) const UNKNOWN_EXPORT: &str = "no export of this name";
/// Why one is refused that was being opened when it was asked for.
pub(super) const UNOPENED_EXPORT: &str = "the export could not be opened; its server says why";

pub(super) fn list<D: Directory>(data: &[u8], directory: &D, out: &mut Vec<u8>) {
    if !data.is_empty() {
        refuse(
            out,
            wire::OPT_LIST,
            wire::REP_ERR_INVALID,
            "LIST takes no data",
        );
        return;
    }
    for export in directory.list() {
        let name = clip(&export.name);
        let mut body = Vec::with_capacity(4 + name.len() + export.description.len());
        body.extend_from_slice(&(name.len() as u32).to_be_bytes());
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(clip(&export.description).as_bytes());
        reply(out, wire::OPT_LIST, wire::REP_SERVER, &body);
    }
    reply(out, wire::OPT_LIST, wire::REP_ACK, &[]);
}

/// Answers INFO and GO; the export where everything was right, and the name it was asked for by. `absent` says
/// why there is none.
pub(super) fn info<'d, D: Directory>(
    option: u32,
    data: &'d [u8],
    (directory, absent): (&D, &str),
    headers: Headers,
    out: &mut Vec<u8>,
) -> Result<Option<(D::Export, &'d str)>, Opening> {
    let (name, wanted) = match info_request(data) {
        Ok(parsed) => parsed,
        Err((error, why)) => {
            refuse(out, option, error, why);
            return Ok(None);
        }
    };
    let (export, info) = match directory.find(name) {
        ExportState::Open(found) => found,
        ExportState::Opening(name) => return Err(Opening(name)),
        ExportState::Absent => {
            refuse(out, option, wire::REP_ERR_UNKNOWN, absent);
            return Ok(None);
        }
    };
    let mut fact = |kind: u16, value: &[u8]| {
        let mut body = Vec::with_capacity(2 + value.len());
        body.extend_from_slice(&kind.to_be_bytes());
        body.extend_from_slice(value);
        reply(out, option, wire::REP_INFO, &body);
    };
    let mut size = [0; 10];
    size[..8].copy_from_slice(&info.geometry.bytes.to_be_bytes());
    size[8..].copy_from_slice(&info.flags(headers).to_be_bytes());
    fact(wire::INFO_EXPORT, &size);
    let asked = |kind: u16| wanted.chunks_exact(2).any(|w| w == kind.to_be_bytes());
    if asked(wire::INFO_NAME) {
        fact(wire::INFO_NAME, clip(&info.name).as_bytes());
    }
    if asked(wire::INFO_DESCRIPTION) && !info.description.is_empty() {
        fact(wire::INFO_DESCRIPTION, clip(&info.description).as_bytes());
    }
    // Told unasked as well: who does not know the minimum runs into EINVAL.
    let mut blocks = [0; 12];
    blocks[..4].copy_from_slice(&info.geometry.logical_block.to_be_bytes());
    blocks[4..8].copy_from_slice(&info.geometry.physical_block.to_be_bytes());
    blocks[8..].copy_from_slice(&PAYLOAD_BYTES_MAX.to_be_bytes());
    fact(wire::INFO_BLOCK_SIZE, &blocks);
    reply(out, option, wire::REP_ACK, &[]);
    Ok(Some((export, name)))
}

/// Name length u32, name, count u16, count times u16; nothing before, between or after.
fn info_request(data: &[u8]) -> Result<(&str, &[u8]), (u32, &'static str)> {
    let invalid = |why| (wire::REP_ERR_INVALID, why);
    let length = u32_at(data, 0).ok_or(invalid("option data ends before the name's length"))?;
    if length as usize > NAME_BYTES_MAX {
        return Err((
            wire::REP_ERR_TOO_BIG,
            "export name is longer than 4096 bytes",
        ));
    }
    let (name, rest) = data
        .get(4..)
        .and_then(|rest| rest.split_at_checked(length as usize))
        .ok_or(invalid("option data ends inside the name"))?;
    let name = std::str::from_utf8(name).map_err(|_| invalid("export name is not UTF-8"))?;
    let (count, wanted) = rest
        .split_first_chunk::<2>()
        .ok_or(invalid("option data ends before the facts"))?;
    if wanted.len() != usize::from(u16::from_be_bytes(*count)) * 2 {
        return Err(invalid("option data does not match its count of facts"));
    }
    Ok((name, wanted))
}

/// Answers LIST_META_CONTEXT.
pub(super) fn list_contexts<D: Directory>(
    data: &[u8],
    directory: (&D, &str),
    out: &mut Vec<u8>,
) -> Result<(), Opening> {
    let option = wire::OPT_LIST_META_CONTEXT;
    if let Some((_, queries)) = context_request(option, data, directory, out)? {
        encode_contexts(option, ContextSet::listed_by(&queries), out);
    }
    Ok(())
}

/// Answers SET_META_CONTEXT; what is selected, and for which export.
pub(super) fn select_contexts<D: Directory>(
    data: &[u8],
    directory: (&D, &str),
    out: &mut Vec<u8>,
) -> Result<Option<(String, ContextSet)>, Opening> {
    let option = wire::OPT_SET_META_CONTEXT;
    let Some((name, queries)) = context_request(option, data, directory, out)? else {
        return Ok(None);
    };
    let selected = ContextSet::selected_by(&queries);
    encode_contexts(option, selected, out);
    Ok(Some((name.to_owned(), selected)))
}

fn encode_contexts(option: u32, contexts: ContextSet, out: &mut Vec<u8>) {
    for context in contexts.iter() {
        let mut body = context.id().to_be_bytes().to_vec();
        body.extend_from_slice(context.name().as_bytes());
        reply(out, option, wire::REP_META_CONTEXT, &body);
    }
    reply(out, option, wire::REP_ACK, &[]);
}

/// The export's name and the queries of an option about metadata contexts; refuses what is wrong.
fn context_request<'d, D: Directory>(
    option: u32,
    data: &'d [u8],
    (directory, absent): (&D, &str),
    out: &mut Vec<u8>,
) -> Result<Option<(&'d str, Vec<&'d str>)>, Opening> {
    let Some((name, queries)) = parse_context_request(data) else {
        let why = "option data is not an export's name and queries";
        refuse(out, option, wire::REP_ERR_INVALID, why);
        return Ok(None);
    };
    match directory.find(name) {
        ExportState::Open(_) => Ok(Some((name, queries))),
        ExportState::Opening(name) => Err(Opening(name)),
        ExportState::Absent => {
            refuse(out, option, wire::REP_ERR_UNKNOWN, absent);
            Ok(None)
        }
    }
}

/// Name, count u32, count times a query; a string is its length u32 and its bytes.
fn parse_context_request(data: &[u8]) -> Option<(&str, Vec<&str>)> {
    fn string<'d>(data: &mut &'d [u8]) -> Option<&'d str> {
        let length = u32_at(data, 0)? as usize;
        let (text, rest) = data.get(4..)?.split_at_checked(length)?;
        *data = rest;
        std::str::from_utf8(text)
            .ok()
            .filter(|text| text.len() <= NAME_BYTES_MAX)
    }
    let mut rest = data;
    let name = string(&mut rest)?;
    let count = u32_at(rest, 0)?;
    rest = rest.get(4..)?;
    let mut queries = Vec::new();
    for _ in 0..count {
        // Ends with the data, whatever the count says.
        queries.push(string(&mut rest)?);
    }
    rest.is_empty().then_some((name, queries))
}

pub(super) fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

pub(super) fn refuse(out: &mut Vec<u8>, option: u32, error: u32, why: &str) {
    reply(out, option, error, why.as_bytes());
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}
