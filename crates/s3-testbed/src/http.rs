//! As much of HTTP/1.1 as a proxy needs: heads, and where a body ends.
//!
//! Bodies are passed on as they are, chunks and all. It must never hold a whole body: a pack is
//! large, and the line below it is what makes it slow.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;

/// Longest head that is read.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Bytes that take the line at a time: at 100 MiB/s a packet of them takes a third of a
/// millisecond, so connections share the line evenly.
const PIECE_BYTES: usize = 32 << 10;

/// First line and headers of a request or an answer.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// As they came, each with its line break, without the empty line.
    lines: Vec<String>,
}

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// After so many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// With the connection.
    Closed,
}

impl Head {
    /// Reads a head; `None` where the connection ended before one began.
    pub(crate) fn read(from: &mut BufReader<TcpStream>) -> io::Result<Option<Head>> {
        let mut lines = Vec::new();
        let mut bytes = 0;
        loop {
            let mut line = Vec::new();
            from.read_until(b'\n', &mut line)?;
            bytes += line.len();
            if line.is_empty() && lines.is_empty() {
                return Ok(None);
            }
            if !line.ends_with(b"\n") || bytes > HEAD_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if line == b"\r\n" || line == b"\n" {
                return Ok(Some(Head { lines }));
            }
            lines.push(String::from_utf8_lossy(&line).into_owned());
        }
    }

    pub(crate) fn write(&self, to: &mut TcpStream) -> io::Result<()> {
        let mut text = self.lines.concat();
        text.push_str("\r\n");
        to.write_all(text.as_bytes())
    }

    fn word(&self, at: usize) -> &str {
        let first = self.lines.first().map_or("", String::as_str);
        first.split_whitespace().nth(at).unwrap_or("")
    }

    /// Of a request.
    pub(crate) fn method(&self) -> &str {
        self.word(0)
    }

    /// Of a request, without its query.
    pub(crate) fn path(&self) -> &str {
        self.word(1).split('?').next().unwrap_or("")
    }

    /// Of an answer.
    pub(crate) fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or(0)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.lines.iter().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Replaces the value of a header that is there.
    pub(crate) fn replace_header(&mut self, name: &str, value: &str) {
        for line in self.lines.iter_mut().skip(1) {
            if line
                .split_once(':')
                .is_some_and(|(found, _)| found.eq_ignore_ascii_case(name))
            {
                *line = format!("{name}: {value}\r\n");
            }
        }
    }

    /// First byte and bytes of `Range: bytes=FIRST-LAST`.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        let (first, last) = self
            .header("range")?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some((first, last.checked_sub(first)? + 1))
    }

    pub(crate) fn closes(&self) -> bool {
        self.header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    fn stated_end(&self) -> Option<BodyEnd> {
        let chunked = self
            .header("transfer-encoding")
            .is_some_and(|value| value.to_ascii_lowercase().contains("chunked"));
        if chunked {
            return Some(BodyEnd::Chunked);
        }
        let length = self.header("content-length")?.parse().ok()?;
        Some(BodyEnd::Length(length))
    }

    /// Where a request's body ends.
    pub(crate) fn request_end(&self) -> BodyEnd {
        self.stated_end().unwrap_or(BodyEnd::Length(0))
    }

    /// Where the body of an answer to `method` ends.
    pub(crate) fn answer_end(&self, method: &str) -> BodyEnd {
        if method == "HEAD" || matches!(self.status(), 100..=199 | 204 | 304) {
            return BodyEnd::Length(0);
        }
        self.stated_end().unwrap_or(BodyEnd::Closed)
    }
}

/// Passes a body on in pieces, of which `pass` hears before each leaves, up to `limit` bytes of it;
/// answers how many there were. Framing of chunks is not counted.
pub(crate) fn copy_body(
    from: &mut BufReader<TcpStream>,
    to: &mut impl Write,
    end: BodyEnd,
    limit: u64,
    pass: &dyn Fn(usize),
) -> io::Result<u64> {
    match end {
        BodyEnd::Length(length) => copy(from, to, length.min(limit), pass),
        BodyEnd::Closed => match copy(from, to, limit, pass) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            copied => copied,
        },
        BodyEnd::Chunked => copy_chunks(from, to, limit, pass),
    }
}

fn copy(
    from: &mut BufReader<TcpStream>,
    to: &mut impl Write,
    length: u64,
    pass: &dyn Fn(usize),
) -> io::Result<u64> {
    let mut left = length;
    while left > 0 {
        let there = from.fill_buf()?;
        if there.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let piece = there.len().min(PIECE_BYTES);
        let piece = usize::try_from(left).map_or(piece, |left| piece.min(left));
        pass(piece);
        to.write_all(&there[..piece])?;
        from.consume(piece);
        left -= piece as u64;
    }
    Ok(length)
}

fn copy_chunks(
    from: &mut BufReader<TcpStream>,
    to: &mut impl Write,
    limit: u64,
    pass: &dyn Fn(usize),
) -> io::Result<u64> {
    let mut copied = 0;
    loop {
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line)?;
        to.write_all(&line)?;
        let text = String::from_utf8_lossy(&line);
        let digits = text.trim().split(';').next().unwrap_or("");
        let length = u64::from_str_radix(digits, 16).map_err(|_| io::ErrorKind::InvalidData)?;
        if length == 0 {
            // Trailers, and the empty line.
            loop {
                let mut line = Vec::new();
                from.read_until(b'\n', &mut line)?;
                to.write_all(&line)?;
                if line.is_empty() || line == b"\r\n" {
                    return Ok(copied);
                }
            }
        }
        let part = length.min(limit - copied);
        copied += copy(from, to, part, pass)?;
        if copied == limit {
            return Ok(copied);
        }
        copy(from, to, 2, &|_| {})?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Head {
        let lines = text.split_inclusive('\n').map(str::to_owned).collect();
        Head { lines }
    }

    #[test]
    fn a_heads_words_and_headers_are_found_whatever_their_case() {
        let mut head = head("GET /b/k?x=1 HTTP/1.1\r\nRANGE: bytes=10-19\r\nX: y\r\n");
        assert_eq!((head.method(), head.path()), ("GET", "/b/k"));
        assert_eq!(head.range(), Some((10, 10)));
        head.replace_header("x", "z");
        assert_eq!(head.header("X"), Some("z"));
        assert_eq!(head.request_end(), BodyEnd::Length(0));
    }

    #[test]
    fn the_end_of_a_body_is_where_its_head_says() {
        let long = head("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n");
        assert_eq!(long.answer_end("GET"), BodyEnd::Length(5));
        assert_eq!(long.answer_end("HEAD"), BodyEnd::Length(0));
        let chunked = head("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n");
        assert_eq!(chunked.answer_end("GET"), BodyEnd::Chunked);
        assert_eq!(
            head("HTTP/1.0 200 OK\r\n").answer_end("GET"),
            BodyEnd::Closed
        );
        assert_eq!(
            head("HTTP/1.1 204 Gone\r\n").answer_end("DELETE"),
            BodyEnd::Length(0)
        );
    }
}
