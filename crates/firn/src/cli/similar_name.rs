//! Names a volume that may have been meant, where there is none of the name that was given.

use super::client::{Client, encoded};
use crate::failure::{Failure, FailureCode, Result};
use crate::model::VolumeList;

/// How alike two names must be, from 0 to 1.
const ALIKE: f64 = 0.8;

/// Adds the most similar name to a failure that says that there is no such volume.
pub(super) fn suggest(client: &Client, name: &str, failure: Failure) -> Failure {
    if failure.code != FailureCode::NoSuchVolume {
        return failure;
    }
    // The failure is the answer; a suggestion that cannot be had is left out.
    let names = names_near(client, name).unwrap_or_default();
    match most_similar(name, &names) {
        Some(similar) => Failure {
            detail: format!("{}; did you mean {similar}?", failure.detail),
            ..failure
        },
        None => failure,
    }
}

/// Names among which it may be: all, if there are few, and else those that begin alike.
fn names_near(client: &Client, name: &str) -> Result<Vec<String>> {
    let mut list: VolumeList = client.get("/v1/volumes")?;
    if let (Some(_), Some(first)) = (&list.next, name.get(..1)) {
        let path = format!("/v1/volumes?after={}", encoded(first));
        let near: VolumeList = client.get(&path)?;
        list.volumes.extend(near.volumes);
    }
    Ok(list.volumes.into_iter().map(|volume| volume.name).collect())
}

pub(super) fn most_similar<'a>(name: &str, names: &'a [String]) -> Option<&'a str> {
    let by_likeness = names
        .iter()
        .map(|other| (strsim::jaro_winkler(name, other), other.as_str()));
    by_likeness
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_finds_its_neighbour_and_a_strange_one_finds_none() {
        let names = ["demo", "database-1", "database-2"].map(str::to_owned);
        assert_eq!(most_similar("dmeo", &names), Some("demo"));
        assert_eq!(most_similar("databse-2", &names), Some("database-2"));
        assert_eq!(most_similar("kitchen", &names), None);
        assert_eq!(most_similar("demo", &[]), None);
    }
}
