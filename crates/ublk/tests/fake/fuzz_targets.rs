//! The fuzz targets on random bytes: any command at any time, any wishes at any kernel, any life
//! of a device. `cargo xtask fuzz ublk_queue ublk_driver ublk_negotiate` goes on from there.

use proptest::collection::vec;
use proptest::prelude::*;
use ublk_fake::fuzzing;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_a_server_does_every_client_has_one_answer(input in vec(any::<u8>(), 0..600)) {
        fuzzing::commands(&input);
    }

    #[test]
    fn what_is_granted_was_wanted_and_given(input in vec(any::<u8>(), 0..64)) {
        fuzzing::negotiate(&input);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_life_of_a_device_ends_well(input in vec(any::<u8>(), 0..600)) {
        fuzzing::device_lifecycle(&input);
    }
}
