//! The rows of the evidence, a file each: what is published, what measures it here, and how it is laid out.

mod exit;
mod get_data;
mod out_queue;
mod peers;
mod run_queue;
mod transport;

use super::plan::Row;

/// All rows, in the order of the page.
pub(super) static ROWS: [Row; 6] = [
    exit::ROW,
    transport::ROW,
    out_queue::ROW,
    get_data::ROW,
    run_queue::ROW,
    peers::ROW,
];
