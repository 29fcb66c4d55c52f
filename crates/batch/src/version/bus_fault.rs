//! What happens when a mapped page cannot be read: its file was cut, or the disk failed.
//!
//! The kernel then sends SIGBUS to the thread that read, which would end the process. [`watch`] names a map whose
//! reader can live with the loss. Of such a map the handler says in [`MapState`] that pages were lost, puts zeros in
//! their place, and lets the reader go on. Whoever reads such a map therefore checks what it found, and then asks
//! the state whether that was still the file's.
//!
//! 1. The state says so before the first zero can be seen. A reader that saw one and asks afterwards learns of it.
//! 2. A fault at any other address is what it would be without this module: the handler that was there before gets it.
//! 3. The handler takes no lock and no memory. It walks a list that only grows, whose entries are used again.
//!
//! What a map cannot tell is that its file was overwritten in place: only checksums find that.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What is known of the maps of one version. The handler of SIGBUS writes it, too.
#[derive(Default)]
pub struct MapState(AtomicU8);

/// All was in the page cache when last looked.
const RESIDENT: u8 = 1;
/// Pages were lost; this never changes back.
const LOST: u8 = 2;

impl MapState {
    /// Whether all was in the page cache when last looked, and nothing was lost since.
    #[inline]
    pub fn is_resident(&self) -> bool {
        self.0.load(Ordering::Relaxed) == RESIDENT
    }

    pub fn set_resident(&self, resident: bool) {
        match resident {
            true => self.0.fetch_or(RESIDENT, Ordering::Relaxed),
            false => self.0.fetch_and(!RESIDENT, Ordering::Relaxed),
        };
    }

    /// False once a page of any of the maps was lost. What was read of them before the call is then not to be trusted,
    /// however it was checked.
    #[inline]
    pub fn is_whole(&self) -> bool {
        // What the caller read of the map, it read before this load.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) & LOST == 0
    }

    fn lose(&self) {
        self.0.fetch_or(LOST, Ordering::SeqCst);
    }
}

/// A map that is watched. Dropped, it is not any more.
pub struct Watched {
    slot: &'static Slot,
    _state: Arc<MapState>,
}

/// Watches the map of `size` bytes at `start`.
///
/// # Safety
/// The map is readable, private to whoever holds the result, and stays until the result is dropped. Its readers
/// expect zeros where pages were lost.
pub unsafe fn watch(start: *const u8, size: usize, state: Arc<MapState>) -> Watched {
    install();
    let free = free_slots().pop();
    let slot = free.unwrap_or_else(Slot::append);
    let end = (start as usize + size).next_multiple_of(page_size());
    slot.set(start as usize, end, Arc::as_ptr(&state).cast_mut());
    Watched {
        slot,
        _state: state,
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.slot.set(0, 0, ptr::null_mut());
        free_slots().push(self.slot);
    }
}

/// A place in the list of watched maps. It may stand empty, and is never freed.
struct Slot {
    /// Odd while the fields below change.
    sequence: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    state: AtomicPtr<MapState>,
    next: *const Slot,
}

// SAFETY: `next` is set before the slot is shared, and what it points to is never freed. The rest is atomic.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}

static FIRST: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// Slots that stand empty. Who appends holds this lock, too.
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

    /// Only for who took the slot from the free ones, or appended it.
    fn set(&self, start: usize, end: usize, state: *mut MapState) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.state.store(state, Ordering::Relaxed);
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// Where the map ends and its state, if it holds `address`. A slot that changes meanwhile is of another map: that
    /// of a reader stays watched.
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

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static PAGE_SIZE: AtomicUsize = AtomicUsize::new(0);

fn page_size() -> usize {
    PAGE_SIZE.load(Ordering::Relaxed)
}

/// Takes over SIGBUS, once.
fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: asks for a number.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE_SIZE.store(usize::try_from(size).unwrap_or(4096), Ordering::Relaxed);
        // SAFETY: all zeros is a `sigaction` that says nothing; the call fills it in.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks, into a place of ours.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) };
        before
    });
    static TAKEN: OnceLock<()> = OnceLock::new();
    TAKEN.get_or_init(|| {
        // SAFETY: as above; every field that matters is set below.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_bus_fault;
        action.sa_sigaction = handler as libc::sighandler_t;
        // On the alternative stack, where a handler before us may need to be.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, does only what a handler may, and `BEFORE`,
        // which it reads, is set.
        unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
    });
}

extern "C" fn on_bus_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid `info`; of SIGBUS with a code above 0, which only the
    // kernel can send, its address is set. `errno` is this thread's own.
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
    if is_fault && replace(address) {
        // SAFETY: as above.
        unsafe { *errno = errno_before };
        return;
    }
    pass_on(signal, info, context);
}

/// Puts zeros from the page of `address` to the end of the watched map that holds it; false if none does.
fn replace(address: usize) -> bool {
    let mut next: *const Slot = FIRST.load(Ordering::Acquire);
    // SAFETY: slots are never freed, and were whole when they were put into the list.
    while let Some(slot) = unsafe { next.as_ref() } {
        next = slot.next;
        let Some((end, state)) = slot.covers(address) else {
            continue;
        };
        // SAFETY: this thread is reading the map, so it is still watched, and `Watched` keeps its state.
        unsafe { (*state).lose() };
        let page = address & !(page_size() - 1);
        // SAFETY: the range is the end of a map whose readers expect zeros there. mmap is one system call here.
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

/// Does what would have been done without us.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let flags = before.map_or(0, |before| before.sa_flags);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: both calls are among those that a handler may make. The process ends when this handler returns: the
        // signal is held back until then.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    } else if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: whoever installed it said by SA_SIGINFO that it has this signature.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO it has this one.
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
        // SAFETY: the tests below cut the file on purpose; they read volatile, and watched where they expect zeros.
        let map = unsafe { MmapOptions::new().map(&file) }.expect("mapped");
        (file, map)
    }

    fn read(map: &Mmap, at: usize) -> u8 {
        // SAFETY: within the map. Volatile, so that it is read each time.
        unsafe { map.as_ptr().add(at).read_volatile() }
    }

    fn watched(map: &Mmap) -> (Arc<MapState>, Watched) {
        let state = Arc::new(MapState::default());
        // SAFETY: the tests drop the map last.
        let watched = unsafe { watch(map.as_ptr(), map.len(), state.clone()) };
        (state, watched)
    }

    #[test]
    fn lost_pages_read_as_zeros_and_their_version_knows_it() {
        let ((cut, map), (_kept, neighbour)) = (mapped(), mapped());
        let ((state, _watched), (other, _other)) = (watched(&map), watched(&neighbour));
        state.set_resident(true);
        cut.set_len(3 * 4096 + 5).expect("cut");
        assert_eq!((read(&map, 3 * 4096 + 4), read(&map, 3 * 4096 + 5)), (7, 0));
        assert!(
            state.is_whole(),
            "the page that is cut within is still there"
        );
        assert_eq!(read(&map, 4 * 4096), 0);
        assert!(!state.is_whole() && !state.is_resident());
        assert_eq!((read(&map, 0), read(&map, PAGES * 4096 - 1)), (7, 0));
        state.set_resident(true);
        assert!(!state.is_resident(), "what was lost stays lost");
        assert!(other.is_whole());
        assert_eq!(read(&neighbour, PAGES * 4096 - 1), 7);
    }

    #[test]
    fn maps_come_and_go_while_others_are_read() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let (file, map) = mapped();
                        let (state, watched) = watched(&map);
                        file.set_len(0).expect("cut");
                        assert_eq!(read(&map, 4096), 0);
                        assert!(!state.is_whole());
                        drop(watched);
                    }
                });
            }
        });
        let kept = free_slots().len();
        assert!(kept <= 64, "places are used again: {kept}");
    }

    const CHILD: &str = "LARDER_TEST_UNWATCHED_FAULT";

    /// Not a test by itself: it ends the process that the test below starts.
    #[test]
    fn a_fault_in_a_map_that_nobody_watches() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let ((_kept, map), (cut, unwatched)) = (mapped(), mapped());
        let _watched = watched(&map);
        cut.set_len(0).expect("cut");
        println!("read {}", read(&unwatched, 4096));
    }

    #[test]
    fn a_fault_elsewhere_ends_the_process_as_ever() {
        let output = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "--nocapture"])
            .arg("version::bus_fault::tests::a_fault_in_a_map_that_nobody_watches")
            .env(CHILD, "1")
            .output()
            .expect("this program runs");
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }
}
