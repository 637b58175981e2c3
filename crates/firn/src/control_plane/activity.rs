//! What the server does: requests and latencies of each volume, and how full the local files are.
//!
//! Answers from memory; must never send a request to the store.

use std::sync::OnceLock;
use std::time::Instant;

use nbd::server::latency::{OpCounts, OpKind, bucket_bound_us};

use super::ControlPlane;
use crate::model::{Activity, LatencyBucket, OpActivity, VolumeActivity};

impl ControlPlane {
    /// What was done up to now.
    pub(crate) fn activity(&self) -> Activity {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        let began = *BEGAN.get_or_init(Instant::now);
        let usage = self.host.usage();
        let volumes = self.volumes.all().into_iter();
        Activity {
            at_seconds: began.elapsed().as_secs_f64(),
            log_pressure: usage.pressure_permille as f64 / 1000.0,
            cache_disk_bytes: usage.cache.disk_bytes,
            store_requests: self.counters.store_requests(),
            volumes: volumes
                .map(|open| VolumeActivity {
                    name: open.info.name.clone(),
                    watermarks: open.watermarks(),
                    ops: self.op_activities(&open.info.name),
                })
                .collect(),
        }
    }

    fn op_activities(&self, volume: &str) -> Vec<OpActivity> {
        let Some(counts) = self.latencies.of(volume) else {
            return Vec::new();
        };
        let activities = OpKind::ALL.into_iter().map(|kind| {
            let OpCounts {
                requests,
                bytes,
                errors,
                ..
            } = counts.op(kind);
            let buckets = requests.buckets().iter().enumerate();
            OpActivity {
                op: kind.name().to_owned(),
                requests: requests.count(),
                errors: *errors,
                bytes: *bytes,
                seconds: requests.sum_ns() as f64 / 1e9,
                latencies: buckets
                    .filter(|(_, count)| **count > 0)
                    .map(|(bucket, count)| LatencyBucket {
                        below_us: bucket_bound_us(bucket),
                        requests: *count,
                    })
                    .collect(),
            }
        });
        activities
            .filter(|one| one.requests + one.errors > 0)
            .collect()
    }
}
