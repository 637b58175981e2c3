//! A whole transport: requests come in a list in memory, and their answers go to a channel.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use blkmq::Completer;
use blkmq::error::ErrorKind;
use blkmq::io::{Op, SECTOR_BYTES};
use reactor::{Buf, Completion, Cx, Source, Token};
use serve::testing::{Answer, MemoryDisk};
use serve::{Location, RequestEngine, Transport};

/// A request with its bytes in a buffer.
#[derive(Debug)]
pub(crate) struct ListRequest {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) data: Option<Buf>,
}

impl serve::Request for ListRequest {
    fn op(&self) -> &Op {
        &self.op
    }
    fn bytes(&self) -> u32 {
        match self.op {
            Op::Read { sectors, .. } | Op::Write { sectors, .. } => sectors * SECTOR_BYTES as u32,
            _ => 0,
        }
    }
    fn location(&self) -> Location {
        Location::Buffer
    }
    fn take_buffer(&mut self) -> Option<Buf> {
        self.data.take()
    }
    fn set_buffer(&mut self, buf: Buf) {
        self.data = Some(buf);
    }
}

/// Where answers go.
pub(crate) struct Answers(pub(crate) Mutex<Sender<Answer>>);

impl Completer<ListRequest> for Answers {
    fn complete(&self, request: ListRequest, result: Result<(), ErrorKind>) {
        let is_read = matches!(request.op, Op::Read { .. });
        let data = request.data.filter(|_| is_read);
        let bytes = data.map_or(Vec::new(), |data| data.to_vec());
        let answer = result.map(|()| bytes).map_err(ErrorKind::errno);
        // A client that has gone wants no answers.
        let _ = self.0.lock().unwrap().send((request.id, answer));
    }
}

struct ListCx<'a, 'c> {
    cx: &'a mut Cx<'c>,
    answers: &'a Answers,
}

impl<'c> Transport for ListCx<'_, 'c> {
    type Request = ListRequest;
    type Port = Cx<'c>;

    fn port(&mut self) -> &mut Cx<'c> {
        self.cx
    }
    fn answer(&mut self, request: ListRequest, result: Result<(), ErrorKind>) {
        self.answers.complete(request, result);
    }
}

const KEY_RUN: u64 = 0;
pub(crate) const KEY_REQUESTS: u64 = 1;
pub(crate) const KEY_RETIRE: u64 = 2;

pub(crate) struct ListSource {
    pub(crate) engine: RequestEngine<MemoryDisk, ListRequest>,
    pub(crate) requests: Arc<Mutex<VecDeque<ListRequest>>>,
    pub(crate) answers: Arc<Answers>,
}

impl Source for ListSource {
    fn on_attached(&mut self, cx: &mut Cx<'_>) {
        self.engine.attach(cx, KEY_RUN);
    }
    fn on_completion(&mut self, cx: &mut Cx<'_>, token: Token, completion: Completion) {
        let answers = &self.answers;
        self.engine
            .on_completion(&mut ListCx { cx, answers }, token, completion);
    }
    fn on_wake(&mut self, cx: &mut Cx<'_>, key: u64) {
        let cx = &mut ListCx {
            cx,
            answers: &self.answers,
        };
        match key {
            KEY_RUN => self.engine.run(cx),
            KEY_RETIRE => self.engine.retire(),
            _ => {
                let requests = std::mem::take(&mut *self.requests.lock().unwrap());
                requests
                    .into_iter()
                    .for_each(|request| self.engine.admit(cx, request));
            }
        }
    }
}
