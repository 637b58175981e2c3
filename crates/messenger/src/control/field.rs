//! How the fields of control frames are laid out, by their types, and the macro that makes a frame's
//! body of its fields.
//!
//! Decides nothing. Each field is written and read in the order of its declaration; errors name it.

use crate::addr::{EntityAddr, decode_addrs, encode_addrs};
use crate::wire::{Put, Reader, WireError};

/// A value with one layout wherever it stands.
pub(super) trait Field: Sized {
    fn encode(&self, out: &mut Vec<u8>);
    fn decode(r: &mut Reader<'_>, name: &'static str) -> Result<Self, WireError>;
}

macro_rules! numbers {
    ($($type:ident $put:ident),*) => {$(
        impl Field for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                out.$put(*self);
            }
            fn decode(r: &mut Reader<'_>, name: &'static str) -> Result<Self, WireError> {
                r.$type(name)
            }
        }
    )*};
}

numbers!(u8 put_u8, u32 put_u32, i32 put_i32, u64 put_u64, i64 put_i64);

impl Field for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(u8::from(*self));
    }
    fn decode(r: &mut Reader<'_>, name: &'static str) -> Result<Self, WireError> {
        Ok(r.u8(name)? != 0)
    }
}

impl<const N: usize> Field for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put(self);
    }
    fn decode(r: &mut Reader<'_>, name: &'static str) -> Result<Self, WireError> {
        r.array(name)
    }
}

/// Bytes behind their length.
impl Field for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bytes(self);
    }
    fn decode(r: &mut Reader<'_>, name: &'static str) -> Result<Self, WireError> {
        Ok(r.bytes(name)?.to_vec())
    }
}

/// The number lists of authentication: bounded, as a peer offers few.
impl Field for Vec<u32> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(u32::try_from(self.len()).expect("a handful"));
        self.iter().for_each(|&number| out.put_u32(number));
    }
    fn decode(r: &mut Reader<'_>, name: &'static str) -> Result<Self, WireError> {
        let count = r.count(4, name)?;
        if count > 16 {
            return Err(WireError::Value {
                field: name,
                value: count as u64,
            });
        }
        (0..count).map(|_| r.u32(name)).collect()
    }
}

impl Field for EntityAddr {
    fn encode(&self, out: &mut Vec<u8>) {
        EntityAddr::encode(self, out);
    }
    fn decode(r: &mut Reader<'_>, _: &'static str) -> Result<Self, WireError> {
        EntityAddr::decode(r)
    }
}

impl Field for Vec<EntityAddr> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_addrs(self, out);
    }
    fn decode(r: &mut Reader<'_>, _: &'static str) -> Result<Self, WireError> {
        decode_addrs(r)
    }
}

/// Declares the body of a control frame: `struct NAME: TAG { fields }`, or `struct NAME: TAG(TYPE)` with
/// the field's description.
macro_rules! control_body {
    ($(#[$doc:meta])* struct $name:ident: $tag:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::control::ControlBody for $name {
            const TAG: $crate::frame::Tag = $crate::frame::Tag::$tag;
            fn encode(&self, out: &mut Vec<u8>) {
                $($crate::control::field::Field::encode(&self.$field, out);)*
            }
            fn decode(
                r: &mut $crate::wire::Reader<'_>,
            ) -> Result<Self, $crate::wire::WireError> {
                Ok(Self {
                    $($field: $crate::control::field::Field::decode(r, stringify!($field))?,)*
                })
            }
        }
    };
    ($(#[$doc:meta])* struct $name:ident: $tag:ident($(#[$field_doc:meta])* $type:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name($(#[$field_doc])* pub $type);

        impl $crate::control::ControlBody for $name {
            const TAG: $crate::frame::Tag = $crate::frame::Tag::$tag;
            fn encode(&self, out: &mut Vec<u8>) {
                $crate::control::field::Field::encode(&self.0, out);
            }
            fn decode(
                r: &mut $crate::wire::Reader<'_>,
            ) -> Result<Self, $crate::wire::WireError> {
                Ok(Self($crate::control::field::Field::decode(r, stringify!($name))?))
            }
        }
    };
}

pub(super) use control_body;
