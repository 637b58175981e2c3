//! A part of a store's list, from the stream of all of it.
//!
//! Reads no further than it has to, and keeps no more than the part. It must never believe that a store lists in order,
//! or begins where it was told to: some of those that say they are like S3 do neither.

use std::collections::BTreeMap;

use futures_util::stream::{BoxStream, TryStreamExt};
use object_store::{ObjectMeta, Result};

type Metas = BoxStream<'static, Result<ObjectMeta>>;

/// The first `limit` keys behind `after` of a list in order; none: it is not in order.
pub(crate) async fn first_of_ordered(
    mut metas: Metas,
    after: &str,
    limit: usize,
) -> Result<Option<Vec<(String, u64)>>> {
    let mut found: Vec<(String, u64)> = Vec::new();
    let mut last = String::new();
    while found.len() < limit {
        let Some(meta) = metas.try_next().await? else {
            break;
        };
        let key = meta.location.to_string();
        if key <= last {
            return Ok(None);
        }
        last.clone_from(&key);
        if key.as_str() > after {
            found.push((key, meta.size));
        }
    }
    Ok(Some(found))
}

/// The same of a list in any order, all of which is read.
pub(crate) async fn first_of_all(
    mut metas: Metas,
    after: &str,
    limit: usize,
) -> Result<Vec<(String, u64)>> {
    let mut found = BTreeMap::new();
    while let Some(meta) = metas.try_next().await? {
        let key = meta.location.to_string();
        if key.as_str() <= after {
            continue;
        }
        found.insert(key, meta.size);
        if found.len() > limit {
            found.pop_last();
        }
    }
    Ok(found.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{self, StreamExt};
    use object_store::path::Path;

    use super::*;

    fn list(keys: &[&'static str], reads_no_further: bool) -> Metas {
        let metas = keys.iter().map(|key| {
            Ok(ObjectMeta {
                location: Path::from(*key),
                last_modified: Default::default(),
                size: 1,
                e_tag: None,
                version: None,
            })
        });
        let metas: Vec<Result<ObjectMeta>> = metas.collect();
        let metas = stream::iter(metas);
        match reads_no_further {
            true => metas.chain(stream::pending()).boxed(),
            false => metas.boxed(),
        }
    }

    fn keys(found: Vec<(String, u64)>) -> Vec<String> {
        found.into_iter().map(|(key, _)| key).collect()
    }

    #[tokio::test]
    async fn a_part_is_read_no_further_than_it_goes() {
        let found = first_of_ordered(list(&["a", "b", "c"], true), "a", 2).await;
        assert_eq!(keys(found.unwrap().unwrap()), ["b", "c"]);
    }

    #[tokio::test]
    async fn a_list_out_of_order_is_noticed_and_read_whole() {
        let mixed = ["v/a/root", "v/c/root", "v/a-b/root", "v/b/root"];
        let found = first_of_ordered(list(&mixed, false), "", 4).await;
        assert_eq!(found.unwrap(), None);
        let found = first_of_all(list(&mixed, false), "v/a-b/root", 2).await;
        assert_eq!(keys(found.unwrap()), ["v/a/root", "v/b/root"]);
    }
}
