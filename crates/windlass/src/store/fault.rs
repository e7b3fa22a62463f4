//! A file layer under SQLite that fails on purpose: the n-th call, once or from then on. For tests only; without
//! `install` it does nothing.
//!
//! `install` makes it the default of the process; every connection opened after that goes through it to the real
//! file layer. Opening, deleting, looking up, reading, writing, truncating, syncing, sizing and mapping count as
//! calls; locks do not, since SQLite cannot be told that it failed to let go. Syncs are counted and not done; what
//! they would bring to disk is known to `unsynced`, which plays power cuts. The counters are those of the process, so
//! such tests have one of their own, and one thread that touches the store.

pub mod unsynced;

use rusqlite::ffi;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering::SeqCst};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// With an I/O error; nothing is done.
    Error,
    /// Writes find no space; other calls have an I/O error.
    Full,
    /// Writes do the first half and then have an I/O error; other calls do nothing.
    Torn,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Error, Kind::Full, Kind::Torn];
}

/// Which calls fail: the `nth` counted from 1, and all later ones if `from_then_on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub nth: u64,
    pub from_then_on: bool,
    pub kind: Kind,
}

/// What happened while a plan was in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    pub calls: u64,
    pub failed: u64,
}

static CALLS: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU64 = AtomicU64::new(0);
/// Nought: nothing fails.
static FAIL_AT: AtomicU64 = AtomicU64::new(0);
static FROM_THEN_ON: AtomicBool = AtomicBool::new(false);
static KIND: AtomicU8 = AtomicU8::new(0);
static REAL: AtomicPtr<ffi::sqlite3_vfs> = AtomicPtr::new(std::ptr::null_mut());

/// Puts the layer under all connections that this process opens from now on.
///
/// # Panics
/// If SQLite has no file layer to put it on, or refuses it.
pub fn install() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // SAFETY: SQLite is initialised first; the default layer it names lives as long as the process and is not
        // changed; the copy that is registered is leaked, so SQLite may keep it for ever.
        unsafe {
            assert_eq!(ffi::sqlite3_initialize(), ffi::SQLITE_OK, "SQLite cannot be initialised");
            let real = ffi::sqlite3_vfs_find(std::ptr::null());
            assert!(!real.is_null(), "SQLite has no file layer");
            REAL.store(real, SeqCst);
            let mut layer = *real;
            layer.szOsFile += size_of::<File>() as c_int;
            layer.zName = c"windlass-fault".as_ptr();
            layer.pNext = std::ptr::null_mut();
            layer.xOpen = Some(open);
            layer.xDelete = Some(delete);
            layer.xAccess = Some(access);
            let registered = ffi::sqlite3_vfs_register(Box::leak(Box::new(layer)), 1);
            assert_eq!(registered, ffi::SQLITE_OK, "SQLite refuses the fault layer");
        }
    });
}

/// Starts counting at nought and fails as planned.
pub fn arm(plan: Plan) {
    disarm();
    CALLS.store(0, SeqCst);
    FAILED.store(0, SeqCst);
    FROM_THEN_ON.store(plan.from_then_on, SeqCst);
    KIND.store(plan.kind as u8, SeqCst);
    FAIL_AT.store(plan.nth, SeqCst);
}

/// Lets everything through again.
pub fn disarm() -> Tally {
    FAIL_AT.store(0, SeqCst);
    Tally { calls: CALLS.load(SeqCst), failed: FAILED.load(SeqCst) }
}

/// Syncs a file that the store has open itself; with the layer in place it is a call like those of SQLite.
pub fn sync_data(file: &std::fs::File) -> std::io::Result<()> {
    if REAL.load(SeqCst).is_null() {
        return file.sync_data();
    }
    if fails() {
        return Err(std::io::Error::other("a planned failure"));
    }
    unsynced::synced(&std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?);
    Ok(())
}

/// Counts one call; true if it must fail.
fn fails() -> bool {
    let call = CALLS.fetch_add(1, SeqCst) + 1;
    let at = FAIL_AT.load(SeqCst);
    let fails = at != 0 && (call == at || FROM_THEN_ON.load(SeqCst) && call > at);
    FAILED.fetch_add(u64::from(fails), SeqCst);
    fails
}

fn kind() -> Kind {
    Kind::ALL[usize::from(KIND.load(SeqCst))]
}

/// What SQLite sees as the file; the real layer's file follows it in the same allocation.
#[repr(C)]
struct File {
    seen: ffi::sqlite3_file,
    /// SQLite keeps it as long as the file is open; null where a file has no name.
    name: *const c_char,
}

/// The path of a file that SQLite has open.
fn path_of(file: *mut ffi::sqlite3_file) -> Option<PathBuf> {
    // SAFETY: every file that SQLite hands to a method was filled by `open`, and its name lives until it is closed.
    let name = unsafe { (*file.cast::<File>()).name };
    let bytes = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes())?;
    Some(Path::new(OsStr::from_bytes(bytes)).to_owned())
}

/// The real file behind one of ours.
///
/// # Safety
/// `file` was given by SQLite with room for `File` and a real file, as `szOsFile` asked for.
unsafe fn behind(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: the caller's; the offset is of two pointers, so what follows is aligned as the whole is.
    unsafe { file.cast::<u8>().add(size_of::<File>()).cast() }
}

/// Calls a method of the real file, or answers that it has none.
macro_rules! on_real {
    ($file:expr, $method:ident ( $($argument:expr),* ), $without:expr) => {{
        // SAFETY: SQLite calls methods only between a successful open and the close, when the real file is open
        // and has its methods; the arguments are those that SQLite gave.
        unsafe {
            let real = behind($file);
            match (*(*real).pMethods).$method {
                Some(method) => method(real, $($argument),*),
                None => $without,
            }
        }
    }};
}

unsafe extern "C" fn open(
    _layer: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives `szOsFile` bytes at `file`, and the real layer was stored before ours was registered.
    unsafe {
        // A file without methods is one that SQLite does not close.
        (*file).pMethods = std::ptr::null();
        if fails() {
            return ffi::SQLITE_CANTOPEN;
        }
        (*file.cast::<File>()).name = name;
        let (layer, real) = (REAL.load(SeqCst), behind(file));
        (*real).pMethods = std::ptr::null();
        let Some(open) = (*layer).xOpen else { return ffi::SQLITE_CANTOPEN };
        let answer = open(layer, name, real, flags, out_flags);
        if !(*real).pMethods.is_null() {
            (*file).pMethods = &METHODS;
        }
        answer
    }
}

unsafe extern "C" fn delete(_layer: *mut ffi::sqlite3_vfs, name: *const c_char, _sync: c_int) -> c_int {
    if fails() {
        return ffi::SQLITE_IOERR_DELETE;
    }
    let layer = REAL.load(SeqCst);
    // SAFETY: the real layer lives as long as the process; the name is SQLite's.
    unsafe { (*layer).xDelete.map_or(ffi::SQLITE_IOERR_DELETE, |delete| delete(layer, name, 0)) }
}

unsafe extern "C" fn access(
    _layer: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    found: *mut c_int,
) -> c_int {
    if fails() {
        return ffi::SQLITE_IOERR_ACCESS;
    }
    let layer = REAL.load(SeqCst);
    // SAFETY: the real layer lives as long as the process; name and answer are SQLite's.
    unsafe { (*layer).xAccess.map_or(ffi::SQLITE_IOERR_ACCESS, |access| access(layer, name, flags, found)) }
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, into: *mut c_void, length: c_int, offset: i64) -> c_int {
    if fails() {
        return ffi::SQLITE_IOERR_READ;
    }
    on_real!(file, xRead(into, length, offset), ffi::SQLITE_IOERR_READ)
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, from: *const c_void, length: c_int, offset: i64) -> c_int {
    if !fails() {
        // SAFETY: SQLite gives this many bytes.
        let bytes = || unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length.max(0) as usize) }.to_vec();
        return changed(
            file,
            offset,
            i64::from(length),
            || Some(bytes()),
            || on_real!(file, xWrite(from, length, offset), ffi::SQLITE_IOERR_WRITE),
        );
    }
    match kind() {
        Kind::Error => ffi::SQLITE_IOERR_WRITE,
        Kind::Full => ffi::SQLITE_FULL,
        Kind::Torn => {
            // Whether the half arrives does not matter: the write has failed either way.
            let _ = on_real!(file, xWrite(from, length / 2, offset), ffi::SQLITE_IOERR_WRITE);
            ffi::SQLITE_IOERR_WRITE
        }
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    if fails() {
        return ffi::SQLITE_IOERR_TRUNCATE;
    }
    changed(file, size, i64::MAX, || None, || on_real!(file, xTruncate(size), ffi::SQLITE_IOERR_TRUNCATE))
}

/// Does a change of a file, and takes note of it and of what it overwrote where a power cut is to be played.
fn changed(
    file: *mut ffi::sqlite3_file,
    offset: i64,
    length: i64,
    new: impl FnOnce() -> Option<Vec<u8>>,
    act: impl FnOnce() -> c_int,
) -> c_int {
    let mut changes = unsynced::changes();
    if let (Some(changes), Some(path)) = (&mut *changes, path_of(file)) {
        let mut size = 0;
        let told = on_real!(file, xFileSize(&raw mut size), ffi::SQLITE_IOERR_FSTAT);
        let mut old = vec![0; size.saturating_sub(offset).clamp(0, length) as usize];
        let (into, most) = (old.as_mut_ptr().cast(), old.len() as c_int);
        let read = if most == 0 { 0 } else { on_real!(file, xRead(into, most, offset), ffi::SQLITE_IOERR_READ) };
        assert!(told == ffi::SQLITE_OK && read == ffi::SQLITE_OK, "what is overwritten cannot be read: {told} {read}");
        changes.push(unsynced::Change { path, offset: offset as u64, old, old_size: size as u64, new: new() });
    }
    act()
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    if fails() {
        return ffi::SQLITE_IOERR_FSYNC;
    }
    if let Some(path) = path_of(file) {
        unsynced::synced(&path);
    }
    // What these tests look at is in the kernel's hands already, and thousands of real syncs would take minutes.
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    if fails() {
        return ffi::SQLITE_IOERR_FSTAT;
    }
    on_real!(file, xFileSize(size), ffi::SQLITE_IOERR_FSTAT)
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    page: c_int,
    size: c_int,
    extend: c_int,
    into: *mut *mut c_void,
) -> c_int {
    if fails() {
        return ffi::SQLITE_IOERR_SHMMAP;
    }
    on_real!(file, xShmMap(page, size, extend, into), ffi::SQLITE_IOERR_SHMMAP)
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    on_real!(file, xClose(), ffi::SQLITE_OK)
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    on_real!(file, xLock(level), ffi::SQLITE_OK)
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    on_real!(file, xUnlock(level), ffi::SQLITE_OK)
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, held: *mut c_int) -> c_int {
    on_real!(file, xCheckReservedLock(held), ffi::SQLITE_OK)
}

unsafe extern "C" fn file_control(file: *mut ffi::sqlite3_file, what: c_int, argument: *mut c_void) -> c_int {
    on_real!(file, xFileControl(what, argument), ffi::SQLITE_NOTFOUND)
}

unsafe extern "C" fn sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    on_real!(file, xSectorSize(), 4096)
}

unsafe extern "C" fn device_characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    on_real!(file, xDeviceCharacteristics(), 0)
}

unsafe extern "C" fn shm_lock(file: *mut ffi::sqlite3_file, first: c_int, count: c_int, flags: c_int) -> c_int {
    on_real!(file, xShmLock(first, count, flags), ffi::SQLITE_OK)
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    on_real!(file, xShmBarrier(), ());
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    on_real!(file, xShmUnmap(delete), ffi::SQLITE_OK)
}

unsafe extern "C" fn fetch(file: *mut ffi::sqlite3_file, offset: i64, length: c_int, into: *mut *mut c_void) -> c_int {
    on_real!(file, xFetch(offset, length, into), ffi::SQLITE_OK)
}

unsafe extern "C" fn unfetch(file: *mut ffi::sqlite3_file, offset: i64, page: *mut c_void) -> c_int {
    on_real!(file, xUnfetch(offset, page), ffi::SQLITE_OK)
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 3,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: Some(fetch),
    xUnfetch: Some(unfetch),
};
