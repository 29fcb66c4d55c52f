//! A reference-counted value that is stored once and shared by many rows.
//!
//! 1. A value of at most [`SMALL`] bytes is stored in the handle itself and in every row, which costs no more than a
//!    pointer. A longer one is one reference-counted allocation, freed with its last handle.
//! 2. A long value is charged to at most one [`Ledger`]: that of the first table that stores it. The charge covers
//!    the complete allocation until it is freed, whoever holds the last handle.
//! 3. A value on disk has a head in memory that locates its bytes in the file; otherwise the bytes follow the head.
//!    Only the head is charged.
//!
//! The count is atomic, so that a table may move to its core's thread and a value may be sent to another core. On one
//! core this costs a few nanoseconds.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

use crate::disk::{Cell, ValueFile};

/// Maximum length of a value that is stored in the handle, in bytes.
pub(crate) const SMALL: usize = 16;

/// A cheap handle to immutable bytes: cloning it copies at most 16 bytes.
pub struct Value(Repr);

enum Repr {
    Small(u8, [u8; SMALL]),
    Shared(Shared),
}

/// The header of a shared value's allocation, followed by the value's bytes or, for a value on disk, by their
/// address.
#[repr(C)]
struct Head {
    ledger: AtomicPtr<Ledger>,
    handles: AtomicU32,
    /// May include the bit [`ON_DISK`].
    len: u32,
}

/// The bit of a head's length that marks the allocation as an [`OnDisk`].
const ON_DISK: u32 = 1 << 31;

/// The allocation of a value on disk.
#[repr(C)]
struct OnDisk {
    head: Head,
    bytes: NonNull<u8>,
    cell: Cell,
    file: Arc<ValueFile>,
}

/// An owned reference to a shared allocation.
pub(crate) struct Shared(NonNull<Head>);

/// The total size of the shared values that are charged to a table.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    bytes: AtomicUsize,
}

// SAFETY: the bytes are immutable, and the count and the ledger are atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Value {
    /// Copies the bytes: up to 16 into the handle, more into one allocation that is 16 bytes larger than the value.
    ///
    /// # Panics
    ///
    /// If there are 2^31 bytes or more.
    pub fn new(bytes: &[u8]) -> Value {
        if bytes.len() <= SMALL {
            let mut small = [0; SMALL];
            small[..bytes.len()].copy_from_slice(bytes);
            Value(Repr::Small(bytes.len() as u8, small))
        } else {
            Value(Repr::Shared(Shared::new(bytes)))
        }
    }

    /// Returns the size of the allocation, without the handle.
    pub fn memory_bytes(&self) -> usize {
        self.shared().map_or(0, Shared::memory_bytes)
    }

    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Small(len, bytes) => &bytes[..usize::from(*len)],
            Repr::Shared(shared) => shared.bytes(),
        }
    }

    pub(crate) fn from_shared(shared: Shared) -> Value {
        Value(Repr::Shared(shared))
    }

    pub(crate) fn shared(&self) -> Option<&Shared> {
        match &self.0 {
            Repr::Small(..) => None,
            Repr::Shared(shared) => Some(shared),
        }
    }
}

impl Shared {
    pub(crate) fn new(bytes: &[u8]) -> Shared {
        let len = u32::try_from(bytes.len())
            .ok()
            .filter(|len| len & ON_DISK == 0);
        let len = len.expect("a value has less than 2 GiB");
        let layout = layout(bytes.len());
        // SAFETY: the layout has at least the size of a head.
        let at = unsafe { alloc(layout) };
        let Some(head) = NonNull::new(at.cast::<Head>()) else {
            handle_alloc_error(layout)
        };
        // SAFETY: the allocation is new, aligned for a head, and has room for it and the bytes after it.
        unsafe {
            head.write(Head {
                ledger: AtomicPtr::new(ptr::null_mut()),
                handles: AtomicU32::new(1),
                len,
            });
            ptr::copy_nonoverlapping(bytes.as_ptr(), at.add(size_of::<Head>()), bytes.len());
        }
        Shared(head)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        // SAFETY: a referenced allocation is alive.
        unsafe { self.0.as_ref() }.size()
    }

    /// Stores a value in the file; `None` if the disk is full.
    #[cold]
    pub(crate) fn on_disk(file: &Arc<ValueFile>, bytes: &[u8]) -> Option<Shared> {
        let len = u32::try_from(bytes.len())
            .ok()
            .filter(|len| len & ON_DISK == 0)?;
        let (cell, at) = file.store(bytes)?;
        let value = Box::new(OnDisk {
            head: Head {
                ledger: AtomicPtr::new(ptr::null_mut()),
                handles: AtomicU32::new(1),
                len: len | ON_DISK,
            },
            bytes: at,
            cell,
            file: file.clone(),
        });
        Some(Shared(NonNull::from(Box::leak(value)).cast()))
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: a referenced allocation is alive; `len` initialized bytes follow its head or are at its address,
        // and never change.
        unsafe {
            let len = self.0.as_ref().len;
            if len & ON_DISK != 0 {
                let at = self.0.cast::<OnDisk>().as_ref().bytes;
                return std::slice::from_raw_parts(at.as_ptr(), (len & !ON_DISK) as usize);
            }
            let at = self.0.as_ptr().cast::<u8>().add(size_of::<Head>());
            std::slice::from_raw_parts(at, len as usize)
        }
    }

    /// Converts the reference to an address; `from_address` takes it back.
    #[inline]
    pub(crate) fn into_address(self) -> usize {
        let address = self.0.as_ptr().expose_provenance();
        std::mem::forget(self);
        address
    }

    /// # Safety
    ///
    /// `address` must come from `into_address`, and may be converted back only once.
    #[inline]
    pub(crate) unsafe fn from_address(address: usize) -> Shared {
        // SAFETY: the address is that of a live head, so it is not zero.
        Shared(unsafe { NonNull::new_unchecked(ptr::with_exposed_provenance_mut(address)) })
    }

    /// Charges the ledger for the allocation, unless it is charged already (invariant 2).
    #[inline]
    pub(crate) fn charge(&self, ledger: &Arc<Ledger>) {
        // SAFETY: a referenced allocation is alive.
        let head = unsafe { self.0.as_ref() };
        if !head.ledger.load(Ordering::Relaxed).is_null() {
            return;
        }
        let raw = Arc::into_raw(ledger.clone()).cast_mut();
        match head.ledger.compare_exchange(
            ptr::null_mut(),
            raw,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            Ok(_) => {
                ledger.bytes.fetch_add(head.size(), Ordering::Relaxed);
            }
            // SAFETY: takes back the reference that `into_raw` leaked; no other thread saw it.
            Err(_) => drop(unsafe { Arc::from_raw(raw) }),
        }
    }
}

impl Ledger {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The allocation size of an `Arc<Ledger>`: two counts and the ledger.
    pub(crate) const ALLOCATED: usize = size_of::<Ledger>() + 2 * size_of::<usize>();
}

impl Head {
    /// Returns the size of the allocation.
    fn size(&self) -> usize {
        if self.len & ON_DISK != 0 {
            size_of::<OnDisk>()
        } else {
            layout(self.len as usize).size()
        }
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(size_of::<Head>() + len, align_of::<Head>())
        .expect("a value has less than 2 GiB")
}

impl Clone for Shared {
    #[inline]
    fn clone(&self) -> Shared {
        // SAFETY: a referenced allocation is alive.
        let before = unsafe { self.0.as_ref() }
            .handles
            .fetch_add(1, Ordering::Relaxed);
        // A wrapped count would free a value in use.
        if before > u32::MAX / 2 {
            std::process::abort();
        }
        Shared(self.0)
    }
}

impl Drop for Shared {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: a referenced allocation is alive.
        let head = unsafe { self.0.as_ref() };
        if head.handles.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        fence(Ordering::Acquire);
        let len = head.len;
        let ledger = head.ledger.load(Ordering::Relaxed);
        if !ledger.is_null() {
            // SAFETY: `charge` stored the address of a reference here, which is taken back once, here.
            let ledger = unsafe { Arc::from_raw(ledger) };
            ledger.bytes.fetch_sub(head.size(), Ordering::Relaxed);
        }
        if len & ON_DISK != 0 {
            // SAFETY: this was the last reference, and `on_disk` allocated the value as a box of this type.
            let value = unsafe { Box::from_raw(self.0.cast::<OnDisk>().as_ptr()) };
            value.file.free(value.cell);
            return;
        }
        // SAFETY: this was the last reference, and the layout is that of the allocation.
        unsafe { dealloc(self.0.as_ptr().cast(), layout(len as usize)) };
    }
}

impl Clone for Value {
    #[inline]
    fn clone(&self) -> Value {
        match &self.0 {
            Repr::Small(len, bytes) => Value(Repr::Small(*len, *bytes)),
            Repr::Shared(shared) => Value(Repr::Shared(shared.clone())),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Value {}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::ValuesOnDisk;

    #[test]
    fn a_value_is_charged_once_until_its_last_handle_is_dropped() {
        let (first, second) = (Arc::new(Ledger::default()), Arc::new(Ledger::default()));
        let value = Value::new(&[7; 100]);
        let shared = value.shared().expect("100 bytes are shared");
        shared.charge(&first);
        shared.charge(&second);
        assert_eq!((first.bytes(), second.bytes()), (116, 0));
        let copy = value.clone();
        drop(value);
        assert_eq!((copy.len(), first.bytes()), (100, 116));
        drop(copy);
        assert_eq!(first.bytes(), 0);
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn a_value_on_disk_is_charged_for_its_head_and_frees_its_cell() {
        let file =
            ValueFile::create(&std::env::temp_dir()).expect("the folder for temporary files");
        let ledger = Arc::new(Ledger::default());
        let on_disk = ValuesOnDisk {
            file: file.clone(),
            min_bytes: 0,
        };
        let value = on_disk.value(&[7; 1000]);
        let shared = value.shared().expect("1000 bytes are shared");
        shared.charge(&ledger);
        assert_eq!(ledger.bytes(), size_of::<OnDisk>());
        assert_eq!(file.bytes(), (1024, 64 << 20));
        let copy = value.clone();
        drop(value);
        let elsewhere = std::thread::spawn(move || assert_eq!(*copy, [7; 1000]));
        elsewhere.join().expect("the value may travel");
        assert_eq!((ledger.bytes(), file.bytes().0), (0, 0));
        assert!(on_disk.value(&[7; SMALL]).shared().is_none());
    }

    #[test]
    fn small_values_live_in_the_handle() {
        for len in 0..40 {
            let bytes: Vec<u8> = (0..len).collect();
            let value = Value::new(&bytes);
            assert_eq!(value.shared().is_none(), bytes.len() <= SMALL);
            assert_eq!(*value, *bytes);
            assert_eq!(value.clone(), value);
        }
    }
}
