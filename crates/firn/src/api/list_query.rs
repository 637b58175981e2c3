//! Which part of a list is asked for: `?after=NAME&limit=N`.
//!
//! However many there are, an answer is of a part that fits into memory.

use serde::Deserialize;
use volume::ListPlace;

use crate::failure::{Failure, Result};

/// Entries of a part, unless it is asked for fewer.
const ENTRIES_MAX: usize = 1000;

/// As it stands in the address.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    after: Option<String>,
    limit: Option<String>,
}

impl ListQuery {
    pub(super) fn place(self) -> Result<ListPlace> {
        let limit = match self.limit {
            None => ENTRIES_MAX,
            Some(text) => match text.parse() {
                Ok(limit) if (1..=ENTRIES_MAX).contains(&limit) => limit,
                _ => {
                    return Err(Failure::invalid(format!(
                        "limit={text}: a part of a list has 1 to {ENTRIES_MAX} entries; ask for the next one with after="
                    )));
                }
            },
        };
        Ok(ListPlace {
            after: self.after,
            limit,
        })
    }
}
