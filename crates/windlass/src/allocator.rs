//! What the C library's allocator holds: how much of it is in use, how much may lie free, and when that goes back.
//!
//! Elsewhere than with glibc nothing is known and nothing is to be done. It must not allocate anything itself.

/// What is freed in one piece of this size, or at the end of what a thread has, goes back to the kernel.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const GIVEN_BACK: libc::c_int = 1 << 20;

/// Bounds what a thread keeps of what it freed. Left to itself glibc raises its bounds to twice the largest piece that
/// it has seen, and every thread keeps as much. It is for the start of a process, while it has one thread.
pub(crate) fn bound_what_is_free() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: nothing else runs in this process yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK);
        libc::mallopt(libc::M_TRIM_THRESHOLD, GIVEN_BACK);
    }
}

/// An allocator keeps what a flood needed for the next one: now and then the kernel gets back what is free.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and may be called from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes in use and bytes that lie free, of all threads.
pub(crate) fn held() -> Option<(u64, u64)> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: as above. Its successor with wider fields is not in every glibc that is still about.
        let told = unsafe { libc::mallinfo() };
        // They wrap round at 4 GiB, which is far beyond what a server may have.
        let bytes = |field: libc::c_int| u64::from(field as u32);
        Some((bytes(told.uordblks) + bytes(told.hblkhd), bytes(told.fordblks)))
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn what_another_thread_holds_is_counted_and_what_it_let_go_is_not() {
        const MUCH: usize = 64 << 20;
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let (has, held_now) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // Small pieces, so that they are its own arena's.
            let pieces: Vec<Vec<u8>> = (0..MUCH >> 10).map(|_| vec![1; 1 << 10]).collect();
            has.send(()).unwrap();
            gone.recv().unwrap();
            drop(pieces);
        });
        held_now.recv().unwrap();
        let (with, _) = super::held().unwrap();
        go.send(()).unwrap();
        thread.join().unwrap();
        let (without, _) = super::held().unwrap();
        // Other tests come and go meanwhile, with far less.
        assert!(with > without + MUCH as u64 / 2, "{with} with it, {without} without");
    }
}
