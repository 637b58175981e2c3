//! What the control frames say: hello, authentication, ident, reconnect and its refusals,
//! keepalive, acknowledgements.
//!
//! Owns the layout of each; must never decide anything. Bodies may be longer than what is read
//! here: a later version appends, and the rest is skipped.

mod auth;
mod field;
mod session;

use crate::frame::{Frame, Tag};
use crate::wire::{Reader, WireError};

pub use auth::{
    AuthBadMethod, AuthDone, AuthReplyMore, AuthRequest, AuthRequestMore, AuthSignature, Hello,
    entity,
};
pub use session::{
    Ack, ClientIdent, Done, FLAG_LOSSY, Keepalive2, Keepalive2Ack, MissingFeatures, Reconnect,
    ReconnectOk, Reset, Retry, RetryGlobal, ServerIdent, Stamp, Wait,
};

/// A control frame's body.
pub trait ControlBody: Sized {
    /// Its frame type.
    const TAG: Tag;
    /// Appends the body.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads the body.
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError>;

    /// The whole frame.
    fn frame(&self) -> Frame {
        let mut out = Vec::with_capacity(64);
        self.encode(&mut out);
        Frame::control(Self::TAG, out)
    }

    /// Reads the body of `frame`, whose type the caller has looked at.
    fn from_frame(frame: &Frame) -> Result<Self, WireError> {
        Self::decode(&mut Reader::new(&frame.segments[0]))
    }
}

/// Reads whatever control body `frame` has and drops it: the entry point for fuzzers.
pub fn check_control(frame: &Frame) -> Result<(), WireError> {
    fn read<C: ControlBody>(frame: &Frame) -> Result<(), WireError> {
        C::from_frame(frame).map(drop)
    }
    match frame.tag {
        Tag::Hello => read::<Hello>(frame),
        Tag::AuthRequest => read::<AuthRequest>(frame),
        Tag::AuthBadMethod => read::<AuthBadMethod>(frame),
        Tag::AuthReplyMore => read::<AuthReplyMore>(frame),
        Tag::AuthRequestMore => read::<AuthRequestMore>(frame),
        Tag::AuthDone => read::<AuthDone>(frame),
        Tag::AuthSignature => read::<AuthSignature>(frame),
        Tag::ClientIdent => read::<ClientIdent>(frame),
        Tag::ServerIdent => read::<ServerIdent>(frame),
        Tag::IdentMissingFeatures => read::<MissingFeatures>(frame),
        Tag::SessionReconnect => read::<Reconnect>(frame),
        Tag::SessionReset => read::<Reset>(frame),
        Tag::SessionRetry => read::<Retry>(frame),
        Tag::SessionRetryGlobal => read::<RetryGlobal>(frame),
        Tag::SessionReconnectOk => read::<ReconnectOk>(frame),
        Tag::Wait => read::<Wait>(frame),
        Tag::Message => crate::message::Header::decode(&frame.segments[0]).map(drop),
        Tag::Keepalive2 => read::<Keepalive2>(frame),
        Tag::Keepalive2Ack => read::<Keepalive2Ack>(frame),
        Tag::Ack => read::<Ack>(frame),
        Tag::Done => read::<Done>(frame),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::addr::EntityAddr;

    fn round_trip<C: ControlBody + PartialEq + std::fmt::Debug>(value: &C) {
        let frame = value.frame();
        assert_eq!(&C::from_frame(&frame).unwrap(), value);
        for cut in 0..frame.segments[0].len() {
            let short = Frame::control(frame.tag, frame.segments[0][..cut].to_vec());
            assert!(C::from_frame(&short).is_err(), "{value:?} cut at {cut}");
        }
        let mut longer = frame.segments[0].to_vec();
        longer.push(0xaa);
        assert_eq!(
            &C::from_frame(&Frame::control(frame.tag, longer)).unwrap(),
            value
        );
    }

    #[test]
    fn every_control_frame_survives_a_round_trip_and_no_truncation() {
        let addr = EntityAddr::msgr2("10.1.2.3:6800".parse().unwrap(), 9);
        let addrs = vec![addr, EntityAddr::blank(1)];
        round_trip(&Hello {
            entity: 8,
            your_addr: addr,
        });
        round_trip(&AuthRequest {
            method: 2,
            modes: vec![2, 1],
            payload: vec![1, 2, 3],
        });
        let refused = AuthBadMethod {
            method: 2,
            result: -13,
            methods: vec![1],
            modes: vec![2],
        };
        round_trip(&refused);
        round_trip(&AuthReplyMore(vec![7; 5]));
        round_trip(&AuthRequestMore(vec![8; 5]));
        round_trip(&AuthDone {
            global_id: 4,
            mode: 2,
            payload: vec![],
        });
        round_trip(&AuthSignature([3; 32]));
        round_trip(&ClientIdent {
            addrs: addrs.clone(),
            target: addr,
            global_id: 1,
            global_seq: 2,
            supported: 3,
            required: 4,
            flags: 5,
            cookie: 6,
        });
        round_trip(&ServerIdent {
            addrs: addrs.clone(),
            global_id: 1,
            global_seq: 2,
            supported: 3,
            required: 4,
            flags: 5,
            cookie: 6,
        });
        round_trip(&MissingFeatures(1));
        round_trip(&Reconnect {
            addrs,
            client_cookie: 1,
            server_cookie: 2,
            global_seq: 3,
            connect_seq: 4,
            msg_seq: 5,
        });
        round_trip(&Reset { full: true });
        round_trip(&Retry(1));
        round_trip(&RetryGlobal(2));
        round_trip(&ReconnectOk(3));
        round_trip(&Wait);
        round_trip(&Keepalive2(Stamp { sec: 1, nsec: 2 }));
        round_trip(&Keepalive2Ack(Stamp { sec: 1, nsec: 2 }));
        round_trip(&Ack(9));
        round_trip(&Done(9));
    }

    proptest! {
        #[test]
        fn no_control_body_makes_a_reader_panic(
            tag in 0usize..21,
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let tag = Tag::ALL[tag];
            let _ = check_control(&Frame::control(tag, body));
        }
    }
}
