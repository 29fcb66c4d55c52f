//! Handles the loss of mapped pages: the file was truncated, or the disk failed.
//!
//! The kernel then sends SIGBUS to the reading thread, which would end the process. [`watch`] registers a map whose
//! reader can handle the loss. For such a map the handler records in [`MapState`] that pages were lost, maps zeros in
//! their place, and lets the reader continue. A reader of such a map therefore verifies what it read, and then checks
//! in the state that it was still the file's.
//!
//! 1. The state is set before the first zero is visible. A reader that saw one and checks afterwards is informed.
//! 2. A fault at any other address has the same effect as without this module: the previous handler receives it.
//! 3. The handler takes no lock and allocates nothing. It walks a list that only grows and whose entries are reused.
//!
//! This does not detect that a file was overwritten in place: only checksums do.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The state of the maps of one version. The SIGBUS handler also writes it.
#[derive(Default)]
pub struct MapState(AtomicU8);

/// All pages were in the page cache at the last check.
const RESIDENT: u8 = 1;
/// Pages were lost; this is permanent.
const LOST: u8 = 2;

impl MapState {
    /// Returns whether all pages were in the page cache at the last check, and none was lost since.
    #[inline]
    pub fn is_resident(&self) -> bool {
        self.0.load(Ordering::Relaxed) == RESIDENT
    }

    pub fn set_resident(&self, resident: bool) {
        if resident {
            self.0.fetch_or(RESIDENT, Ordering::Relaxed)
        } else {
            self.0.fetch_and(!RESIDENT, Ordering::Relaxed)
        };
    }

    /// Returns false after a page of any of the maps was lost. Data read from them before the call is then
    /// invalid, even if its checksum matched.
    #[inline]
    pub fn is_intact(&self) -> bool {
        // Orders the caller's reads of the map before this load.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) & LOST == 0
    }

    fn mark_lost(&self) {
        self.0.fetch_or(LOST, Ordering::SeqCst);
    }
}

/// A watched map. Dropping this ends the watch.
pub struct MapWatch {
    slot: &'static Slot,
    _state: Arc<MapState>,
}

/// Watches the map of `size` bytes at `start`.
///
/// # Safety
/// The map must be readable, owned by the holder of the result, and mapped until the result is dropped. Its readers
/// must expect zeros where pages were lost.
pub unsafe fn watch(start: *const u8, size: usize, state: Arc<MapState>) -> MapWatch {
    install();
    let free = free_slots().pop();
    let slot = free.unwrap_or_else(Slot::append);
    let end = (start as usize + size).next_multiple_of(page_size());
    slot.set(start as usize, end, Arc::as_ptr(&state).cast_mut());
    MapWatch {
        slot,
        _state: state,
    }
}

impl Drop for MapWatch {
    fn drop(&mut self) {
        self.slot.set(0, 0, ptr::null_mut());
        free_slots().push(self.slot);
    }
}

/// An entry in the list of watched maps. It may be empty, and is never freed.
struct Slot {
    /// A sequence lock: odd while the fields below change.
    sequence: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    state: AtomicPtr<MapState>,
    next: *const Slot,
}

// SAFETY: `next` is set before the slot is shared, and its target is never freed. The rest is atomic.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

static FIRST: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// Empty slots. Appending a slot requires this lock, too.
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

fn free_slots() -> std::sync::MutexGuard<'static, Vec<&'static Slot>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    fn append() -> &'static Slot {
        let _one_at_a_time = free_slots();
        let slot = Box::leak(Box::new(Slot {
            sequence: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            state: AtomicPtr::new(ptr::null_mut()),
            next: FIRST.load(Ordering::Relaxed),
        }));
        FIRST.store(slot, Ordering::Release);
        slot
    }

    /// Sets the fields. Only for the thread that took the slot from the free list or appended it.
    fn set(&self, start: usize, end: usize, state: *mut MapState) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.state.store(state, Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// Returns the end of the map and its state, if the map contains `address`. A slot that changes concurrently
    /// belongs to another map, because a reader's map stays watched.
    fn covers(&self, address: usize) -> Option<(usize, *const MapState)> {
        let before = self.sequence.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let unchanged = before.is_multiple_of(2) && before == self.sequence.load(Ordering::Relaxed);
        (unchanged && (start..end).contains(&address)).then_some((end, state.cast_const()))
    }
}

static PREVIOUS_HANDLER: OnceLock<libc::sigaction> = OnceLock::new();
static PAGE_SIZE: AtomicUsize = AtomicUsize::new(0);

fn page_size() -> usize {
    PAGE_SIZE.load(Ordering::Relaxed)
}

/// Installs the SIGBUS handler, once.
fn install() {
    PREVIOUS_HANDLER.get_or_init(|| {
        // SAFETY: queries a constant.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE_SIZE.store(usize::try_from(size).unwrap_or(4096), Ordering::Relaxed);
        // SAFETY: all zeros is a valid `sigaction`; the call fills it in.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only queries, into a local variable.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) };
        before
    });
    static TAKEN: OnceLock<()> = OnceLock::new();
    TAKEN.get_or_init(|| {
        // SAFETY: as above; all relevant fields are set below.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_bus_fault;
        action.sa_sigaction = handler as libc::sighandler_t;
        // Uses the alternative stack, which a previous handler may need.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO requires and is async-signal-safe, and `PREVIOUS_HANDLER`,
        // which it reads, is set.
        unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
    });
}

extern "C" fn on_bus_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid `info` to a handler with SA_SIGINFO. For SIGBUS with a positive code, which
    // only the kernel can send, the address is set. `errno` is thread-local.
    let (is_fault, address, errno) = unsafe {
        let is_fault = (*info).si_code > 0;
        (
            is_fault,
            (*info).si_addr() as usize,
            libc::__errno_location(),
        )
    };
    // SAFETY: as above.
    let errno_before = unsafe { *errno };
    if is_fault && replace_lost_pages(address) {
        // SAFETY: as above.
        unsafe { *errno = errno_before };
        return;
    }
    forward_signal(signal, info, context);
}

/// Maps zeros from the page of `address` to the end of the watched map that contains it; returns false if there is
/// none.
fn replace_lost_pages(address: usize) -> bool {
    let mut next: *const Slot = FIRST.load(Ordering::Acquire);
    // SAFETY: slots are never freed, and were initialized before they were added to the list.
    while let Some(slot) = unsafe { next.as_ref() } {
        next = slot.next;
        let Some((end, state)) = slot.covers(address) else {
            continue;
        };
        // SAFETY: this thread is reading the map, so it is still watched, and `MapWatch` keeps its state alive.
        unsafe { (*state).mark_lost() };
        let page = address & !(page_size() - 1);
        // SAFETY: the range is the end of a map whose readers expect zeros there. mmap is a plain system call here.
        let put = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                end - page,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        return put != libc::MAP_FAILED;
    }
    false
}

/// Does what would happen without this module.
fn forward_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = PREVIOUS_HANDLER.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let flags = before.map_or(0, |before| before.sa_flags);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: both calls are async-signal-safe. The process ends when this handler returns: the signal is blocked
        // until then.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    } else if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: a handler installed with SA_SIGINFO has this signature.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: a handler installed without SA_SIGINFO has this signature.
        let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::os::unix::process::ExitStatusExt;

    use memmap2::{Mmap, MmapOptions};

    use super::*;

    const PAGES: usize = 8;

    fn mapped() -> (File, Mmap) {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&vec![7; PAGES * 4096], 0)
            .expect("written");
        // SAFETY: the tests below truncate the file on purpose; they use volatile reads, and watch the map where they
        // expect zeros.
        let map = unsafe { MmapOptions::new().map(&file) }.expect("mapped");
        (file, map)
    }

    fn read(map: &Mmap, at: usize) -> u8 {
        // SAFETY: within the map. Volatile, so that every read accesses memory.
        unsafe { map.as_ptr().add(at).read_volatile() }
    }

    fn watched(map: &Mmap) -> (Arc<MapState>, MapWatch) {
        let state = Arc::new(MapState::default());
        // SAFETY: the tests drop the map last.
        let watched = unsafe { watch(map.as_ptr(), map.len(), state.clone()) };
        (state, watched)
    }

    #[test]
    fn lost_pages_read_as_zeros_and_mark_their_version() {
        let ((cut, map), (_kept, neighbour)) = (mapped(), mapped());
        let ((state, _watched), (other, _other)) = (watched(&map), watched(&neighbour));
        state.set_resident(true);
        cut.set_len(3 * 4096 + 5).expect("cut");
        assert_eq!((read(&map, 3 * 4096 + 4), read(&map, 3 * 4096 + 5)), (7, 0));
        assert!(
            state.is_intact(),
            "the page that is cut within is still there"
        );
        assert_eq!(read(&map, 4 * 4096), 0);
        assert!(!state.is_intact() && !state.is_resident());
        assert_eq!((read(&map, 0), read(&map, PAGES * 4096 - 1)), (7, 0));
        state.set_resident(true);
        assert!(!state.is_resident(), "lost pages stay lost");
        assert!(other.is_intact());
        assert_eq!(read(&neighbour, PAGES * 4096 - 1), 7);
    }

    #[test]
    fn maps_are_added_and_removed_during_reads() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let (file, map) = mapped();
                        let (state, watched) = watched(&map);
                        file.set_len(0).expect("cut");
                        assert_eq!(read(&map, 4096), 0);
                        assert!(!state.is_intact());
                        drop(watched);
                    }
                });
            }
        });
        let kept = free_slots().len();
        assert!(kept <= 64, "places are used again: {kept}");
    }

    const CHILD: &str = "LARDER_TEST_UNWATCHED_FAULT";

    /// Run by the test below in a process of its own, which this ends.
    #[test]
    fn a_fault_in_an_unwatched_map() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let ((_kept, map), (cut, unwatched)) = (mapped(), mapped());
        let _watched = watched(&map);
        cut.set_len(0).expect("cut");
        println!("read {}", read(&unwatched, 4096));
    }

    #[test]
    fn a_fault_elsewhere_ends_the_process() {
        let output = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "--nocapture"])
            .arg("version::bus_fault::tests::a_fault_in_an_unwatched_map")
            .env(CHILD, "1")
            .output()
            .expect("this program runs");
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }
}
