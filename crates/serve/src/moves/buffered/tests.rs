//! Moves over a double of a reactor, whose operations end in any order.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use super::*;
use blkmq::io::FileId;
use reactor::{BufferPool, Command, FileIndex, OpId, Token};

fn piece(at: u32, len: u32) -> Piece {
    Piece {
        at,
        len,
        place: Place::At {
            file: FileId::LOG,
            offset: 0,
        },
    }
}

#[test]
fn a_plan_that_does_not_cover_the_request_moves_nothing() {
    assert!(covers(&[piece(0, 512), piece(512, 512)], 1024));
    for pieces in [
        vec![],
        vec![piece(0, 512)],
        vec![piece(512, 512)],
        vec![piece(0, 512), piece(0, 512)],
        vec![piece(0, 512), piece(512, 1024)],
        vec![piece(0, 1024), piece(1024, 0)],
    ] {
        assert!(!covers(&pieces, 1024), "{pieces:?}");
        let buf = Buf::allocate(1024).unwrap();
        let (buf, result) = BufferedMove::new(Direction::Write, 0, buf, &pieces).into_buffer();
        assert_eq!(buf.unwrap().len(), 1024);
        assert_eq!(result, Err(MoveError::of_plan(Direction::Write)));
    }
}

#[test]
fn parts_join_to_the_whole_again() {
    let mut buf = Buf::allocate(1024).unwrap();
    buf.fill(7);
    let moving = BufferedMove::new(Direction::Read, 0, buf, &[piece(0, 512), piece(512, 512)]);
    assert_eq!(moving.parts.len(), 2);
    let (buf, result) = moving.into_buffer();
    assert_eq!((buf.unwrap().to_vec(), result), (vec![7; 1024], Ok(())));
}

#[test]
fn only_aligned_pieces_are_moved_directly() {
    let align = DioAlign {
        memory: 512,
        offset: 4096,
    };
    assert!(is_direct(&piece(512, 4096), 8192, align));
    assert!(!is_direct(&piece(512, 4096), 512, align));
    assert!(!is_direct(&piece(512, 512), 8192, align));
    assert!(!is_direct(&piece(256, 4096), 8192, align));
    assert!(is_direct(&piece(3, 5), 7, DioAlign::NONE));
    assert_eq!(aligned_range(&piece(0, 1024), 3584, align), 0..8192);
}

const ALIGN: DioAlign = DioAlign {
    memory: 512,
    offset: 4096,
};
const FILE_BYTES: usize = 1 << 20;

/// A reactor with one file in memory, whose operations wait to be ended by the test.
struct Double {
    file: Vec<u8>,
    pool: BufferPool,
    begun: Vec<(Token, Op)>,
    wanted: VecDeque<(Token, usize)>,
}

impl Port for Double {
    fn submit(&mut self, token: Token, op: Op) -> OpId {
        self.begun.push((token, op));
        OpId::for_test(0)
    }
    fn request_buffer(&mut self, token: Token, len: usize, need: BufferPurpose) -> Option<Buf> {
        assert_eq!(
            need,
            BufferPurpose::Progress,
            "a bounce is part of a request under way"
        );
        let buf = self.pool.take(len, need);
        if buf.is_none() {
            self.wanted.push_back((token, len));
        }
        buf
    }
    fn reserve_len(&self) -> usize {
        self.pool.reserve_len()
    }
    fn arm(&mut self, _: u32, _: Command) {
        panic!("no command moves bytes");
    }
    fn hold_until_submitted(&mut self, _: Buf) {}
    fn cancel(&mut self, _: OpId) {}
    fn register(&mut self, _: Arc<OwnedFd>) -> FileIndex {
        FileIndex::for_test(0)
    }
    fn close(&mut self, _: FileIndex) {}
    fn enable_buffer_slots(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn take_buffer_slots(&mut self, _: usize) -> Option<Vec<u16>> {
        None
    }
    fn release_buffer_slots(&mut self, _: &[u16]) {}
    fn request_turn(&mut self) {}
    fn waker(&self, _: u64) -> Waker {
        Waker::noop().clone()
    }
    fn detach(&mut self) {}
}

impl Double {
    fn new(file: Vec<u8>) -> Double {
        Double {
            file,
            pool: BufferPool::new(64 << 10, 64 << 10).unwrap(),
            begun: Vec::new(),
            wanted: VecDeque::new(),
        }
    }

    /// Carries one of the operations out, whichever, as direct I/O would.
    fn end_one(&mut self, random: &mut fastrand::Rng, fails: bool) -> Option<(Token, Completion)> {
        if self.begun.is_empty() {
            return None;
        }
        let (token, op) = self.begun.swap_remove(random.usize(..self.begun.len()));
        let (Op::Read { offset, buf, .. } | Op::Write { offset, buf, .. }) = &op else {
            panic!("a move does {op:?}")
        };
        let aligned = |value: usize, to: u32| value.is_multiple_of(to as usize);
        assert!(aligned(*offset as usize, ALIGN.offset) && aligned(buf.len(), ALIGN.offset));
        assert!(aligned(buf.as_ptr() as usize, ALIGN.memory));
        let range = *offset as usize..*offset as usize + buf.len();
        let result = if fails {
            Err(io::Error::from_raw_os_error(libc::EIO))
        } else {
            Ok(())
        };
        let completion = match op {
            Op::Read { mut buf, .. } => {
                buf.copy_from_slice(&self.file[range]);
                Completion::Read(buf, result)
            }
            Op::Write { buf, .. } => {
                self.file[range].copy_from_slice(&buf);
                Completion::Write(buf, result)
            }
            _ => unreachable!("matched above"),
        };
        Some((token, completion))
    }
}

/// Moves to the end, with a pool that is `dry` at first; the buffer and whether all went well.
fn run(
    port: &mut Double,
    random: &mut fastrand::Rng,
    mut moving: BufferedMove,
    pieces: &[Piece],
    fails_at: Option<usize>,
) -> (Option<Buf>, MoveResult) {
    let files = [OpenFile {
        id: FileId::LOG,
        index: FileIndex::for_test(0),
        align: ALIGN,
    }];
    let mut held = port.pool.take(64 << 10, BufferPurpose::Fresh);
    let mut reserve = port.pool.take(64 << 10, BufferPurpose::Progress);
    let mut ended = 0;
    while !moving.pump(port, pieces, &files) {
        let fails = fails_at == Some(ended);
        if let Some((token, completion)) = port.end_one(random, fails) {
            ended += 1;
            moving.on_completion(token.0 as u32 as usize, completion, pieces, &files);
            continue;
        }
        let (token, len) = port.wanted.pop_front().expect("it waits for nothing");
        assert_eq!(token, token::buffer(0));
        held = None;
        reserve = None;
        let buf = port
            .pool
            .take(len, BufferPurpose::Progress)
            .expect("the pool is full");
        moving.on_bounce_buffer(port, buf, pieces, &files);
    }
    drop((held, reserve));
    assert!(port.begun.is_empty(), "over with operations in flight");
    let end = moving.into_buffer();
    assert_eq!(port.pool.stats().lent, 0, "a bounce buffer is kept");
    end
}

/// Pieces that cover a request: each on blocks of its own in the file, starting within a block
/// only where `anywhere` says so.
fn pieces_of(random: &mut fastrand::Rng, anywhere: bool, holes: bool) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (mut at, mut block) = (0, 0);
    for _ in 0..=random.usize(..12) {
        let len = 512 * (1 + random.usize(..24) as u32);
        let inside = if anywhere {
            512 * random.usize(..8) as u64
        } else {
            0
        };
        let place = if holes && random.usize(..4) == 0 {
            Place::Hole
        } else {
            Place::At {
                file: FileId::LOG,
                offset: block * 4096 + inside,
            }
        };
        pieces.push(Piece { at, len, place });
        at += len;
        block += (inside + u64::from(len)).div_ceil(4096);
    }
    pieces
}

#[test]
fn a_read_brings_each_pieces_bytes_whatever_their_alignment_and_order() {
    let mut random = fastrand::Rng::with_seed(1);
    let file: Vec<u8> = (0..FILE_BYTES).map(|_| random.usize(..256) as u8).collect();
    for round in 0..500 {
        let mut port = Double::new(file.clone());
        let pieces = pieces_of(&mut random, true, true);
        let len: u32 = pieces.iter().map(|piece| piece.len).sum();
        let mut buf = Buf::allocate(len as usize).unwrap();
        buf.fill(0xff);
        let moving = BufferedMove::new(Direction::Read, 0, buf, &pieces);
        let (buf, result) = run(&mut port, &mut random, moving, &pieces, None);
        assert_eq!(result, Ok(()), "round {round}");
        let buf = buf.unwrap();
        for piece in &pieces {
            let got = &buf[piece.at as usize..][..piece.len as usize];
            match piece.place {
                Place::Hole => assert!(got.iter().all(|&byte| byte == 0)),
                Place::At { offset, .. } => {
                    assert_eq!(got, &file[offset as usize..][..piece.len as usize]);
                }
            }
        }
    }
}

#[test]
fn a_write_puts_each_pieces_bytes_and_zeroes_up_to_the_end_of_its_block() {
    let mut random = fastrand::Rng::with_seed(2);
    for round in 0..500 {
        let mut port = Double::new(vec![0xff; FILE_BYTES]);
        let pieces = pieces_of(&mut random, false, false);
        let len: u32 = pieces.iter().map(|piece| piece.len).sum();
        let bytes: Vec<u8> = (0..len).map(|_| random.usize(..256) as u8).collect();
        let mut buf = Buf::allocate(len as usize).unwrap();
        buf.copy_from_slice(&bytes);
        let moving = BufferedMove::new(Direction::Write, 0, buf, &pieces);
        let (buf, result) = run(&mut port, &mut random, moving, &pieces, None);
        assert_eq!(result, Ok(()), "round {round}");
        assert_eq!(
            buf.unwrap().to_vec(),
            bytes,
            "the payload comes back as it was"
        );
        let mut expected = vec![0xff; FILE_BYTES];
        for piece in &pieces {
            let Place::At { offset, .. } = piece.place else {
                continue;
            };
            let (start, len) = (offset as usize, piece.len as usize);
            expected[start..(start + len).next_multiple_of(4096)].fill(0);
            expected[start..start + len].copy_from_slice(&bytes[piece.at as usize..][..len]);
        }
        assert!(port.file == expected, "round {round}");
    }
}

#[test]
fn a_write_into_the_middle_of_a_block_is_refused_and_touches_nothing() {
    let place = Place::At {
        file: FileId::LOG,
        offset: 512,
    };
    let pieces = [Piece {
        at: 0,
        len: 512,
        place,
    }];
    let mut port = Double::new(vec![0xff; FILE_BYTES]);
    let buf = Buf::allocate(512).unwrap();
    let moving = BufferedMove::new(Direction::Write, 0, buf, &pieces);
    let (_, result) = run(
        &mut port,
        &mut fastrand::Rng::with_seed(3),
        moving,
        &pieces,
        None,
    );
    let error = MoveError::of_piece(Direction::Write, &pieces[0], libc::EINVAL);
    assert_eq!(result, Err(error));
    assert!(port.file.iter().all(|&byte| byte == 0xff));
}

#[test]
fn one_failed_operation_fails_the_move_after_all_others_have_ended() {
    let mut random = fastrand::Rng::with_seed(4);
    for direction in [Direction::Read, Direction::Write] {
        for round in 0..200 {
            let mut port = Double::new(vec![0; FILE_BYTES]);
            let pieces = pieces_of(&mut random, false, false);
            let len: u32 = pieces.iter().map(|piece| piece.len).sum();
            let buf = Buf::allocate(len as usize).unwrap();
            let moving = BufferedMove::new(direction, 0, buf, &pieces);
            let at = random.usize(..pieces.len());
            let (_, result) = run(&mut port, &mut random, moving, &pieces, Some(at));
            let error = result.unwrap_err();
            assert_eq!(
                (error.direction, error.errno),
                (direction, libc::EIO),
                "round {round}"
            );
            let names_it =
                |piece: &Piece| MoveError::of_piece(direction, piece, libc::EIO) == error;
            assert!(pieces.iter().any(names_it), "round {round}: {error}");
        }
    }
}
