//! Layouts of the first frames of both sides: hello and authentication.

use super::field::control_body;
use crate::addr::EntityAddr;

/// What kind of entity a peer says it is.
pub mod entity {
    /// A Ceph object store daemon.
    pub const OSD: u8 = 4;
    /// A client. Hosts of this project say this too.
    pub const CLIENT: u8 = 8;
}

control_body! {
    /// The first frame of both sides.
    struct Hello: Hello {
        /// What the sender is.
        entity: u8,
        /// The receiver's address as the sender sees it.
        your_addr: EntityAddr,
    }
}

control_body! {
    /// The connecting side names its method.
    struct AuthRequest: AuthRequest {
        /// Authentication method.
        method: u32,
        /// Modes it would take, best first.
        modes: Vec<u32>,
        /// The method's first message.
        payload: Vec<u8>,
    }
}

control_body! {
    /// The method is refused.
    struct AuthBadMethod: AuthBadMethod {
        /// The refused method.
        method: u32,
        /// Why, as a negative error number.
        result: i32,
        /// Methods that would be taken.
        methods: Vec<u32>,
        /// Modes that would be taken.
        modes: Vec<u32>,
    }
}

control_body! {
    /// The accepting side's next message.
    struct AuthReplyMore: AuthReplyMore(
        /// The method's own bytes.
        Vec<u8>
    )
}

control_body! {
    /// The connecting side's next message.
    struct AuthRequestMore: AuthRequestMore(
        /// The method's own bytes.
        Vec<u8>
    )
}

control_body! {
    /// The connecting side is authenticated.
    struct AuthDone: AuthDone {
        /// The number it has in the cluster.
        global_id: u64,
        /// The mode of all frames from here on.
        mode: u32,
        /// The method's last message.
        payload: Vec<u8>,
    }
}

control_body! {
    /// A MAC over all bytes of the handshake that the sender received so far.
    struct AuthSignature: AuthSignature(
        /// HMAC-SHA256, or zeros when the method makes no key.
        [u8; 32]
    )
}
