//! What a host makes of a root that it did not expect: each row is one of the protocol's cases.

use super::first_root;
use crate::hostlog::continuing::{OwnTail, TailVerdict, judge_tail};
use crate::hostlog::names::Position;
use crate::hostlog::root_updates::{OwnerView, Verdict, judge};
use crate::hostlog::stop::Stop;
use crate::object::root::{Owner, Predecessor, Root};
use crate::units::{Epoch, HostId, Lsn};

const HOST: HostId = HostId([1; 16]);
const OTHER: HostId = HostId([2; 16]);

fn holder(host: HostId) -> Option<Owner> {
    let label = "host".into();
    Some(Owner { host, label })
}

/// The root that the owner wrote last.
fn known() -> Root {
    Root {
        epoch: Epoch(3),
        sequence: 7,
        owner: holder(HOST),
        mark: Position(5),
        lsn: Lsn(20),
        ..first_root(0)
    }
}

fn verdict_of(change: impl Fn(&mut Root)) -> Verdict {
    let known = known();
    let mut standing = known.clone();
    change(&mut standing);
    let view = OwnerView {
        host: HOST,
        known: &known,
        stored: Lsn(30),
        next: Position(9),
    };
    judge(&standing, &view)
}

#[test]
fn a_root_that_an_owner_did_not_expect_is_judged_as_the_protocol_says() {
    assert_eq!(verdict_of(|_| ()), Verdict::Moved);
    let folded = |root: &mut Root| {
        (root.sequence, root.mark, root.lsn) = (8, Position(8), Lsn(30));
    };
    assert_eq!(verdict_of(folded), Verdict::Moved, "a dead process folded");
    assert_eq!(verdict_of(|root| root.epoch = Epoch(4)), Verdict::Fenced);
    let back: [fn(&mut Root); 4] = [
        |root| root.epoch = Epoch(2),
        |root| root.sequence = 6,
        |root| root.lsn = Lsn(19),
        |root| root.mark = Position(4),
    ];
    for change in back {
        assert!(matches!(
            verdict_of(change),
            Verdict::Stop(Stop::SetBack(_))
        ));
    }
    let ahead: [fn(&mut Root); 4] = [
        |root| root.owner = None,
        |root| root.owner = holder(OTHER),
        |root| root.lsn = Lsn(31),
        |root| root.mark = Position(9),
    ];
    for change in ahead {
        assert!(matches!(verdict_of(change), Verdict::Stop(Stop::Cloned(_))));
    }
}

fn tail_verdict(is_ended: bool, change: impl Fn(&mut Root)) -> TailVerdict {
    let mut root = known();
    change(&mut root);
    let tail = OwnTail {
        host: HOST,
        volume: root.volume,
        epoch: Epoch(3),
        stored: Lsn(20),
        newest: Lsn(40),
        next: Position(9),
        is_unresolved: false,
        is_ended,
    };
    judge_tail(&root, &tail)
}

#[test]
fn a_tail_goes_on_only_where_the_root_still_names_its_host_and_epoch() {
    assert_eq!(tail_verdict(false, |_| ()), TailVerdict::Continues);
    assert_eq!(tail_verdict(true, |_| ()), TailVerdict::Reopens);
    assert_eq!(
        tail_verdict(false, |root| root.owner = None),
        TailVerdict::Reopens
    );
    let claimed_by = |host| {
        tail_verdict(false, |root| {
            root.epoch = Epoch(4);
            root.owner = None;
            root.claimant = holder(host);
            root.predecessor = Some(Predecessor {
                host: HOST,
                epoch: Epoch(3),
                mark: Position(5),
            });
        })
    };
    assert_eq!(claimed_by(HOST), TailVerdict::Reopens, "its own late claim");
    assert_eq!(claimed_by(OTHER), TailVerdict::Fenced);
    assert_eq!(
        tail_verdict(false, |root| root.epoch = Epoch(4)),
        TailVerdict::Fenced
    );
    assert_eq!(
        tail_verdict(false, |root| root.deleted = true),
        TailVerdict::Fenced
    );
    assert_eq!(
        tail_verdict(false, |root| root.owner = holder(OTHER)),
        TailVerdict::Fenced
    );
    let back = tail_verdict(false, |root| root.epoch = Epoch(2));
    assert!(matches!(back, TailVerdict::Stop(Stop::SetBack(_))));
    let ahead: [fn(&mut Root); 2] = [|root| root.lsn = Lsn(41), |root| root.mark = Position(9)];
    for change in ahead {
        let verdict = tail_verdict(false, change);
        assert!(matches!(verdict, TailVerdict::Stop(Stop::Cloned(_))));
    }
}
