//! Negotiation against the driver's own rules: what it masks, forces, clears and refuses.

use proptest::prelude::*;

use super::*;
use crate::spec::{Disk, Wants};

const LINUX_6_8: u64 = 0x1fe;
const LINUX_6_17: u64 = 0x7fff;
const LINUX_7_2: u64 = 0xf_ffff;

fn spec() -> DeviceSpec {
    DeviceSpec::new(Disk::new(1 << 30))
}

fn offer(bits: u64) -> Offer {
    Offer::new(Features::from_bits(bits), u64::MAX)
}

/// What the driver makes of flags, by its own words: unknown ones masked, some always set, what
/// contradicts each other cleared or refused.
fn driver(kernel: u64, flags: u64) -> Result<u64, i32> {
    let recovery = sys::F_RECOVERY | sys::F_RECOVERY_REISSUE | sys::F_RECOVERY_FAIL_IO;
    let mut flags = flags & kernel;
    let allowed = [
        0,
        sys::F_RECOVERY,
        sys::F_RECOVERY | sys::F_RECOVERY_REISSUE,
        sys::F_RECOVERY | sys::F_RECOVERY_FAIL_IO,
    ];
    if !allowed.contains(&(flags & recovery)) {
        return Err(libc::EINVAL);
    }
    if flags & sys::F_QUIESCE != 0 && flags & sys::F_RECOVERY == 0 {
        return Err(libc::EINVAL);
    }
    let always = sys::F_COMPLETE_IN_TASK
        | sys::F_IOCTL_ENCODE
        | sys::F_PER_IO_TASK
        | sys::F_REGISTER_ANYWHERE
        | sys::F_SAFE_STOP;
    flags |= always & kernel;
    if flags & (sys::F_USER_COPY | sys::F_ZERO_COPY | sys::F_AUTO_BUFFER) != 0 {
        flags &= !sys::F_NEED_GET_DATA;
    }
    Ok(flags)
}

fn info(spec: &DeviceSpec, flags: u64) -> sys::DeviceInfo {
    sys::DeviceInfo {
        queues: spec.queues.min(4),
        depth: spec.depth,
        io_bytes_max: spec.io_bytes_max,
        flags,
        ..sys::DeviceInfo::default()
    }
}

fn negotiate(spec: &DeviceSpec, offer: &Offer, kernel: u64, modes: Modes) -> Result<Grant, Error> {
    let ask = choose_flags(spec, offer, modes)?;
    let flags = driver(kernel, ask.flags.bits())
        .map_err(|errno| Error::kernel(Operation::Add, None, errno))?;
    check_grant(spec, ask, offer, &info(spec, flags))
}

#[test]
fn auto_takes_the_best_mode_of_each_kernel() {
    for (kernel, mode) in [
        (LINUX_7_2, DataMode::ZeroCopy),
        (LINUX_6_17, DataMode::ZeroCopy),
        (LINUX_6_8, DataMode::UserCopy),
        (0x5f, DataMode::GetData),
        (0x40, DataMode::Copy),
    ] {
        let granted = negotiate(&spec(), &offer(kernel), kernel, Modes::ALL).unwrap();
        assert_eq!(granted.mode, mode, "{kernel:#x}");
    }
}

#[test]
fn zero_copy_brings_user_copy_beside_it() {
    let granted = negotiate(&spec(), &offer(LINUX_7_2), LINUX_7_2, Modes::ALL).unwrap();
    assert!(granted.has_user_copy());
    assert!(granted.flags.has(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER));
}

#[test]
fn a_better_mode_that_is_missing_is_told_with_the_kernel_that_has_it() {
    let granted = negotiate(&spec(), &offer(LINUX_6_8), LINUX_6_8, Modes::ALL).unwrap();
    let told: Vec<String> = granted
        .missing
        .iter()
        .map(MissingFeature::to_string)
        .collect();
    assert_eq!(
        told[0],
        "data mode zero-copy: the kernel lacks it (Linux 6.16 has it)"
    );
    assert!(
        told.iter().any(|line| line.starts_with("quiesce: ")),
        "{told:?}"
    );
}

#[test]
fn a_forced_mode_that_the_kernel_lacks_is_an_error_with_the_remedy() {
    let spec = DeviceSpec {
        mode: ModeChoice::Only(DataMode::ZeroCopy),
        ..spec()
    };
    let error = choose_flags(&spec, &offer(LINUX_6_8), Modes::ALL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(
        error.to_string(),
        "ublk: negotiating: this kernel lacks data mode zero-copy; \
         use Linux 6.16 or newer, or data mode auto"
    );
}

#[test]
fn a_forced_mode_is_the_mode_that_is_granted() {
    for mode in DataMode::LADDER {
        let spec = DeviceSpec {
            mode: ModeChoice::Only(mode),
            ..spec()
        };
        let granted = negotiate(&spec, &offer(LINUX_7_2), LINUX_7_2, Modes::ALL).unwrap();
        assert_eq!(granted.mode, mode);
        assert_eq!(DataMode::of_flags(granted.flags.bits()), mode);
    }
}

#[test]
fn a_handler_gets_no_mode_that_it_does_not_serve() {
    let copy_only = Modes::NONE.and(DataMode::Copy);
    let granted = negotiate(&spec(), &offer(LINUX_7_2), LINUX_7_2, copy_only).unwrap();
    assert_eq!(granted.mode, DataMode::Copy);
    let forced = DeviceSpec {
        mode: ModeChoice::Only(DataMode::GetData),
        ..spec()
    };
    let error = choose_flags(&forced, &offer(LINUX_7_2), copy_only).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HandlerMismatch);
    assert!(error.to_string().ends_with("use one of: copy"), "{error}");
    let zero_copy_only = Modes::NONE.and(DataMode::ZeroCopy);
    let error = choose_flags(&spec(), &offer(LINUX_6_8), zero_copy_only).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HandlerMismatch, "{error}");
}

#[test]
fn a_mask_lets_a_kernel_play_an_older_one_and_says_so() {
    let offer = Offer::new(Features::from_bits(LINUX_7_2), LINUX_6_8);
    let granted = negotiate(&spec(), &offer, LINUX_7_2, Modes::ALL).unwrap();
    assert_eq!(granted.mode, DataMode::UserCopy);
    assert!(
        !granted.has(Capability::PerIoTask),
        "it is always set, and hidden"
    );
    assert!(granted.missing.contains(&MissingFeature {
        feature: RequestedFeature::Mode(DataMode::ZeroCopy),
        reason: MissingReason::Hidden,
    }));
}

#[test]
fn a_required_capability_is_granted_or_an_error() {
    let spec = DeviceSpec {
        wants: Wants::NOTHING
            .with(Capability::Recovery, Want::Require)
            .with(Capability::Quiesce, Want::Require),
        ..spec()
    };
    let error = choose_flags(&spec, &offer(LINUX_6_8), Modes::ALL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("6.16"), "{error}");
    let granted = negotiate(&spec, &offer(LINUX_7_2), LINUX_7_2, Modes::ALL).unwrap();
    assert!(granted.has(Capability::Quiesce));
}

#[test]
fn what_excludes_each_other_is_refused_if_both_are_required_and_told_otherwise() {
    let both = |reissue, fail_io| DeviceSpec {
        wants: Wants::default()
            .with(Capability::Reissue, reissue)
            .with(Capability::FailIo, fail_io),
        ..spec()
    };
    let required = both(Want::Require, Want::Require);
    let error = choose_flags(&required, &offer(LINUX_7_2), Modes::ALL).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    for (reissue, fail_io, winner) in [
        (Want::Prefer, Want::Prefer, Capability::Reissue),
        (Want::Prefer, Want::Require, Capability::FailIo),
        (Want::Require, Want::Prefer, Capability::Reissue),
    ] {
        let spec = both(reissue, fail_io);
        let granted = negotiate(&spec, &offer(LINUX_7_2), LINUX_7_2, Modes::ALL).unwrap();
        assert!(granted.has(winner));
        assert_eq!(granted.missing.len(), 1, "{:?}", granted.missing);
    }
}

#[test]
fn what_the_kernel_offers_and_does_not_grant_is_told() {
    let spec = spec();
    let offer = offer(LINUX_7_2);
    let asked = choose_flags(&spec, &offer, Modes::ALL).unwrap();
    let less = asked.flags.bits() & !sys::F_RECOVERY_REISSUE;
    let granted = check_grant(&spec, asked.clone(), &offer, &info(&spec, less)).unwrap();
    assert_eq!(
        granted.missing,
        [MissingFeature {
            feature: RequestedFeature::Capability(Capability::Reissue),
            reason: MissingReason::NotGranted,
        }]
    );
    let copy = asked.flags.bits() & !(sys::F_ZERO_COPY | sys::F_AUTO_BUFFER);
    let error = check_grant(&spec, asked, &offer, &info(&spec, copy)).unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::NotGranted,
        "a silent switch of modes"
    );
}

#[test]
fn fewer_queues_than_asked_for_are_told() {
    let spec = DeviceSpec {
        queues: 64,
        ..spec()
    };
    let granted = negotiate(&spec, &offer(LINUX_7_2), LINUX_7_2, Modes::ALL).unwrap();
    assert_eq!(granted.queues, 4);
    assert!(
        granted
            .missing
            .iter()
            .any(|one| one.feature == RequestedFeature::Queues(4))
    );
}

#[test]
fn a_device_is_taken_over_as_it_was_added() {
    let spec = spec();
    let offer = offer(LINUX_7_2);
    let inherit = |flags, modes| inherit(&spec, &offer, modes, &info(&spec, flags));
    let user_copy = sys::F_USER_COPY | sys::F_RECOVERY;
    assert_eq!(
        inherit(user_copy, Modes::ALL).unwrap().mode,
        DataMode::UserCopy
    );
    let manual = sys::F_ZERO_COPY | sys::F_USER_COPY;
    assert_eq!(
        inherit(manual, Modes::ALL).unwrap().mode,
        DataMode::UserCopy
    );
    let error = inherit(user_copy, Modes::NONE.and(DataMode::Copy)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HandlerMismatch);
    for foreign in [
        sys::F_ZERO_COPY,
        sys::F_BATCH_IO,
        sys::F_ZONED | sys::F_USER_COPY,
        sys::F_INTEGRITY | sys::F_USER_COPY,
        sys::F_SHARED_ZERO_COPY | sys::F_USER_COPY,
        sys::F_SHARED_ZERO_COPY,
    ] {
        let error = inherit(foreign, Modes::ALL).unwrap_err();
        assert!(error.remedy().contains("delete it"), "{error}");
    }
}

fn wants() -> impl Strategy<Value = Wants> {
    let want = prop_oneof![Just(Want::Require), Just(Want::Prefer), Just(Want::Avoid)];
    proptest::collection::vec(want, Capability::ALL.len()).prop_map(|wants| {
        let all = Capability::ALL.into_iter().zip(wants);
        all.fold(Wants::NOTHING, |wants, (one, want)| wants.with(one, want))
    })
}

fn modes() -> impl Strategy<Value = Modes> {
    (0_u8..16).prop_map(|bits| {
        let chosen = DataMode::LADDER
            .into_iter()
            .filter(|mode| bits & 1 << *mode as u8 != 0);
        chosen.fold(Modes::NONE, Modes::and)
    })
}

fn choice() -> impl Strategy<Value = ModeChoice> {
    let forced = proptest::sample::select(&DataMode::LADDER[..]).prop_map(ModeChoice::Only);
    prop_oneof![Just(ModeChoice::Auto), forced]
}

proptest! {
    /// Whatever a kernel offers, masks and forces: it never refuses what was asked for, and
    /// everything wanted is either granted or told.
    #[test]
    fn nothing_wanted_is_lost_in_silence(
        kernel in any::<u64>(),
        mask in any::<u64>(),
        extra in any::<u64>(),
        wants in wants(),
        modes in modes(),
        choice in choice(),
    ) {
        let unnamed = extra & !(sys::F_DESCRIPTOR_BYTES * 2 - 1);
        let spec = DeviceSpec { wants, mode: choice, flags: unnamed, ..spec() };
        let offer = Offer::new(Features::from_bits(kernel), mask);
        let Ok(asked) = choose_flags(&spec, &offer, modes) else { return Ok(()) };
        prop_assert!(modes.has(asked.mode));
        prop_assert!(choice == ModeChoice::Auto || choice == ModeChoice::Only(asked.mode));
        prop_assert!(offer.features().has(asked.flags.bits()), "asks for what is not offered");
        let flags = driver(kernel, asked.flags.bits());
        prop_assert!(flags.is_ok(), "the driver refuses {:?}", asked.flags);
        let info = info(&spec, flags.unwrap());
        let granted = check_grant(&spec, asked, &offer, &info).unwrap();
        for capability in Capability::ALL {
            let told = granted.missing.iter().any(|one| one.feature == RequestedFeature::Capability(capability));
            match wants.of(capability) {
                Want::Require => prop_assert!(granted.has(capability)),
                Want::Prefer => prop_assert!(granted.has(capability) != told),
                Want::Avoid => prop_assert!(!told),
            }
        }
        prop_assert_eq!(granted.flags.bits() & !mask & !granted.asked.bits(), 0, "seen through the mask");
    }

    /// Bits that nobody here knows come through, asked for and granted.
    #[test]
    fn unknown_bits_are_carried(unknown in any::<u32>()) {
        let bits = u64::from(unknown) << 32;
        let kernel = LINUX_7_2 | bits;
        let spec = DeviceSpec { flags: bits, ..spec() };
        let granted = negotiate(&spec, &offer(kernel), kernel, Modes::ALL).unwrap();
        prop_assert_eq!(granted.flags.unknown().bits(), bits);
        prop_assert_eq!(granted.asked.unknown().bits(), bits);
    }

    #[test]
    fn any_flags_of_another_server_are_served_or_refused_in_words(flags in any::<u64>()) {
        let spec = spec();
        match inherit(&spec, &offer(LINUX_7_2), Modes::ALL, &info(&spec, flags)) {
            Ok(granted) => prop_assert!(granted.flags.has(granted.mode.flags() & !sys::F_ZERO_COPY)),
            Err(error) => prop_assert!(!error.remedy().is_empty()),
        }
    }
}
