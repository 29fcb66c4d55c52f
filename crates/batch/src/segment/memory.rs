//! Arrays of the index, in huge pages where the kernel gives them: a lookup reads one place of the
//! filter and one of the directory at random, and would else miss the TLB at both.

/// Asks for huge pages behind a large allocation, before it is filled.
pub fn with_huge_pages<T>(capacity: usize) -> Vec<T> {
    let array: Vec<T> = Vec::with_capacity(capacity);
    const HUGE_PAGE: usize = 2 << 20;
    let size = capacity * size_of::<T>();
    if size >= HUGE_PAGE {
        let start = (array.as_ptr() as usize).next_multiple_of(4096);
        let end = (array.as_ptr() as usize + size) & !4095;
        // SAFETY: the pages lie within our allocation; the advice changes no bytes.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
    array
}
