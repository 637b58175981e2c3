//! Reading an increment, from a file or a pipe. Each block is proven before it is given, and the whole at its end.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

use volume::increment::{
    BLOCK_BYTES, HEADER_BYTES, IncrementBlock, IncrementHeader, IncrementReader, MAGIC,
};
use volume::object::FormatError;

use super::super::{failed, is_standard};
use crate::failure::{Failure, FailureCode, Result};

/// What is read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// Whether a regular file begins as an increment does.
pub(in crate::cli::transfer) fn is_increment(path: &Path) -> bool {
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    let mut beginning = [0; MAGIC.len()];
    let mut read = || File::open(path).and_then(|mut file| file.read_exact(&mut beginning));
    is_file && read().is_ok() && beginning == MAGIC
}

/// An increment that is being read.
pub(super) struct IncrementFile {
    input: BufReader<Box<dyn Read>>,
    reader: IncrementReader,
    name: String,
    /// Bytes that were taken.
    pub(super) at: u64,
    /// How many there are; none of a pipe, which is read once.
    pub(super) bytes: Option<u64>,
}

impl IncrementFile {
    pub(super) fn open(path: &Path) -> Result<IncrementFile> {
        let (input, name, bytes): (Box<dyn Read>, String, Option<u64>) = if is_standard(path) {
            (Box::new(io::stdin()), "standard input".to_owned(), None)
        } else {
            let cannot = |error: io::Error| Failure::io("open the increment", path, &error);
            let file = File::open(path).map_err(cannot)?;
            let found = file.metadata().map_err(cannot)?;
            let bytes = found.is_file().then_some(found.len());
            (Box::new(file), path.display().to_string(), bytes)
        };
        let mut input = BufReader::with_capacity(BUFFER_BYTES, input);
        let mut at = 0;
        let mut head = [0; HEADER_BYTES];
        take(&mut input, &mut head, &mut at, &name)?;
        let damaged = |error: FormatError| match error {
            FormatError::Foreign => Failure::invalid(format!(
                "{name} is no increment: `firn export --since` makes one"
            )),
            error => damaged(&name, 0, &error),
        };
        let rest = IncrementReader::header_bytes(&head).map_err(damaged)?;
        let mut header = head.to_vec();
        header.resize(HEADER_BYTES + rest, 0);
        take(&mut input, &mut header[HEADER_BYTES..], &mut at, &name)?;
        let reader = IncrementReader::new(&header).map_err(damaged)?;
        Ok(IncrementFile {
            input,
            reader,
            name,
            at,
            bytes,
        })
    }

    pub(super) fn header(&self) -> &IncrementHeader {
        self.reader.header()
    }

    /// The next block; none once all was read and is whole.
    pub(super) fn next(&mut self) -> Result<Option<IncrementBlock>> {
        let begin = self.at;
        let mut head = [0; BLOCK_BYTES];
        take(&mut self.input, &mut head, &mut self.at, &self.name)?;
        let bad = |error: FormatError| damaged(&self.name, begin, &error);
        let mut stored = vec![0; IncrementReader::stored_bytes(&head).map_err(bad)?];
        take(&mut self.input, &mut stored, &mut self.at, &self.name)?;
        let block = self.reader.block(&head, &stored);
        match block.map_err(|error| damaged(&self.name, begin, &error))? {
            IncrementBlock::End => self.check_end().map(|()| None),
            block => Ok(Some(block)),
        }
    }

    fn check_end(&mut self) -> Result<()> {
        match self.input.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Failure::new(
                FailureCode::TransferFailed,
                format!(
                    "{} goes on behind its end at byte {}: it is not what was exported; copy it again",
                    self.name, self.at
                ),
            )),
            Err(error) => Err(failed(format!("cannot read {}: {error}", self.name))),
        }
    }
}

fn take(input: &mut impl Read, into: &mut [u8], at: &mut u64, name: &str) -> Result<()> {
    input.read_exact(into).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => failed(format!(
            "{name} is cut short: it ends behind byte {at}; copy or export it again"
        )),
        _ => failed(format!("cannot read {name}: {error}")),
    })?;
    *at += into.len() as u64;
    Ok(())
}

fn damaged(name: &str, at: u64, error: &FormatError) -> Failure {
    let code = match error {
        FormatError::Newer(_) => FailureCode::NewerFormat,
        _ => FailureCode::TransferFailed,
    };
    Failure::new(
        code,
        format!("{name}, at byte {at}: {error}; copy or export it again"),
    )
}
