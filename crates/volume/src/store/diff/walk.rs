//! From the nodes of both sides of a diff to the pages that are to be compared, in the order of the volume.
//!
//! What both sides name in common is passed over without being read. It ends when it has as many ranges as were
//! asked for.

use std::sync::Arc;

use crate::driver::ComputeKind;
use crate::engine::Engine;
use crate::error::OpenError;
use crate::jobs::join_all;
use crate::map::index::NODE_SECTORS;
use crate::object::node::Node;
use crate::object::page::{BlockRef, PAGE_SECTORS, Page, ROW_BYTES};
use crate::store::diff::compare::{
    ChangedSpan, compare, deltas_differ, needs_base, page_runs, push,
};
use crate::store::diff::side::Side;
use crate::units::Span;

/// Nodes of each side that are read side by side.
const NODES_AT_ONCE: usize = 32;
/// Pages of each side. A client's fetch may have to wait for as many reads.
const PAGES_AT_ONCE: usize = 64;

/// What a walk came to.
pub(super) enum WalkResult {
    /// What differs, and where the next part begins.
    Changed {
        changed: Vec<ChangedSpan>,
        next: Option<u64>,
    },
    /// Something that is named is not to be had.
    Unreadable(OpenError),
}

/// A page of which the sides may hold different things, and where its base is if that can be seen.
#[derive(Clone, Copy)]
struct PagePlan {
    number: u64,
    from: Option<BlockRef>,
    to: Option<BlockRef>,
}

/// Pages of both sides, with what there is to compare of each.
type LoadedPage = (Span, Option<Arc<Page>>, Option<Arc<Page>>);

/// Why a walk ends before its end.
enum Stop {
    Unreadable(OpenError),
    Failed(OpenError),
}

impl From<OpenError> for Stop {
    fn from(error: OpenError) -> Stop {
        Stop::Failed(error)
    }
}

pub(super) struct Walk<'a> {
    engine: &'a Engine,
    from: &'a Side,
    to: &'a Side,
    at: u64,
    ranges_max: usize,
    changed: Vec<ChangedSpan>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        from: &'a Side,
        to: &'a Side,
        begin: u64,
        ranges_max: usize,
    ) -> Walk<'a> {
        Walk {
            engine,
            from,
            to,
            at: begin,
            ranges_max,
            changed: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<WalkResult, OpenError> {
        let end = self.to.sectors();
        let mut nodes_at_once = 1;
        while self.at < end && self.changed.len() <= self.ranges_max {
            match self.walk_nodes(end, nodes_at_once).await {
                Ok(()) => {}
                Err(Stop::Unreadable(error)) => return Ok(WalkResult::Unreadable(error)),
                Err(Stop::Failed(error)) => return Err(error),
            }
            // A short list costs few reads, and a long one does not wait for each node by itself.
            nodes_at_once = (2 * nodes_at_once).min(NODES_AT_ONCE);
        }
        let mut next = (self.at < end).then_some(self.at);
        if let Some(beyond) = self.changed.get(self.ranges_max) {
            next = Some(beyond.span.start);
            self.changed.truncate(self.ranges_max);
        }
        Ok(WalkResult::Changed {
            changed: self.changed,
            next,
        })
    }

    /// Goes on until so many nodes were compared in which something may differ.
    async fn walk_nodes(&mut self, end: u64, at_once: usize) -> Result<(), Stop> {
        let (mut differing, mut to) = (Vec::new(), self.at);
        while to < end && differing.len() < at_once {
            let number = to / NODE_SECTORS;
            let node = Span::new(number * NODE_SECTORS, NODE_SECTORS);
            let span = Span {
                start: to,
                end: node.end.min(end),
            };
            if self.may_differ(number, span).await? {
                differing.push((number, span));
            }
            to = span.end;
        }
        let mut plans = Vec::new();
        let nodes = self.load_nodes(&differing).await?;
        for ((_, span), [from, to]) in differing.into_iter().zip(nodes) {
            plans.extend(self.plan_pages(span, from, to).await?);
        }
        let span = Span {
            start: self.at,
            end: to,
        };
        for plans in plans.chunks(PAGES_AT_ONCE) {
            self.walk_pages(span, plans).await?;
            if self.changed.len() > self.ranges_max {
                return Ok(());
            }
        }
        self.at = to;
        Ok(())
    }

    async fn may_differ(&self, number: u64, span: Span) -> Result<bool, OpenError> {
        let (from, to) = (self.from.nodes.get(&number), self.to.nodes.get(&number));
        let has_deltas = !self.from.layers.is_empty() || !self.to.layers.is_empty();
        let is_same = from == to && !canary::active!("diff_reads_what_is_shared");
        let has_deltas = has_deltas && !canary::active!("diff_forgets_deltas");
        Ok(!is_same || (has_deltas && self.deltas_differ(span).await?))
    }

    async fn deltas_differ(&self, span: Span) -> Result<bool, OpenError> {
        let (from, to) = (self.from.layers.clone(), self.to.layers.clone());
        let work = move || deltas_differ(&from, &to, span);
        let port = &self.engine.port;
        Ok(port
            .compute(ComputeKind::Merge, self.delta_bytes(), work)
            .await?)
    }

    /// About what a look through the deltas reads.
    fn delta_bytes(&self) -> u64 {
        let layers = self.from.layers.iter().chain(&self.to.layers);
        layers.map(|layer| layer.len() as u64).sum::<u64>() * ROW_BYTES as u64
    }

    /// The nodes of both sides, read side by side.
    async fn load_nodes(
        &self,
        wanted: &[(u64, Span)],
    ) -> Result<Vec<[Option<Arc<Node>>; 2]>, Stop> {
        let sides = [self.from, self.to];
        let loads = wanted.iter().flat_map(|(number, _)| {
            sides.map(|side| Box::pin(self.load_node(side, *number, side.nodes.get(number))))
        });
        let loaded = join_all(loads.collect()).await.into_iter();
        let loaded = loaded.collect::<Result<Vec<_>, Stop>>()?;
        let pairs = loaded.chunks_exact(2);
        Ok(pairs
            .map(|pair| [pair[0].clone(), pair[1].clone()])
            .collect())
    }

    async fn load_node(
        &self,
        side: &Side,
        number: u64,
        block: Option<&BlockRef>,
    ) -> Result<Option<Arc<Node>>, Stop> {
        let Some(block) = block else {
            return Ok(None);
        };
        let read = side.read_node(self.engine, number, *block).await?;
        read.map(Some).map_err(|why| unreadable(side, &why))
    }

    async fn plan_pages(
        &self,
        span: Span,
        from: Option<Arc<Node>>,
        to: Option<Arc<Node>>,
    ) -> Result<Vec<PagePlan>, OpenError> {
        let (older, newer) = (self.from.layers.clone(), self.to.layers.clone());
        let plan = move || {
            let page_of = |node: &Option<Arc<Node>>, number| {
                let found = node.as_ref().and_then(|node| node.page_from(number));
                found.filter(|(found, _)| *found == number)
            };
            let numbers = span.start / PAGE_SECTORS..=(span.end - 1) / PAGE_SECTORS;
            let plan = |number| {
                let page = page_span(number).intersect(span);
                let (from, to) = (page_of(&from, number), page_of(&to, number));
                let is_same = from == to && !canary::active!("diff_reads_what_is_shared");
                if is_same && !deltas_differ(&older, &newer, page) {
                    return None;
                }
                let seen = |layers, block: Option<(u64, BlockRef)>| {
                    let block = block.map(|(_, block)| block);
                    block.filter(|_| needs_base(layers, page))
                };
                Some(PagePlan {
                    number,
                    from: seen(&older, from),
                    to: seen(&newer, to),
                })
            };
            numbers.filter_map(plan).collect()
        };
        let port = &self.engine.port;
        Ok(port
            .compute(ComputeKind::Merge, self.delta_bytes(), plan)
            .await?)
    }

    /// Compares a few pages, which are read side by side.
    async fn walk_pages(&mut self, span: Span, plans: &[PagePlan]) -> Result<(), Stop> {
        let of = |block: fn(&PagePlan) -> Option<BlockRef>| {
            let pages = plans.iter().map(|plan| (plan.number, block(plan)));
            pages.collect()
        };
        let from = self.load_pages(self.from, of(|plan| plan.from));
        let to = self.load_pages(self.to, of(|plan| plan.to));
        let mut sides = join_all(vec![Box::pin(from), Box::pin(to)])
            .await
            .into_iter();
        let (Some(from), Some(to)) = (sides.next(), sides.next()) else {
            return Err(Stop::Failed(OpenError::Internal(
                "a side's pages were not read".to_owned(),
            )));
        };
        let loaded = plans.iter().zip(from?.into_iter().zip(to?));
        let loaded: Vec<LoadedPage> = loaded
            .map(|(plan, (from, to))| (page_span(plan.number).intersect(span), from, to))
            .collect();
        self.compare_pages(loaded).await
    }

    /// Pages of a side, where it is wanted.
    async fn load_pages(
        &self,
        side: &Side,
        pages: Vec<(u64, Option<BlockRef>)>,
    ) -> Result<Vec<Option<Arc<Page>>>, Stop> {
        let wanted = pages
            .iter()
            .filter_map(|(number, block)| Some((*number, (*block)?)));
        let wanted: Vec<(u64, BlockRef)> = wanted.collect();
        let mut read = side.read_pages(self.engine, &wanted).await?.into_iter();
        let page = |(_, block): (u64, Option<BlockRef>)| {
            let read = block.and_then(|_| read.next());
            read.transpose().map_err(|why| unreadable(side, &why))
        };
        pages.into_iter().map(page).collect()
    }

    async fn compare_pages(&mut self, loaded: Vec<LoadedPage>) -> Result<(), Stop> {
        let Some(end) = loaded.last().map(|(span, ..)| span.end) else {
            return Ok(());
        };
        let (older, newer) = (self.from.layers.clone(), self.to.layers.clone());
        let rows = loaded.iter().flat_map(|(_, from, to)| [from, to]);
        let bytes: u64 = rows.flatten().map(|page| page.memory_bytes()).sum();
        let work = move || {
            let mut changed = Vec::new();
            for (span, from, to) in loaded {
                let before = page_runs(&older, from.as_deref(), span);
                let after = page_runs(&newer, to.as_deref(), span);
                compare(&before, &after, &mut changed)?;
            }
            Ok(changed)
        };
        let port = &self.engine.port;
        let compared: Result<Vec<ChangedSpan>, Span> = port
            .compute(ComputeKind::Merge, bytes, work)
            .await
            .map_err(OpenError::from)?;
        let changed = compared.map_err(|span| {
            let why = format!(
                "a pack that has bytes {} to {} cannot be read",
                span.start * blkmq::io::SECTOR_BYTES,
                span.end * blkmq::io::SECTOR_BYTES
            );
            unreadable(self.to, &why)
        })?;
        for ChangedSpan { span, is_zeroed } in changed {
            push(&mut self.changed, span, is_zeroed);
        }
        self.at = end;
        Ok(())
    }
}

fn page_span(number: u64) -> Span {
    Span::new(number * PAGE_SECTORS, PAGE_SECTORS)
}

fn unreadable(side: &Side, why: &str) -> Stop {
    let name = side.name();
    Stop::Unreadable(OpenError::Corrupt(format!(
        "what differs in {name} cannot be told: {why}; `firn check {name}` says what is damaged"
    )))
}
