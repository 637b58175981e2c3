//! Who may do what over the API: roles, and the tokens that carry them over TCP.
//!
//! Knows neither HTTP nor a listener; the API decides with it, and the commands read their token by
//! it. A secret is never logged, and never kept longer than it takes to compare or to send it.

pub(crate) mod tokens;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What a caller may do. Each role may do what the one before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Role {
    /// Look: volumes, metrics, events.
    Read,
    /// Also attach and detach volumes, and sync them.
    Attach,
    /// Everything: also create, resize and delete volumes, and declare a loss.
    Admin,
}

impl Role {
    pub(crate) const ALL: [Role; 3] = [Role::Read, Role::Attach, Role::Admin];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Attach => "attach",
            Role::Admin => "admin",
        }
    }
}
