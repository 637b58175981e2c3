//! The committer's disk requests, carried out on a reactor.
//!
//! A FLUSH waits for them, so they take the shortest path: the reactor's own thread submits them
//! and completes them, without a second thread in between. Nothing here waits (R1). A sync is an
//! operation like any other; a failed one is reported and never repeated (R10).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use blkmq::io::FileId;
use bytes::Bytes;
use reactor::{Buf, Completion, Cx, FileIndex, Op, Source, Token};
use volume::driver::{DiskError, DiskOp, RequestOp};
use volume::{Host, Outcome, RequestId};

use crate::abort_on_panic::AbortOnPanic;
use crate::metrics::IoCounters;

/// The source that takes the engine's commit requests whenever it is woken.
#[derive(Debug)]
pub(crate) struct CommitIo {
    host: Host,
    log: FileIndex,
    in_flight: HashMap<u64, RequestId>,
    next_token: u64,
    /// The round that is going on, and since when.
    round: Option<(u64, Instant)>,
    counters: Arc<IoCounters>,
}

impl CommitIo {
    /// `log` is the log's descriptor as registered with this reactor.
    pub(crate) fn new(host: Host, log: FileIndex, counters: Arc<IoCounters>) -> Self {
        CommitIo {
            host,
            log,
            in_flight: HashMap::new(),
            next_token: 0,
            round: None,
            counters,
        }
    }

    /// Submits until no request is left: completing one may bring the next.
    fn pump(&mut self, cx: &mut Cx<'_>) {
        let _guard = AbortOnPanic("the committer");
        loop {
            let requests = self.host.take_commit_requests();
            self.observe_round();
            if requests.is_empty() {
                return;
            }
            for request in requests {
                match self.log_op(request.op) {
                    Ok(op) => {
                        let token = self.next_token;
                        self.next_token += 1;
                        self.in_flight.insert(token, request.id);
                        cx.submit(Token(token), op);
                    }
                    Err(why) => self.complete(request.id, Err(DiskError::new(why.to_owned()))),
                }
            }
        }
    }

    /// The committer wakes this source when a round begins and when it goes on, also from a checkpoint.
    fn observe_round(&mut self) {
        let current = self.host.commit_round();
        if self.round.map(|(round, _)| round) == current {
            return;
        }
        if let Some((_, begun)) = self.round {
            self.counters.observe_commit_round(begun.elapsed());
        }
        self.round = current.map(|round| (round, Instant::now()));
    }

    fn log_op(&self, op: RequestOp) -> Result<Op, &'static str> {
        match op {
            RequestOp::Disk(DiskOp::Sync { file: FileId::LOG }) => Ok(Op::Sync {
                file: self.log,
                data_only: true,
            }),
            RequestOp::Disk(DiskOp::Write {
                file: FileId::LOG,
                offset,
                data,
            }) => {
                let mut buf =
                    Buf::allocate(data.len()).ok_or("no memory for a frame of the log")?;
                buf.copy_from_slice(&data);
                Ok(Op::Write {
                    file: self.log,
                    offset,
                    buf,
                })
            }
            RequestOp::Disk(_) | RequestOp::Store(_) | RequestOp::Compute(_) => {
                Err("the committer only writes and syncs the log")
            }
        }
    }

    fn complete(&self, id: RequestId, result: Result<(), DiskError>) {
        let _guard = AbortOnPanic("the committer");
        self.host
            .complete(id, Outcome::Disk(result.map(|()| Bytes::new())));
    }
}

impl Source for CommitIo {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        self.pump(cx);
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, token: Token, completion: Completion) {
        let Some(id) = self.in_flight.remove(&token.0) else {
            return;
        };
        let result = match completion {
            Completion::Write(_, result) | Completion::Sync(result) => {
                result.map_err(|error| DiskError::new(error.to_string()))
            }
            other => Err(DiskError::new(format!(
                "an unexpected completion: {other:?}"
            ))),
        };
        if result.is_err() {
            self.counters.count_disk_error();
        }
        self.complete(id, result);
        self.pump(cx);
    }

    fn on_wake(&mut self, cx: &mut Cx<'_>, _key: u64) {
        self.pump(cx);
    }
}
