//! The table of scenarios on the fake driver, as every kernel that it plays.

use crate::scenarios::fake::FakeWorld;
use crate::scenarios::run::run;
use crate::scenarios::{KERNEL_WARNS, Kernel, scenarios};

fn every_row(kernel: Kernel, features: u64) {
    let mut failed = Vec::new();
    let mut count = 0;
    for row in scenarios() {
        if !(row.kernels.0..=row.kernels.1).contains(&kernel) {
            continue;
        }
        for &mode in row.modes {
            let needs = row.needs & !KERNEL_WARNS | mode.flags();
            if needs & features != needs {
                continue;
            }
            count += 1;
            let mut world = FakeWorld::new(kernel);
            if let Err(error) = run(&mut world, row, mode) {
                failed.push(format!("{mode:?}: {}: {error}", row.name));
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {count}:\n{}",
        failed.len(),
        failed.join("\n")
    );
    assert!(count > 80, "only {count} rows ran");
}

#[test]
fn the_fake_of_6_12_answers_as_the_table_says() {
    every_row(Kernel::V6_12, ublk_fake::Profile::V6_12.features);
}

#[test]
fn the_fake_of_6_17_answers_as_the_table_says() {
    every_row(Kernel::V6_17, ublk_fake::Profile::V6_17.features);
}

#[test]
fn the_fake_of_7_2_answers_as_the_table_says() {
    every_row(Kernel::V7_2, ublk_fake::Profile::V7_2.features);
}
