//! Known answers, resumption at every byte, and what a decoder refuses.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn golden() -> BTreeMap<&'static str, Vec<u8>> {
    let text = include_str!("../../golden/frames.txt");
    text.lines()
        .map(|line| {
            let (name, hex) = line.split_once(' ').unwrap();
            let bytes = (0..hex.len())
                .step_by(2)
                .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap());
            (name, bytes.collect())
        })
        .collect()
}

fn ramp(n: u8, start: u8) -> Bytes {
    (0..n)
        .map(|i| start.wrapping_add(i))
        .collect::<Vec<_>>()
        .into()
}

fn frame(tag: Tag, segments: [Bytes; 4]) -> Frame {
    Frame {
        tag,
        aborted: false,
        segments,
    }
}

fn none() -> Bytes {
    Bytes::new()
}

fn ack() -> Frame {
    Frame::control(Tag::Ack, 7u64.to_le_bytes().to_vec())
}

fn stream() -> GcmStream {
    let key = std::array::from_fn(|i| i as u8);
    GcmStream::new(&key, &std::array::from_fn(|i| 100 + i as u8))
}

fn secure_frames() -> Vec<(&'static str, Frame)> {
    let ident = |n| frame(Tag::ClientIdent, [ramp(n, 0), none(), none(), none()]);
    vec![
        ("secure_1_ack", ack()),
        ("secure_2_control_48", ident(48)),
        ("secure_3_control_49", ident(49)),
        (
            "secure_4_message",
            frame(
                Tag::Message,
                [ramp(41, 0), ramp(16, 50), none(), ramp(33, 90)],
            ),
        ),
        (
            "secure_5_long_control_and_data",
            frame(Tag::Message, [ramp(200, 0), none(), none(), ramp(1, 9)]),
        ),
    ]
}

fn crc_frames() -> Vec<(&'static str, Frame)> {
    vec![
        ("crc_ack", ack()),
        ("crc_wait", Frame::control(Tag::Wait, vec![])),
        (
            "crc_message",
            frame(
                Tag::Message,
                [ramp(41, 0), ramp(5, 50), none(), ramp(20, 90)],
            ),
        ),
        (
            "crc_message_front_only",
            frame(Tag::Message, [ramp(41, 0), ramp(17, 3), none(), none()]),
        ),
    ]
}

fn secure_decoder() -> Decoder {
    let mut decoder = Decoder::new(Limits::OPEN);
    decoder.set_secure(stream());
    decoder
}

fn decode_all(decoder: &mut Decoder, mut input: &[u8]) -> Result<Vec<Frame>, FrameError> {
    let mut out = Vec::new();
    while let Some(frame) = decoder.decode(&mut input)? {
        out.push(frame);
    }
    Ok(out)
}

#[test]
fn the_checksum_of_the_preamble_starts_at_zero() {
    assert_eq!(golden()["zeros28_crc"], CRC_ZEROS_28.to_le_bytes());
    assert_eq!(crc(&[0; 28]), CRC_ZEROS_28);
    assert_eq!(preamble_crc(&[0; 28]), 0);
}

#[test]
fn gcm_gives_the_answer_of_the_published_test_case() {
    // Test case 2 of the GCM specification: zero key, zero nonce, one zero block.
    let mut gcm = GcmStream::new(&[0; 16], &[0; 12]);
    let mut buf = vec![0; 16];
    gcm.seal(&mut buf, 0);
    let known = [
        0x03, 0x88, 0xda, 0xce, 0x60, 0xb6, 0xa3, 0x92, 0xf3, 0x28, 0xc2, 0xb9, 0x71, 0xb2, 0xfe,
        0x78, 0xab, 0x6e, 0x47, 0xd4, 0x2c, 0xec, 0x13, 0xbd, 0xf5, 0x3a, 0x67, 0xb2, 0x12, 0x57,
        0xbd, 0xdf,
    ];
    assert_eq!(buf, known);
}

#[test]
fn frames_in_crc_mode_have_the_known_bytes() {
    let golden = golden();
    for (name, frame) in crc_frames() {
        let mut out = TxBuf::default();
        Sealer::Crc.seal(&frame, &mut out);
        assert_eq!(out.take_all(), golden[name], "{name}");
        let mut decoder = Decoder::new(Limits::OPEN);
        assert_eq!(
            decode_all(&mut decoder, &golden[name]).unwrap(),
            [frame],
            "{name}"
        );
    }
}

#[test]
fn frames_in_secure_mode_have_the_known_bytes() {
    let golden = golden();
    let mut sealer = Sealer::Secure(Box::new(stream()));
    let mut decoder = secure_decoder();
    for (name, frame) in secure_frames() {
        let mut out = TxBuf::default();
        sealer.seal(&frame, &mut out);
        assert_eq!(out.take_all(), golden[name], "{name}");
        assert_eq!(
            decode_all(&mut decoder, &golden[name]).unwrap(),
            [frame],
            "{name}"
        );
    }
    let aborted = decode_all(&mut decoder, &golden["secure_6_aborted"]).unwrap();
    assert!(aborted[0].aborted);
}

#[test]
fn an_aborted_frame_keeps_its_control_segment_and_loses_the_rest() {
    let mut bytes = golden()["crc_message_aborted"].clone();
    let payload = bytes.len() - 20;
    bytes[payload] ^= 0xff; // the payload of an aborted frame may be anything
    let frames = decode_all(&mut Decoder::new(Limits::OPEN), &bytes).unwrap();
    assert!(frames[0].aborted);
    assert_eq!(
        (frames[0].segments[0].len(), frames[0].segments[1].len()),
        (41, 0)
    );
}

#[test]
fn decoding_resumes_at_every_byte() {
    let golden = golden();
    for secure in [false, true] {
        let set = if secure {
            secure_frames()
        } else {
            crc_frames()
        };
        let bytes: Vec<u8> = set
            .iter()
            .flat_map(|(name, _)| golden[name].clone())
            .collect();
        let frames: Vec<Frame> = set.into_iter().map(|(_, f)| f).collect();
        for step in [1, 2, 7, 31, 97] {
            let mut decoder = if secure {
                secure_decoder()
            } else {
                Decoder::new(Limits::OPEN)
            };
            let mut got = Vec::new();
            for piece in bytes.chunks(step) {
                got.extend(decode_all(&mut decoder, piece).unwrap());
            }
            assert_eq!(got, frames);
        }
    }
}

#[test]
fn a_length_above_its_bound_is_refused_before_anything_is_allocated() {
    let preamble = Preamble::new(Tag::Message, [41, 0, 0, u32::MAX]).encode();
    let mut decoder = Decoder::new(Limits::OPEN);
    let err = decoder.decode(&mut &preamble[..]).unwrap_err();
    assert!(matches!(
        err,
        FrameError::TooLong {
            segment: 3,
            len: u32::MAX,
            ..
        }
    ));
    assert_eq!(decoder.buffered(), 0);
    assert_eq!(decoder.decode(&mut &preamble[..]), Err(FrameError::Failed));
}

#[test]
fn memory_follows_the_bytes_that_came_not_the_length_announced() {
    let preamble = Preamble::new(Tag::Message, [41, 0, 0, 64 << 20]).encode();
    let mut decoder = Decoder::new(Limits::OPEN);
    assert_eq!(decode_all(&mut decoder, &preamble).unwrap(), []);
    let mut control = vec![0; 41];
    control.extend_from_slice(&crc(&control).to_le_bytes());
    assert_eq!(decode_all(&mut decoder, &control).unwrap(), []);
    assert_eq!(decode_all(&mut decoder, &[0; 1000]).unwrap(), []);
    assert!(
        decoder.buffered() < 8 << 10,
        "{} bytes held",
        decoder.buffered()
    );
}

#[test]
fn before_authentication_a_frame_may_not_be_large() {
    let mut out = TxBuf::default();
    Sealer::Crc.seal(&Frame::control(Tag::AuthRequest, vec![0; 5000]), &mut out);
    let err = decode_all(&mut Decoder::new(Limits::HANDSHAKE), &out.take_all()).unwrap_err();
    assert!(matches!(
        err,
        FrameError::TooLong {
            segment: 0,
            len: 5000,
            max: 4096
        }
    ));
}

#[test]
fn another_protocol_is_refused_at_the_first_byte_that_differs() {
    let mut decoder = BannerDecoder::default();
    assert_eq!(decoder.decode(&mut &b"ceph"[..]), Ok(None));
    let err = decoder.decode(&mut &b" v1"[..]).unwrap_err();
    assert_eq!(
        err,
        FrameError::NotMsgr2 {
            got: b"ceph v1".to_vec()
        }
    );
}

#[test]
fn an_older_revision_and_an_unknown_requirement_are_refused() {
    assert!(Banner::OURS.check().is_ok());
    assert!(
        Banner {
            supported: 3,
            required: 0
        }
        .check()
        .is_ok()
    );
    assert!(
        Banner {
            supported: 0,
            required: 0
        }
        .check()
        .is_err()
    );
    assert!(
        Banner {
            supported: 3,
            required: 2
        }
        .check()
        .is_err()
    );
}

#[test]
fn a_banner_comes_in_pieces_and_may_be_longer() {
    let mut bytes = Banner {
        supported: 3,
        required: 1,
    }
    .encode()
    .to_vec();
    bytes[8] = 20;
    bytes.extend_from_slice(&[9; 4]);
    bytes.push(0xee);
    let mut decoder = BannerDecoder::default();
    let mut got = None;
    for (i, byte) in bytes.iter().enumerate() {
        let piece = [*byte];
        let mut input = &piece[..];
        got = decoder.decode(&mut input).unwrap();
        if got.is_some() {
            assert_eq!(i, 29);
            break;
        }
    }
    assert_eq!(
        got,
        Some(Banner {
            supported: 3,
            required: 1
        })
    );
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic_or_hold_more_than_came(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        secure in any::<bool>(),
    ) {
        let mut decoder = if secure { secure_decoder() } else { Decoder::new(Limits::OPEN) };
        let _ = decode_all(&mut decoder, &bytes);
        prop_assert!(decoder.buffered() <= 2 * bytes.len() + 128);
        let _ = BannerDecoder::default().decode(&mut &bytes[..]);
    }

    #[test]
    fn one_changed_bit_never_passes(which in 0usize..9, at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let golden = golden();
        let mut set = crc_frames();
        let plain = set.len();
        set.extend(secure_frames());
        let (name, original) = &set[which];
        let mut bytes = golden[name].clone();
        // Each secure frame has its own nonce: the ones before it are read first.
        let mut decoder = Decoder::new(Limits::OPEN);
        if which >= plain {
            decoder = secure_decoder();
            for (earlier, _) in &set[plain..which] {
                decode_all(&mut decoder, &golden[earlier]).unwrap();
            }
        }
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        // A larger length makes the decoder wait for bytes: that is no frame either. What may
        // change unseen is only what carries no meaning: alignments are covered by the preamble's
        // checksum, so that leaves the reserved half of the late status and the checksums of
        // segments that are not there.
        if let Ok(frames) = decode_all(&mut decoder, &bytes) {
            for frame in frames {
                prop_assert_eq!(&frame, original);
            }
        }
    }

    #[test]
    fn any_frame_survives_both_modes(
        control in prop::collection::vec(any::<u8>(), 0..300),
        front in prop::collection::vec(any::<u8>(), 0..100),
        middle in prop::collection::vec(any::<u8>(), 0..40),
        data in prop::collection::vec(any::<u8>(), 0..5000),
        step in 1usize..700,
    ) {
        let sent = frame(Tag::Message, [control.into(), front.into(), middle.into(), data.into()]);
        for secure in [false, true] {
            let mut sealer =
                if secure { Sealer::Secure(Box::new(stream())) } else { Sealer::Crc };
            let mut decoder = if secure { secure_decoder() } else { Decoder::new(Limits::OPEN) };
            let mut out = TxBuf::default();
            sealer.seal(&sent, &mut out);
            let mut got = Vec::new();
            for piece in out.take_all().chunks(step) {
                got.extend(decode_all(&mut decoder, piece).unwrap());
            }
            prop_assert_eq!(got, std::slice::from_ref(&sent));
        }
    }
}
