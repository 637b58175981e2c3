//! Who is told what has ended: in order, and all of a source that follows each other in one visit.
//!
//! Each end is told exactly once, or to nobody where its source has left.

use crate::op::{Completion, Token};
use crate::source::{Cx, Source, SourceId};

use super::Loop;

/// Completions delivered before the kernel is asked again, so that a source that produces its
/// own work cannot keep the others waiting.
const DELIVERIES_PER_TURN: usize = 1024;

impl Loop {
    /// Gives completions to their sources. Those of one source that follow each other are one
    /// visit: what a visit costs is paid once for all of a busy queue's.
    pub(super) fn deliver(&mut self) {
        self.core.deliveries = DELIVERIES_PER_TURN;
        while self.core.deliveries > 0
            && let Some(id) = self.core.next_delivery()
        {
            let before = self.core.deliveries;
            self.with_source(id, |source, cx| {
                while cx.core.deliveries > 0 {
                    if cx.core.armed_is_next(id) {
                        tell_armed(source, cx);
                        continue;
                    }
                    let Some((token, completion)) = cx.core.take_delivery(id) else {
                        return;
                    };
                    if matches!(completion, Completion::ArmedCommand(..)) {
                        // It came behind a transfer that goes on.
                        cx.core.tell_first(id, token, completion);
                        continue;
                    }
                    cx.core.deliveries -= 1;
                    if cx.core.count_out(id) {
                        source.on_completion(cx, token, completion);
                    }
                }
            });
            if self.core.deliveries == before && self.core.is_live(id) && !self.has(id) {
                // It is on its way in, attached by who was called just now.
                self.arrivals();
                continue;
            }
            if self.core.deliveries == before {
                // It has left, and nobody wants it; or a transfer goes on.
                if self.core.take_delivery(id).is_some() {
                    self.core.count_out(id);
                }
                self.core.deliveries -= 1;
            }
        }
    }

    /// Whether a source is here, and not on its way in.
    fn has(&self, id: SourceId) -> bool {
        let entry = self
            .sources
            .0
            .get(id.slot as usize)
            .and_then(Option::as_ref);
        entry.is_some_and(|(present, _)| *present == id)
    }
}

/// Tells a source of the ends of its armed commands. One that asks for none is told of the first as of
/// any other operation, so that none is lost; what comes for one that leaves is counted only.
fn tell_armed(source: &mut dyn Source, cx: &mut Cx<'_>) {
    let before = cx.core.deliveries;
    if cx.core.is_live(cx.me) {
        source.on_armed_completions(cx);
    }
    if cx.core.deliveries == before
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

    use super::*;
    use crate::core::tests::{Kernel, command, world};
    use crate::op::Op;
    use crate::run::sources::Sources;

    type Heard = Rc<RefCell<Vec<String>>>;

    /// Says what it is told; `then` is done when it is told something first.
    struct Says {
        name: &'static str,
        /// For ends of armed commands.
        asks: bool,
        heard: Heard,
        then: Option<fn(&mut Cx<'_>, Heard)>,
    }

    impl Says {
        fn say(&mut self, cx: &mut Cx<'_>, what: &str) {
            self.heard
                .borrow_mut()
                .push(format!("{}: {what}", self.name));
            if let Some(then) = self.then.take() {
                then(cx, Rc::clone(&self.heard));
            }
        }
    }

    impl Source for Says {
        fn on_completion(&mut self, cx: &mut Cx<'_>, _: Token, completion: Completion) {
            let what = match completion {
                Completion::Command(raw) => format!("a command, {raw}"),
                Completion::ArmedCommand(number, raw) => {
                    format!("{number} in the wrong way, {raw}")
                }
                _ => "a transfer".to_owned(),
            };
            self.say(cx, &what);
        }

        fn on_armed_completions(&mut self, cx: &mut Cx<'_>) {
            while self.asks
                && let Some((number, raw)) = cx.next_armed()
            {
                self.say(cx, &format!("{number} armed, {raw}"));
            }
        }
    }

    fn turning(core: crate::core::Core) -> Loop {
        Loop {
            core,
            sources: Sources::default(),
            departing: Vec::new(),
            every_turn: Vec::new(),
        }
    }

    fn key(kernel: &RefCell<Kernel>, at: usize) -> u64 {
        kernel.borrow().started[at].0
    }

    #[test]
    fn an_armed_commands_end_behind_a_transfer_that_goes_on_is_told_as_such() {
        let (mut core, kernel, _, file) = world();
        let heard = Heard::default();
        let says = Says {
            name: "it",
            asks: true,
            heard: Rc::clone(&heard),
            then: None,
        };
        let source = core.attach(|_| says);
        let buf = crate::buf::Buf::allocate(4096).unwrap();
        let read = Op::Read {
            file,
            offset: 0,
            buf,
        };
        core.submit(source, Token(1), read);
        core.arm(source, 5, command(file));
        core.arm(source, 6, command(file));
        let ends = [(0, 512), (1, 0), (2, -19)];
        let ends = ends.map(|(at, raw)| (key(&kernel, at), raw));
        kernel.borrow_mut().results.extend(ends);
        core.drive(Some(std::time::Duration::ZERO)).unwrap();
        let mut turning = turning(core);
        turning.arrivals();
        turning.deliver();
        assert_eq!(*heard.borrow(), ["it: 5 armed, 0", "it: 6 armed, -19"]);
        assert_eq!(kernel.borrow().started.len(), 4, "the read goes on");
        let stats = turning.core.stats();
        assert_eq!((stats.ops, stats.armed), (1, 0));
    }

    #[test]
    fn no_end_is_lost_to_a_source_that_does_not_ask() {
        let (mut core, kernel, _, file) = world();
        let heard = Heard::default();
        let says = Says {
            name: "it",
            asks: false,
            heard: Rc::clone(&heard),
            then: None,
        };
        let source = core.attach(|_| says);
        core.arm(source, 5, command(file));
        core.arm(source, 6, command(file));
        let ends = [(key(&kernel, 0), 0), (key(&kernel, 1), -19)];
        kernel.borrow_mut().results.extend(ends);
        core.drive(Some(std::time::Duration::ZERO)).unwrap();
        let mut turning = turning(core);
        turning.arrivals();
        turning.deliver();
        assert_eq!(
            *heard.borrow(),
            ["it: 5 in the wrong way, 0", "it: 6 in the wrong way, -19"]
        );
        assert_eq!(turning.core.stats().armed, 0);
    }

    #[test]
    fn what_is_refused_to_a_source_on_its_way_in_is_told_to_it() {
        let (mut core, kernel, _, file) = world();
        let heard = Heard::default();
        let says = Says {
            name: "first",
            asks: true,
            heard: Rc::clone(&heard),
            then: Some(|cx, heard| {
                let closed = cx.register(crate::memory::memfd(c"closed", 4096).unwrap());
                cx.close(closed);
                cx.attach(|cx| {
                    cx.submit(Token(1), Op::Command(command(closed)));
                    cx.arm(9, command(closed));
                    Says {
                        name: "second",
                        asks: true,
                        heard,
                        then: None,
                    }
                });
            }),
        };
        let source = core.attach(|_| says);
        core.arm(source, 5, command(file));
        let ends = [(key(&kernel, 0), 0)];
        kernel.borrow_mut().results.extend(ends);
        core.drive(Some(std::time::Duration::ZERO)).unwrap();
        let mut turning = turning(core);
        turning.arrivals();
        turning.deliver();
        let told = [
            "first: 5 armed, 0",
            "second: a command, -9",
            "second: 9 armed, -9",
        ];
        assert_eq!(*heard.borrow(), told);
        assert_eq!(turning.core.stats().ops, 0);
    }
}
