//! Bytes of a peer: banner, frames with checksums, encrypted frames, and the bodies in them.
//!
//! The first byte chooses; a fuzzer guesses no checksum and no key, so the last two choices build
//! a frame around the input and then damage it.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use messenger::control::check_control;
use messenger::frame::{BannerDecoder, Decoder, Frame, Limits, Sealer, SecureKeys, Tag, TxBuf};

/// Everything that a decoder makes of `input`, handed over in pieces.
fn decode(mut decoder: Decoder, input: &[u8], step: usize) -> (Vec<Frame>, bool) {
    let mut frames = Vec::new();
    for piece in input.chunks(step.max(1)) {
        let mut rest = piece;
        loop {
            match decoder.decode(&mut rest) {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    let _ = check_control(&frame);
                    frames.push(frame);
                }
                Err(_) => return (frames, false),
            }
        }
        assert!(rest.is_empty(), "it asks for more and leaves some");
        // The largest bound that was announced, and the slack of a growing vector.
        assert!(
            decoder.buffered() <= 2 * (input.len() + 4096),
            "memory for bytes that never came"
        );
    }
    (frames, true)
}

fn frame(tag: u8, input: &[u8]) -> Frame {
    let tags = [
        Tag::Hello,
        Tag::AuthRequest,
        Tag::AuthDone,
        Tag::ClientIdent,
        Tag::ServerIdent,
        Tag::SessionReconnect,
        Tag::Message,
        Tag::Ack,
    ];
    let mut frame = Frame::control(tags[usize::from(tag) % tags.len()], input.to_vec());
    if tag >= 128 {
        frame.segments[3] = Bytes::copy_from_slice(&input[..input.len() / 2]);
    }
    frame
}

fn secure() -> (Sealer, Decoder) {
    let keys = SecureKeys::from_secret(&[7; 64]);
    let (_, tx) = keys.streams(true);
    let (rx, _) = keys.streams(false);
    let mut decoder = Decoder::new(Limits::OPEN);
    decoder.set_secure(rx);
    (Sealer::Secure(Box::new(tx)), decoder)
}

fuzz_target!(|input: &[u8]| {
    let [how, tag, input @ ..] = input else {
        return;
    };
    let step = usize::from(*tag % 16) + 1;
    match how % 4 {
        0 => {
            let mut rest = input;
            let _ = BannerDecoder::default().decode(&mut rest);
        }
        1 => {
            let whole = decode(Decoder::new(Limits::OPEN), input, input.len());
            assert_eq!(whole, decode(Decoder::new(Limits::OPEN), input, step));
        }
        2 => {
            // Bodies behind good checksums, in both modes.
            let sent = frame(*tag, input);
            let (sealer, decoder) = secure();
            for (mut sealer, decoder) in
                [(Sealer::Crc, Decoder::new(Limits::OPEN)), (sealer, decoder)]
            {
                let mut out = TxBuf::default();
                sealer.seal(&sent, &mut out);
                let (got, whole) = decode(decoder, &out.take_all(), step);
                assert!(whole && got == [sent.clone()], "changed on its way");
            }
        }
        _ => {
            // One flipped bit of an encrypted frame: never a frame.
            let Some((at, input)) = input.split_first_chunk::<2>() else {
                return;
            };
            let (mut sealer, decoder) = secure();
            let mut out = TxBuf::default();
            sealer.seal(&frame(*tag, input), &mut out);
            let mut bytes = out.take_all();
            let bit = usize::from(u16::from_le_bytes(*at)) % (8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(decoder, &bytes, step).0.is_empty(), "a forged frame");
        }
    }
});
