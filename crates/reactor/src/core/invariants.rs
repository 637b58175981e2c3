//! What holds at the end of every turn. Checked in debug builds.
//!
//! One end for each operation, no buffer slot with two holders and no byte lent twice all show up
//! as counts that do not match, so this compares counts that are kept apart. It allocates nothing.

use super::Core;
use super::source_state::SourceState;

impl Core {
    /// Panics where the reactor's counts contradict each other.
    pub(crate) fn assert_invariants(&self) {
        self.ops.assert_invariants();
        self.buffer_slots.assert_invariants();
        self.pool.assert_invariants();
        let total =
            |count: fn(&SourceState) -> usize| self.sources.iter().map(count).sum::<usize>();
        assert_eq!(
            total(|state| state.ops as usize),
            self.ops.len() + self.ready.len(),
            "the sources' operations, against those in flight and completions to deliver"
        );
        assert_eq!(
            total(|state| state.armed as usize),
            self.armed,
            "the sources' armed commands, against those in flight"
        );
        let armed_files = total(|state| usize::from(state.armed_file.is_some()));
        assert_eq!(
            self.files.total_in_flight(),
            self.ops.count_on_files() + armed_files,
            "users of files, against operations in flight on them"
        );
        let present = total(|state| usize::from(state.present));
        assert_eq!(
            present,
            self.sources.len() - self.sources_free.len(),
            "attached sources, against slots that are not free"
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::core::tests::{command, world};
    use crate::ids::Token;
    use crate::op::Op;

    #[test]
    fn counts_match_while_operations_are_in_flight() {
        let (mut core, _kernel, source, file) = world();
        core.assert_invariants();
        core.arm(source, 1, command(file));
        core.submit(source, Token(2), Op::Command(command(file)));
        core.enable_buffer_slots().unwrap();
        core.take_buffer_slots(3).unwrap();
        core.assert_invariants();
    }

    #[test]
    #[should_panic(expected = "the sources' operations")]
    fn an_operation_without_a_source_is_seen() {
        let (mut core, _kernel, source, file) = world();
        core.submit(source, Token(2), Op::Command(command(file)));
        core.find_source(source).unwrap().ops = 0;
        core.assert_invariants();
    }

    #[test]
    #[should_panic(expected = "the sources' armed commands")]
    fn an_armed_command_that_is_counted_twice_is_seen() {
        let (mut core, _kernel, source, file) = world();
        core.arm(source, 1, command(file));
        core.armed += 1;
        core.assert_invariants();
    }
}
