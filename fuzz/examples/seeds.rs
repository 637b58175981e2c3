//! Writes the valid inputs that fuzzing begins with: `seeds DIRECTORY`, one folder per target.
//!
//! They come from the encoders, so a change of a format changes them with it.

#[path = "../../crates/messenger/tests/support/fuzz.rs"]
mod messenger_host;

use std::path::Path;

use messenger::frame::{Frame, Sealer, Tag, TxBuf};

/// A session: the client's flags, GO for "disk", a write, a read, a disconnect.
fn nbd_session() -> Vec<u8> {
    let mut out = 1_u32.to_be_bytes().to_vec();
    let mut go = 4_u32.to_be_bytes().to_vec();
    go.extend(b"disk\0\0");
    out.extend(b"IHAVEOPT");
    out.extend(7_u32.to_be_bytes());
    out.extend((go.len() as u32).to_be_bytes());
    out.extend(go);
    for (command, length) in [
        (1_u16, 512_u32),
        (0, 4096),
        (3, 0),
        (4, 512),
        (6, 512),
        (2, 0),
    ] {
        out.extend(0x2560_9513_u32.to_be_bytes());
        out.extend(0_u16.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(u64::from(command).to_be_bytes());
        out.extend(4096_u64.to_be_bytes());
        out.extend(length.to_be_bytes());
        if command == 1 {
            out.extend([7; 512]);
        }
    }
    out
}

/// A session with extended headers and both metadata contexts: a status, a write, a trim.
fn nbd_extended_session() -> Vec<u8> {
    let mut out = 3_u32.to_be_bytes().to_vec();
    let mut contexts = b"\0\0\0\x04disk\0\0\0\x02".to_vec();
    for name in ["base:allocation", "firn:dirty"] {
        contexts.extend((name.len() as u32).to_be_bytes());
        contexts.extend(name.as_bytes());
    }
    for (option, data) in [
        (11_u32, &b""[..]),
        (9, &contexts),
        (10, &contexts),
        (7, b"\0\0\0\x04disk\0\0"),
    ] {
        out.extend(b"IHAVEOPT");
        out.extend(option.to_be_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
    }
    for (command, flags, length) in [(7_u16, 8_u16, 1_u64 << 29), (1, 32, 512), (4, 0, 4096)] {
        out.extend(0x21e4_1c71_u32.to_be_bytes());
        out.extend(flags.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(u64::from(command).to_be_bytes());
        out.extend(4096_u64.to_be_bytes());
        out.extend(length.to_be_bytes());
        if command == 1 {
            out.extend([7; 512]);
        }
    }
    out
}

/// Asks for an export that is being opened, by GO, and again by EXPORT_NAME.
fn nbd_parked_session() -> Vec<u8> {
    let mut out = 3_u32.to_be_bytes().to_vec();
    let mut go = 7_u32.to_be_bytes().to_vec();
    go.extend(b"opening\0\0");
    for (option, data) in [(7_u32, go), (1, b"opening".to_vec())] {
        out.extend(b"IHAVEOPT");
        out.extend(option.to_be_bytes());
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
    }
    out
}

fn messenger_frames() -> Vec<Vec<u8>> {
    let mut out = TxBuf::default();
    Sealer::Crc.seal(
        &Frame::control(Tag::Ack, vec![1, 0, 0, 0, 0, 0, 0, 0]),
        &mut out,
    );
    let mut frame = vec![1, 3];
    frame.extend(out.take_all());
    let mut banner = vec![0, 0];
    banner.extend(b"ceph v2\n\x10\0");
    banner.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    vec![
        banner,
        frame,
        vec![2, 7, 1, 0, 0, 0, 0, 0, 0, 0],
        vec![3, 7, 9, 0, 1, 2, 3],
    ]
}

/// Choices of every size, mixed: any bytes are valid here.
fn ublk_choices() -> Vec<(String, Vec<u8>)> {
    let mixed = |first: u8, len: usize| -> Vec<u8> {
        let next = |byte: &u8| Some(byte.wrapping_mul(141).wrapping_add(71));
        std::iter::successors(Some(first), next).take(len).collect()
    };
    vec![
        ("ublk_queue".into(), mixed(1, 400)),
        ("ublk_driver".into(), mixed(2, 300)),
        ("ublk_negotiate".into(), mixed(0, 48)),
    ]
}

/// Steps of a client and a server that understand each other, and the begins of handshakes.
fn nbd_tls() -> Vec<Vec<u8>> {
    vec![
        vec![
            0, 0, 100, 2, 0, 3, 9, 4, 0, 0, 20, 1, 7, 1, 60, 3, 200, 2, 0, 5, 0, 2, 0, 3, 4, 6, 1,
            3, 1,
        ],
        vec![0, 0, 255, 1, 100, 6, 50, 2, 0, 3, 9, 0, 9, 2, 0],
        vec![0, 0, 8, 7, 5, 23, 3, 3, 0, 9, 2, 0, 3, 1],
        vec![130, 22, 3, 1, 0, 1, 1, 255, 3, 3, 0, 1, 0],
        vec![255, 20, 3, 3, 0, 1, 1, 21, 3, 3, 0, 2, 2, 40],
    ]
}

fn main() -> std::io::Result<()> {
    let directory = std::env::args_os().nth(1).expect("usage: seeds DIRECTORY");
    let mut seeds: Vec<(String, Vec<u8>)> = volume::fuzzing::seeds()
        .into_iter()
        .map(|(target, input)| (format!("volume_{target}"), input))
        .collect();
    seeds.push(("nbd_session".into(), nbd_session()));
    seeds.push(("nbd_session".into(), nbd_extended_session()));
    seeds.push(("nbd_session".into(), nbd_parked_session()));
    seeds.extend(nbd_tls().into_iter().map(|input| ("nbd_tls".into(), input)));
    seeds.extend(
        messenger_frames()
            .into_iter()
            .map(|input| ("messenger_frames".into(), input)),
    );
    for key in [
        "volumes/demo/root",
        "packs/00/0123-4567",
        "a/../b",
        ".hidden",
    ] {
        seeds.push(("store_keys".into(), key.into()));
    }
    for choice in [0, 1] {
        let mut conversation = vec![choice];
        conversation.extend(messenger_host::good_conversation());
        seeds.push(("messenger_hosts".into(), conversation));
    }
    // Two frames to an open session: a message with its header, and an acknowledgement.
    let mut frames = vec![2, 16, 41, 0, 0, 9, 2];
    frames.resize(7 + 40 + 9, 0);
    frames.extend([19, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    seeds.push(("messenger_hosts".into(), frames));
    seeds.extend(ublk_choices());
    let mut written = std::collections::BTreeMap::<String, usize>::new();
    for (target, input) in seeds {
        let folder = Path::new(&directory).join(&target);
        std::fs::create_dir_all(&folder)?;
        // Numbered by target: a seed of one does not rename those of others.
        let number = written.entry(target).or_default();
        std::fs::write(folder.join(format!("seed-{number:02}")), input)?;
        *number += 1;
    }
    Ok(())
}
