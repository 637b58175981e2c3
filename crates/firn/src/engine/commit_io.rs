//! The commit path's disk requests, on a reactor.
//!
//! A FLUSH waits for these, so they take the short way: submitted from the reactor's thread, and
//! their outcomes given there, without another thread in between. Nothing here waits (R1); a
//! sync is an operation like any other, and a failed one is reported and never repeated (R10).

use std::collections::HashMap;

use blkmq::io::FileId;
use reactor::{Buf, Completion, Cx, FileIndex, Op, Source, Token};
use volume::driver::{DiskError, DiskOp, RequestOp};
use volume::{Host, Outcome, RequestId};

use crate::abort_on_panic::Vital;

/// Takes the engine's commit requests when woken.
#[derive(Debug)]
pub(crate) struct Committer {
    host: Host,
    log: FileIndex,
    flights: HashMap<u64, RequestId>,
    next: u64,
}

impl Committer {
    /// `log` is the log's descriptor as registered with this reactor.
    pub(crate) fn new(host: Host, log: FileIndex) -> Self {
        Committer {
            host,
            log,
            flights: HashMap::new(),
            next: 0,
        }
    }

    /// Submits until there is nothing more: giving an outcome may bring the next request.
    fn pump(&mut self, cx: &mut Cx<'_>) {
        let _vital = Vital("the commit path");
        loop {
            let requests = self.host.take_commit_requests();
            if requests.is_empty() {
                return;
            }
            for request in requests {
                match self.operation(request.op) {
                    Ok(op) => {
                        let token = self.next;
                        self.next += 1;
                        self.flights.insert(token, request.id);
                        cx.submit(Token(token), op);
                    }
                    Err(why) => self.give(request.id, Err(DiskError(why.to_owned()))),
                }
            }
        }
    }

    fn operation(&self, op: RequestOp) -> Result<Op, &'static str> {
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
            RequestOp::Disk(_) | RequestOp::Store(_) => {
                Err("the commit path only writes and syncs the log")
            }
        }
    }

    fn give(&self, id: RequestId, result: Result<(), DiskError>) {
        let _vital = Vital("the commit path");
        self.host
            .complete(id, Outcome::Disk(result.map(|()| Vec::new())));
    }
}

impl Source for Committer {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        self.pump(cx);
    }

    fn on_completion(&mut self, cx: &mut Cx<'_>, token: Token, completion: Completion) {
        let Some(id) = self.flights.remove(&token.0) else {
            return;
        };
        let result = match completion {
            Completion::Write(_, result) => {
                result.map_err(|error| DiskError(format!("write of the log failed: {error}")))
            }
            Completion::Sync(result) => {
                result.map_err(|error| DiskError(format!("sync of the log failed: {error}")))
            }
            other => Err(DiskError(format!("an unexpected completion: {other:?}"))),
        };
        if let Err(error) = &result {
            tracing::error!(error = %error.0, "the log failed");
        }
        self.give(id, result);
        self.pump(cx);
    }

    fn on_wake(&mut self, cx: &mut Cx<'_>, _key: u64) {
        self.pump(cx);
    }
}
