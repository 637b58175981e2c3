//! A third transport, which is all in `list`, passes the same dispatch tests as NBD and ublk.
#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod list;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use blkmq::io::{FileId, Op};
use blkmq::{Device, DeviceOptions};
use list::{Answers, KEY_REQUESTS, KEY_RETIRE, ListRequest, ListSource};
use reactor::{Buf, Config, Cx, Reactor};
use serve::latency::Latencies;
use serve::testing::{Answer, MemoryDisk, Rig, RigSetup};
use serve::{BackendFile, EngineOptions, RequestEngine};

struct ListRig {
    disk: Arc<MemoryDisk>,
    device: Arc<Device>,
    requests: Arc<Mutex<VecDeque<ListRequest>>>,
    answers: Receiver<Answer>,
    wakers: (Waker, Waker),
    _reactor: Reactor,
}

impl ListRig {
    fn new(setup: RigSetup) -> ListRig {
        let (disk, fd) = MemoryDisk::new(RigSetup::DISK_BYTES, 512, setup.faults);
        let device = Device::new("list", DeviceOptions::default());
        let files = vec![BackendFile {
            id: FileId::LOG,
            fd,
            align: setup.align,
        }];
        let options = EngineOptions {
            files,
            depth: 64,
            tick: Duration::from_secs(1),
            zeroes: None,
            latencies: Latencies::unobserved(),
        };
        let (to, answers) = channel();
        let to = Arc::new(Answers(Mutex::new(to)));
        let engine = RequestEngine::new(Arc::clone(&disk), &device, options, Arc::clone(&to));
        let requests = Arc::<Mutex<VecDeque<ListRequest>>>::default();
        let source = ListSource {
            engine,
            requests: Arc::clone(&requests),
            answers: to,
        };
        let config = Config {
            pool_bytes: setup.pool_bytes,
            reserve_bytes: RigSetup::RESERVE_BYTES,
            ..Config::default()
        };
        let (reactor, (give, take)) = (Reactor::start(config).unwrap(), channel());
        let attach = move |cx: &mut Cx<'_>| {
            give.send((cx.waker(KEY_REQUESTS), cx.waker(KEY_RETIRE)))
                .unwrap();
            source
        };
        reactor.handle().attach(attach).unwrap();
        let wakers = take.recv().unwrap();
        ListRig {
            disk,
            device,
            requests,
            answers,
            wakers,
            _reactor: reactor,
        }
    }
}

impl Rig for ListRig {
    fn disk(&self) -> &Arc<MemoryDisk> {
        &self.disk
    }
    fn device(&self) -> &Arc<Device> {
        &self.device
    }
    fn send(&mut self, id: u64, op: Op, payload: &[u8]) {
        let buffer = || {
            let mut buf = Buf::allocate(payload.len()).unwrap();
            buf.copy_from_slice(payload);
            buf
        };
        let data = matches!(op, Op::Write { .. }).then(buffer);
        self.requests
            .lock()
            .unwrap()
            .push_back(ListRequest { id, op, data });
        self.wakers.0.wake_by_ref();
    }
    fn turn(&mut self) -> Vec<Answer> {
        self.answers
            .recv_timeout(Duration::from_millis(1))
            .into_iter()
            .collect()
    }
    fn retire(&mut self) {
        self.wakers.1.wake_by_ref();
    }
}

serve::dispatch_tests!(ListRig::new);
