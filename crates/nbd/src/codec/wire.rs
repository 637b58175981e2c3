//! The numbers of the protocol. Everything on the wire is big-endian.

/// First eight bytes of the greeting, "NBDMAGIC".
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of the greeting and start of each option, "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of each option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of each chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Start of each request with extended headers.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Start of each chunk of a reply with extended headers.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Handshake flag: the fixed newstyle handshake is spoken.
pub const HANDSHAKE_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: the 124 zero bytes after EXPORT_NAME's answer may be left out.
pub const HANDSHAKE_NO_ZEROES: u16 = 1 << 1;
/// Client flag: it speaks the fixed newstyle handshake.
pub const CLIENT_FIXED_NEWSTYLE: u32 = 1 << 0;
/// Client flag: it wants the 124 zero bytes left out.
pub const CLIENT_NO_ZEROES: u32 = 1 << 1;

/// Option: enter transmission, the old way without an error reply.
pub const OPT_EXPORT_NAME: u32 = 1;
/// Option: end the session.
pub const OPT_ABORT: u32 = 2;
/// Option: list the exports.
pub const OPT_LIST: u32 = 3;
/// Option: go on over TLS.
pub const OPT_STARTTLS: u32 = 5;
/// Option: tell about an export.
pub const OPT_INFO: u32 = 6;
/// Option: tell about an export and enter transmission.
pub const OPT_GO: u32 = 7;
/// Option: use structured replies.
pub const OPT_STRUCTURED_REPLY: u32 = 8;
/// Option: list metadata contexts.
pub const OPT_LIST_META_CONTEXT: u32 = 9;
/// Option: select metadata contexts.
pub const OPT_SET_META_CONTEXT: u32 = 10;
/// Option: use extended headers.
pub const OPT_EXTENDED_HEADERS: u32 = 11;

/// Option reply: done.
pub const REP_ACK: u32 = 1;
/// Option reply: one export of a list.
pub const REP_SERVER: u32 = 2;
/// Option reply: one fact about an export.
pub const REP_INFO: u32 = 3;
/// Option reply: one metadata context.
pub const REP_META_CONTEXT: u32 = 4;
/// Option reply: the option is not known.
pub const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
/// Option reply: the server's configuration forbids it.
pub const REP_ERR_POLICY: u32 = (1 << 31) + 2;
/// Option reply: the option's data makes no sense.
pub const REP_ERR_INVALID: u32 = (1 << 31) + 3;
/// Option reply: TLS must be begun first.
pub const REP_ERR_TLS_REQD: u32 = (1 << 31) + 5;
/// Option reply: no such export.
pub const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
/// Option reply: the server is about to end.
pub const REP_ERR_SHUTDOWN: u32 = (1 << 31) + 7;
/// Option reply: the option's data is too large.
pub const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;
/// Option reply: extended headers are in use, and there is no way back.
pub const REP_ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;

/// Fact: size and transmission flags.
pub const INFO_EXPORT: u16 = 0;
/// Fact: canonical name.
pub const INFO_NAME: u16 = 1;
/// Fact: description.
pub const INFO_DESCRIPTION: u16 = 2;
/// Fact: minimum, preferred and maximum block size.
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flag: the flags field is valid.
pub const FLAG_HAS_FLAGS: u16 = 1 << 0;
/// Transmission flag: writes are refused.
pub const FLAG_READ_ONLY: u16 = 1 << 1;
/// Transmission flag: FLUSH is served.
pub const FLAG_SEND_FLUSH: u16 = 1 << 2;
/// Transmission flag: FUA is honoured.
pub const FLAG_SEND_FUA: u16 = 1 << 3;
/// Transmission flag: TRIM is served.
pub const FLAG_SEND_TRIM: u16 = 1 << 5;
/// Transmission flag: WRITE_ZEROES is served.
pub const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Transmission flag: the DF command flag is honoured.
pub const FLAG_SEND_DF: u16 = 1 << 7;
/// Transmission flag: several connections see one coherent device.
pub const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
/// Transmission flag: CACHE is served.
pub const FLAG_SEND_CACHE: u16 = 1 << 10;
/// Transmission flag: the FAST_ZERO command flag is understood.
pub const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

/// Command: read.
pub const CMD_READ: u16 = 0;
/// Command: write; its payload follows the header.
pub const CMD_WRITE: u16 = 1;
/// Command: end the session; no reply.
pub const CMD_DISC: u16 = 2;
/// Command: flush.
pub const CMD_FLUSH: u16 = 3;
/// Command: trim.
pub const CMD_TRIM: u16 = 4;
/// Command: the range will be read soon.
pub const CMD_CACHE: u16 = 5;
/// Command: write zeroes.
pub const CMD_WRITE_ZEROES: u16 = 6;
/// Command: tell what is known of the range, per selected metadata context.
pub const CMD_BLOCK_STATUS: u16 = 7;

/// Command flag: complete only once durable.
pub const CMD_FLAG_FUA: u16 = 1 << 0;
/// Command flag of WRITE_ZEROES: do not punch a hole.
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// Command flag of READ: answer with one chunk of data.
pub const CMD_FLAG_DF: u16 = 1 << 2;
/// Command flag of BLOCK_STATUS: one extent per context, and not beyond the range.
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// Command flag of extended headers: the length is that of a payload which follows.
pub const CMD_FLAG_PAYLOAD_LEN: u16 = 1 << 5;
/// Command flag of WRITE_ZEROES: fail rather than be as slow as a write.
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

/// Flag of a reply's chunk: it is the last one.
pub const REPLY_FLAG_DONE: u16 = 1 << 0;
/// Chunk: nothing but the end of a reply.
pub const REPLY_NONE: u16 = 0;
/// Chunk: an offset, and data from there on.
pub const REPLY_OFFSET_DATA: u16 = 1;
/// Chunk: an offset, and how many zeroes are there.
pub const REPLY_OFFSET_HOLE: u16 = 2;
/// Chunk: a metadata context, and extents with lengths of 32 bits.
pub const REPLY_BLOCK_STATUS: u16 = 5;
/// Chunk: a metadata context, and extents with lengths of 64 bits.
pub const REPLY_BLOCK_STATUS_EXT: u16 = 6;
/// Chunk: an error and a message.
pub const REPLY_ERROR: u16 = (1 << 15) + 1;
/// Chunk: an error, a message, and the offset at which it happened.
pub const REPLY_ERROR_OFFSET: u16 = (1 << 15) + 2;

/// Extent of `base:allocation`: nothing is allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// Extent of `base:allocation`: it reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;
/// Extent of `firn:dirty`: the store may not have it as it is now.
pub const STATE_DIRTY: u32 = 1 << 0;

/// Error: not permitted (a write to a read-only export).
pub const EPERM: u32 = 1;
/// Error: the request makes no sense.
pub const EINVAL: u32 = 22;
/// Error: a write beyond the end.
pub const ENOSPC: u32 = 28;
/// Error: the server is going away.
pub const ESHUTDOWN: u32 = 108;
