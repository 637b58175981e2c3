//! The table of scenarios on the running kernel, which must be one of a guest: the rows take
//! devices, and some of them leave servers dead.

use std::time::Instant;

use crate::scenarios::kernel::RealWorld;
use crate::scenarios::{KERNEL_WARNS, Kernel, World, scenarios};

/// What the running kernel knows.
fn features() -> u64 {
    let mut world = RealWorld::new().expect("the driver is there");
    let command = ublk::sys::ControlCommand {
        device: u32::MAX,
        queue: ublk::sys::NO_QUEUE,
        ..Default::default()
    };
    let call = world.control(ublk::sys::GET_FEATURES, command, vec![0; 8]);
    let (result, mask) = world
        .control_result(call, crate::scenarios::Wait::Yes)
        .expect("features are told at once");
    assert_eq!(result, 0, "GET_FEATURES");
    u64::from_ne_bytes(mask.try_into().expect("eight bytes"))
}

#[test]
fn this_kernel_answers_as_the_table_says() {
    if let Err(why) = RealWorld::new() {
        println!("skipped: {why}");
        return;
    }
    let features = features();
    let only = std::env::var("UBLK_ROWS").unwrap_or_default();
    let (mut failed, mut count) = (Vec::new(), 0);
    for row in scenarios().filter(|row| row.name.contains(&only)) {
        for &mode in row.modes {
            let mut world = RealWorld::new().expect("the driver is there");
            let kernel: Kernel = world.kernel();
            let mut needs = row.needs | mode.flags();
            if std::env::var_os("UBLK_ROWS_WARN").is_some() {
                needs &= !KERNEL_WARNS;
            }
            let fits = (row.kernels.0..=row.kernels.1).contains(&kernel);
            if !fits || needs & features != needs {
                continue;
            }
            count += 1;
            let began = Instant::now();
            let verdict = crate::scenarios::run::run(&mut world, row, mode);
            let took = began.elapsed().as_millis();
            match verdict {
                Ok(()) => println!("ok     {took:>6} ms {mode:?}: {}", row.name),
                Err(error) => {
                    println!("FAILED {took:>6} ms {mode:?}: {}: {error}", row.name);
                    failed.push(format!("{mode:?}: {}: {error}", row.name));
                }
            }
        }
    }
    println!("{count} rows, {} failed", failed.len());
    assert!(
        failed.is_empty(),
        "{} of {count}:\n{}",
        failed.len(),
        failed.join("\n")
    );
    assert!(count > 0, "no row fits this kernel");
}
