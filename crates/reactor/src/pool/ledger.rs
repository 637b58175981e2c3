//! A pool's books: what it lent, to which holder and against which bound, and the regions that come
//! back to it.
//!
//! Invariant: every byte that the pool allocated is lent within the bounds, lent beyond them, kept
//! for reuse, or the reserve. A region and its pool refer to each other, so both are here.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use super::accounts::Accounts;
use crate::aligned::{AlignedMemory, BUF_ALIGN};

/// Size classes are powers of two times [`BUF_ALIGN`]; the largest is 64 MiB.
pub(super) const CLASSES: usize = 15;

/// Returned memory that is kept for the next request instead of given back to the system: enough
/// for a deep queue of 1 MiB requests, little for an idle server.
pub(super) const KEPT_BYTES_MAX: usize = 16 << 20;

/// What memory is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferPurpose {
    /// A request that holds no memory yet, and gives this back without waiting for anything else.
    Fresh,
    /// The same, but held for as long as the device makes the request wait (a log without space).
    /// Each holder gets a part of the bytes, and one buffer in any case.
    Held,
    /// The same for a client that may be slow to send what goes into the buffer. There may be any
    /// number of clients, so a client gets one buffer in any case only while all such buffers
    /// together are below a bound of their own, or while no other client has one.
    Client,
    /// A request that holds memory and needs this to finish. May use the reserve; holds no other
    /// buffer obtained for this need while it waits.
    Progress,
}

/// Memory that several buffers may share. It returns to its pool when the last of them is dropped,
/// or is freed where it has none.
pub(crate) struct Region {
    /// There until the value is dropped.
    memory: ManuallyDrop<AlignedMemory>,
    loan: Option<Loan>,
}

/// Where a region returns to. It stays with the region while that is kept for reuse.
struct Loan {
    pool: Weak<Mutex<Ledger>>,
    kind: LoanKind,
    holder: u64,
}

/// Which bound a loan counts against.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LoanKind {
    Ordinary,
    Held,
    Beyond,
    BeyondClient,
    Reserve,
}

impl Region {
    /// Memory without a pool.
    pub(crate) fn new(memory: AlignedMemory) -> Region {
        Region {
            memory: ManuallyDrop::new(memory),
            loan: None,
        }
    }

    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Whether a pool takes it back.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.loan.is_some()
    }

    /// Whether it goes anywhere but to `pool` or the allocator.
    pub(super) fn is_foreign_to(&self, pool: &Arc<Mutex<Ledger>>) -> bool {
        let ours = |loan: &Loan| std::ptr::eq(loan.pool.as_ptr(), Arc::as_ptr(pool));
        self.memory.is_foreign() || self.loan.as_ref().is_some_and(|loan| !ours(loan))
    }

    /// Records the bound and the holder that this was lent for.
    #[inline]
    pub(super) fn set_loan(&mut self, pool: &Arc<Mutex<Ledger>>, kind: LoanKind, holder: u64) {
        match &mut self.loan {
            Some(loan) => (loan.kind, loan.holder) = (kind, holder),
            none => {
                *none = Some(Loan {
                    pool: Arc::downgrade(pool),
                    kind,
                    holder,
                });
            }
        }
    }

    /// Gives a region without users back to its pool. The `Arc` is kept with it, so that neither is
    /// allocated again for the next request.
    #[inline]
    pub(crate) fn give_back(region: Arc<Region>) {
        let Some(loan) = &region.loan else {
            return;
        };
        let (kind, holder) = (loan.kind, loan.holder);
        if let Some(pool) = loan.pool.upgrade() {
            return_region(&pool, region, kind, holder);
        } else {
            free(region);
        }
    }
}

impl Drop for Region {
    /// The last buffer usually gives the region back before this (`Buf::drop`). It cannot where two
    /// are dropped at once on two threads and each still sees the other.
    fn drop(&mut self) {
        // SAFETY: the value is being dropped, and its memory is not used through it after this.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        // A pool that is gone leaves the memory to the allocator.
        if let Some(loan) = self.loan.take()
            && let Some(pool) = loan.pool.upgrade()
        {
            let region = Arc::new(Region::new(memory));
            return_region(&pool, region, loan.kind, loan.holder);
        }
    }
}

fn return_region(pool: &Mutex<Ledger>, region: Arc<Region>, kind: LoanKind, holder: u64) {
    let mut ledger = lock(pool);
    let surplus = ledger.take_back(region, kind, holder);
    let watch = ledger.watch.take();
    drop(ledger);
    if let Some(region) = surplus {
        free(region);
    }
    if let Some(waker) = watch {
        waker.wake();
    }
}

/// Frees a region instead of keeping it.
#[cold]
fn free(mut region: Arc<Region>) {
    if let Some(whole) = Arc::get_mut(&mut region) {
        whole.loan = None;
    }
}

/// A pool's books.
pub(super) struct Ledger {
    pub(super) bytes_max: usize,
    /// Bytes that the pool has from the allocator, without the reserve.
    allocated: usize,
    /// Bytes lent within the bounds.
    pub(super) lent: usize,
    /// The part of `lent` that is lent for [`BufferPurpose::Held`] and [`BufferPurpose::Client`], and its bound.
    held: usize,
    held_max: usize,
    /// Bytes lent beyond the bounds, and those of them that clients have.
    pub(super) beyond: usize,
    beyond_clients: usize,
    /// How much of all these each holder has.
    pub(super) accounts: Accounts,
    pub(super) kept: usize,
    pub(super) reserve_len: usize,
    /// Regions kept for reuse, by class; these are their only references.
    free: [Vec<Arc<Region>>; CLASSES],
    pub(super) reserve: Option<Arc<Region>>,
    /// The system had no memory when it was last asked.
    pub(super) short: bool,
    /// Woken by the next buffer that comes back, where a source waits for one.
    pub(super) watch: Option<Waker>,
}

#[inline]
pub(super) fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    // Every change under the lock is complete before anything can panic.
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The class that holds `len` bytes and its size.
#[inline]
pub(super) fn class_of(len: usize) -> Option<(usize, usize)> {
    let size = len.max(BUF_ALIGN).checked_next_power_of_two()?;
    let class = (size / BUF_ALIGN).trailing_zeros() as usize;
    (class < CLASSES).then_some((class, size))
}

impl Ledger {
    pub(super) fn new(bytes_max: usize, reserve_bytes: usize) -> Option<Ledger> {
        // Untouched pages of the reserve cost no memory until it is needed.
        let (_, reserve_size) = class_of(reserve_bytes)?;
        let bytes_max = bytes_max.max(reserve_size);
        let reserve = Region::new(AlignedMemory::allocate(reserve_size)?);
        Some(Ledger {
            bytes_max,
            allocated: 0,
            lent: 0,
            held: 0,
            held_max: (bytes_max / 2).min(bytes_max - reserve_size),
            beyond: 0,
            beyond_clients: 0,
            accounts: Accounts::default(),
            reserve_len: reserve_size,
            kept: 0,
            free: std::array::from_fn(|_| Vec::new()),
            reserve: Some(Arc::new(reserve)),
            short: false,
            watch: None,
        })
    }

    /// Lends a region of a class, where the bounds allow.
    pub(super) fn lend(
        &mut self,
        class: usize,
        size: usize,
        need: BufferPurpose,
        holder: u64,
    ) -> Option<(Arc<Region>, LoanKind)> {
        let kind = self.find_kind(size, need, holder)?;
        let region = match self.free[class].pop() {
            Some(region) => {
                self.kept -= size;
                region
            }
            None => self.allocate(size)?,
        };
        match kind {
            LoanKind::Ordinary | LoanKind::Reserve => self.lent += size,
            LoanKind::Held => (self.lent, self.held) = (self.lent + size, self.held + size),
            LoanKind::Beyond => self.beyond += size,
            LoanKind::BeyondClient => {
                self.beyond += size;
                self.beyond_clients += size;
            }
        }
        if kind != LoanKind::Ordinary {
            self.accounts.add(holder, size);
        }
        Some((region, kind))
    }

    fn allocate(&mut self, size: usize) -> Option<Arc<Region>> {
        let memory = AlignedMemory::allocate(size);
        self.short = memory.is_none();
        let region = Region::new(memory?);
        self.allocated += size;
        Some(Arc::new(region))
    }

    /// The bound against which so many bytes can be lent now, if any allows them.
    fn find_kind(&self, size: usize, need: BufferPurpose, holder: u64) -> Option<LoanKind> {
        let fits = self.lent + size <= self.bytes_max;
        if matches!(need, BufferPurpose::Fresh | BufferPurpose::Progress) {
            return fits.then_some(LoanKind::Ordinary);
        }
        let own = self.accounts.of(holder);
        if fits && own + size <= self.held_max - self.held {
            return Some(LoanKind::Held);
        }
        match need {
            _ if own > 0 => None,
            BufferPurpose::Client
                if self.beyond_clients > 0 && self.beyond_clients + size > self.held_max =>
            {
                None
            }
            BufferPurpose::Client => Some(LoanKind::BeyondClient),
            _ => Some(LoanKind::Beyond),
        }
    }

    /// Lends the reserve, where it is here and large enough.
    pub(super) fn lend_reserve(&mut self, len: usize) -> Option<Arc<Region>> {
        self.reserve.take_if(|reserve| reserve.capacity() >= len)
    }

    /// Takes a region back; returns it where it is not kept.
    fn take_back(
        &mut self,
        region: Arc<Region>,
        kind: LoanKind,
        holder: u64,
    ) -> Option<Arc<Region>> {
        let size = region.capacity();
        match kind {
            LoanKind::Reserve => {
                self.reserve = Some(region);
                return None;
            }
            LoanKind::Ordinary => self.lent -= size,
            LoanKind::Held => (self.lent, self.held) = (self.lent - size, self.held - size),
            LoanKind::Beyond => self.beyond -= size,
            LoanKind::BeyondClient => {
                self.beyond -= size;
                self.beyond_clients -= size;
            }
        }
        if kind != LoanKind::Ordinary {
            self.accounts.take(holder, size);
        }
        match class_of(size) {
            Some((class, _)) if self.kept + size <= KEPT_BYTES_MAX => {
                self.kept += size;
                self.free[class].push(region);
                None
            }
            _ => {
                self.allocated -= size;
                Some(region)
            }
        }
    }

    /// Panics where the books do not add up.
    pub(super) fn assert_invariants(&self) {
        let by_class = self.free.iter().enumerate();
        let free: usize = by_class
            .map(|(class, regions)| regions.len() * (BUF_ALIGN << class))
            .sum();
        assert_eq!(free, self.kept, "bytes kept for reuse");
        assert_eq!(
            self.lent + self.beyond + self.kept,
            self.allocated,
            "bytes lent within and beyond the bounds and bytes kept, against bytes allocated"
        );
        assert!(self.lent <= self.bytes_max, "lent within the bounds");
        assert!(self.held <= self.lent && self.held <= self.held_max, "held");
        assert!(self.beyond_clients <= self.beyond, "beyond, for clients");
        assert!(self.kept <= KEPT_BYTES_MAX, "kept");
    }
}
