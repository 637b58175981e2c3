//! Completion delivery: in the order of results, and consecutive ones of one source in one call.
//!
//! Each completion is delivered exactly once, or dropped where its source is detached.

use super::EventLoop;
use crate::core::{Cx, Source};
use crate::ids::{SourceId, Token};
use crate::op::Completion;

/// Completions delivered before the kernel is asked again, so that a source that produces its
/// own work cannot keep the others waiting.
const DELIVERIES_PER_TURN: usize = 1024;

impl EventLoop {
    /// Delivers completions to their sources. The source is looked up once for all of its completions
    /// that follow each other.
    pub(super) fn deliver(&mut self) {
        self.core.deliveries_left = DELIVERIES_PER_TURN;
        while self.core.deliveries_left > 0
            && let Some(id) = self.core.next_recipient()
        {
            let before = self.core.deliveries_left;
            self.call_source(id, |source, cx| {
                while cx.core.deliveries_left > 0 {
                    if cx.core.is_armed_next(id) {
                        deliver_armed(source, cx);
                        continue;
                    }
                    let Some((token, completion)) = cx.core.take_delivery(id) else {
                        return;
                    };
                    if matches!(completion, Completion::ArmedCommand(..)) {
                        // It came behind a transfer that is continued.
                        cx.core.requeue_first(id, token, completion);
                        continue;
                    }
                    cx.core.deliveries_left -= 1;
                    if cx.core.finish_delivery(id) {
                        source.on_completion(cx, token, completion);
                    }
                }
            });
            if self.core.deliveries_left == before && self.core.is_live(id) && !self.is_inserted(id)
            {
                // It was attached by a source that was called just now.
                self.insert_arrivals();
                continue;
            }
            if self.core.deliveries_left == before {
                // Its source is gone and the completion is dropped, or a transfer is continued.
                if self.core.take_delivery(id).is_some() {
                    self.core.finish_delivery(id);
                }
                self.core.deliveries_left -= 1;
            }
        }
    }

    /// Whether a source is in its slot, and not among the arrivals.
    fn is_inserted(&self, id: SourceId) -> bool {
        let entry = self
            .sources
            .0
            .get(id.slot as usize)
            .and_then(Option::as_ref);
        entry.is_some_and(|(present, _)| *present == id)
    }
}

/// Delivers the results of armed commands. A source that takes none gets the first like any other
/// completion, so that none is lost; for a detached source they are only counted.
fn deliver_armed(source: &mut dyn Source, cx: &mut Cx<'_>) {
    let before = cx.core.deliveries_left;
    if cx.core.is_live(cx.me) {
        source.on_armed_completions(cx);
    }
    if cx.core.deliveries_left == before
        && let Some((number, raw)) = cx.next_armed()
    {
        let token = Token(u64::from(number));
        source.on_completion(cx, token, Completion::ArmedCommand(number, raw));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::buf::Buf;
    use crate::core::Core;
    use crate::core::tests::{Kernel, command, world};
    use crate::memory::memfd;
    use crate::op::Op;

    type Log = Rc<RefCell<Vec<String>>>;

    /// Logs its completions; `then` is run at the first one.
    struct Recorder {
        name: &'static str,
        /// Whether it takes the results of armed commands.
        takes_armed: bool,
        log: Log,
        then: Option<fn(&mut Cx<'_>, Log)>,
    }

    impl Recorder {
        fn new(name: &'static str, log: &Log) -> Recorder {
            Recorder {
                name,
                takes_armed: true,
                log: Rc::clone(log),
                then: None,
            }
        }

        fn record(&mut self, cx: &mut Cx<'_>, what: &str) {
            self.log.borrow_mut().push(format!("{}: {what}", self.name));
            if let Some(then) = self.then.take() {
                then(cx, Rc::clone(&self.log));
            }
        }
    }

    impl Source for Recorder {
        fn on_completion(&mut self, cx: &mut Cx<'_>, _: Token, completion: Completion) {
            let what = match completion {
                Completion::Command(raw) => format!("a command, {raw}"),
                Completion::ArmedCommand(number, raw) => {
                    format!("{number} in the wrong way, {raw}")
                }
                _ => "a transfer".to_owned(),
            };
            self.record(cx, &what);
        }

        fn on_armed_completions(&mut self, cx: &mut Cx<'_>) {
            while self.takes_armed
                && let Some((number, raw)) = cx.next_armed()
            {
                self.record(cx, &format!("{number} armed, {raw}"));
            }
        }
    }

    /// Ends the calls that were begun first, second and so on with these results, and delivers them.
    fn deliver(mut core: Core, kernel: &RefCell<Kernel>, results: &[i32]) -> EventLoop {
        let mut state = kernel.borrow_mut();
        let keys: Vec<u64> = state.started.iter().map(|(key, _)| *key).collect();
        state
            .results
            .extend(keys.into_iter().zip(results.iter().copied()));
        drop(state);
        core.submit_and_wait(Some(Duration::ZERO)).unwrap();
        let mut event_loop = EventLoop::new(core);
        event_loop.insert_arrivals();
        event_loop.deliver();
        event_loop
    }

    #[test]
    fn an_armed_commands_end_behind_a_transfer_that_goes_on_is_told_as_such() {
        let (mut core, kernel, _, file) = world();
        let log = Log::default();
        let source = core.attach(|_| Recorder::new("it", &log));
        let buf = Buf::allocate(4096).unwrap();
        let read = Op::Read {
            file,
            offset: 0,
            buf,
        };
        core.submit(source, Token(1), read);
        core.arm(source, 5, command(file));
        core.arm(source, 6, command(file));
        let event_loop = deliver(core, &kernel, &[512, 0, -19]);
        assert_eq!(*log.borrow(), ["it: 5 armed, 0", "it: 6 armed, -19"]);
        assert_eq!(kernel.borrow().started.len(), 4, "the read goes on");
        let stats = event_loop.core.stats();
        assert_eq!((stats.ops_in_flight, stats.armed_commands), (1, 0));
    }

    #[test]
    fn no_end_is_lost_to_a_source_that_does_not_ask() {
        let (mut core, kernel, _, file) = world();
        let log = Log::default();
        let source = core.attach(|_| Recorder {
            takes_armed: false,
            ..Recorder::new("it", &log)
        });
        core.arm(source, 5, command(file));
        core.arm(source, 6, command(file));
        let event_loop = deliver(core, &kernel, &[0, -19]);
        assert_eq!(
            *log.borrow(),
            ["it: 5 in the wrong way, 0", "it: 6 in the wrong way, -19"]
        );
        assert_eq!(event_loop.core.stats().armed_commands, 0);
    }

    #[test]
    fn what_is_refused_to_a_source_on_its_way_in_is_told_to_it() {
        let (mut core, kernel, _, file) = world();
        let log = Log::default();
        let source = core.attach(|_| Recorder {
            then: Some(|cx, log| {
                let closed = cx.register(memfd(c"closed", 4096).unwrap());
                cx.close(closed);
                cx.attach(|cx| {
                    cx.submit(Token(1), Op::Command(command(closed)));
                    cx.arm(9, command(closed));
                    Recorder::new("second", &log)
                });
            }),
            ..Recorder::new("first", &log)
        });
        core.arm(source, 5, command(file));
        let event_loop = deliver(core, &kernel, &[0]);
        let expected = [
            "first: 5 armed, 0",
            "second: a command, -9",
            "second: 9 armed, -9",
        ];
        assert_eq!(*log.borrow(), expected);
        assert_eq!(event_loop.core.stats().ops_in_flight, 0);
    }
}
