//! Sessions that were valid until something was changed in them: the codec never panics, never
//! answers without bound, and sees the same thing however the bytes are cut.

use nbd::codec::{Headers, Session};
use nbd::fuzz;
use proptest::prelude::*;

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = b"IHAVEOPT".to_vec();
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just("disk"), Just("locked"), Just(""), Just("nobody")];
    prop_oneof![
        Just(option(3, b"")),
        Just(option(8, b"")),
        Just(option(5, b"")),
        Just(option(11, b"")),
        Just(option(
            10,
            b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation"
        )),
        Just(option(9, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x05firn:")),
        (any::<u32>(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(k, d)| option(k, &d)),
        (name, prop::collection::vec(0_u16..5, 0..4)).prop_map(|(name, wanted)| {
            let mut data = (name.len() as u32).to_be_bytes().to_vec();
            data.extend(name.as_bytes());
            data.extend((wanted.len() as u16).to_be_bytes());
            wanted
                .iter()
                .for_each(|kind| data.extend(kind.to_be_bytes()));
            option(6, &data)
        }),
    ]
}

fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![4 => (0_u32..8).prop_map(|n| n * 512), 1 => any::<u32>()];
    let offset = prop_oneof![4 => (0_u64..1 << 21).prop_map(|n| n * 512), 1 => any::<u64>()];
    let shape = (any::<bool>(), 0_u16..9, 0_u16..64);
    (shape, any::<u64>(), offset, length).prop_map(
        |((is_extended, command, flags), cookie, offset, length)| {
            let magic = if is_extended {
                0x21e4_1c71_u32
            } else {
                0x2560_9513
            };
            let mut out = magic.to_be_bytes().to_vec();
            out.extend(flags.to_be_bytes());
            out.extend(command.to_be_bytes());
            out.extend(cookie.to_be_bytes());
            out.extend(offset.to_be_bytes());
            if is_extended {
                out.extend([0; 4]);
            }
            out.extend(length.to_be_bytes());
            let has_payload = if is_extended {
                flags & 32 != 0
            } else {
                command == 1
            };
            if has_payload && length < 1 << 16 {
                out.extend(vec![0xa5; length as usize]);
            }
            out
        },
    )
}

fn any_session() -> impl Strategy<Value = Vec<u8>> {
    let options = prop::collection::vec(any_option(), 0..4);
    let requests = prop::collection::vec(any_request(), 0..8);
    (options, requests).prop_map(|(options, requests)| {
        let mut out = 3_u32.to_be_bytes().to_vec();
        out.extend(options.concat());
        out.extend(option(7, &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 0]));
        out.extend(requests.concat());
        out
    })
}

proptest! {
    #[test]
    fn a_session_is_the_same_however_its_bytes_are_cut(
        bytes in any_session(),
        step in 1_usize..100,
    ) {
        let whole = fuzz::session(&bytes, bytes.len());
        prop_assert_eq!(&whole, &fuzz::session(&bytes, step));
        prop_assert_eq!(&whole, &fuzz::session(&bytes, 1));
    }

    #[test]
    fn a_mutated_session_never_panics_and_never_differs_by_its_cuts(
        mut bytes in any_session(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        step in 1_usize..100,
    ) {
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        prop_assert_eq!(fuzz::session(&bytes, bytes.len()), fuzz::session(&bytes, step));
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        fuzz::session(&bytes, 64);
        let limits = blkmq::io::Geometry {
            bytes: 1 << 30, logical_block: 512, physical_block: 4096, read_only: false,
        };
        for headers in [Headers::Simple, Headers::Structured, Headers::Extended] {
            let session = Session { headers, ..Session::default() };
            fuzz::transmission(&bytes, 64, session, &limits, &mut fuzz::Trace::default());
        }
    }
}
