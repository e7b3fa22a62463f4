//! Becomes another user, in the child, just before it becomes the program.
//!
//! Groups, group, user, capabilities, no new privileges, descriptors, in the order in which each still may; then the
//! kernel is asked whether it is so. Whatever fails is named, and the program is not run. System calls only, and those
//! made directly: the C library's would tell the threads of a process whose memory the child only borrows.

use super::message::{Owner, Step};
use std::ffi::{c_int, c_long, c_uint};

/// The third version of the capabilities' call, of 64 bits in two halves.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Turns this process into the owner's and closes every descriptor from `first` on; the step that failed otherwise.
/// `groups` has room for one more than the owner's groups.
///
/// # Safety
/// Only for a child that is about to become another program; `groups` is read and written by nobody else.
pub(super) unsafe fn become_owner(owner: &Owner, first: c_uint, groups: &mut [u32]) -> Result<(), Step> {
    // SAFETY: plain system calls on values that live here or in what was prepared for the child.
    unsafe {
        let count = owner.groups.len();
        done(libc::syscall(libc::SYS_setgroups, count, owner.groups.as_ptr()), Step::Groups)?;
        // While it still may: what is not in this set can never be had again.
        for capability in 0..64 {
            if libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 {
                // The kernel knows no more of them.
                if capability > 0 && *libc::__errno_location() == libc::EINVAL {
                    break;
                }
                return Err(Step::Capabilities);
            }
        }
        done(libc::syscall(libc::SYS_setresgid, owner.gid, owner.gid, owner.gid), Step::Gid)?;
        done(libc::syscall(libc::SYS_setresuid, owner.uid, owner.uid, owner.uid), Step::Uid)?;
        let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
        let none = [Capabilities::default(); 2];
        done(libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()), Step::Capabilities)?;
        let privileges = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        done(c_long::from(privileges), Step::NoNewPrivileges)?;
        done(libc::syscall(libc::SYS_close_range, first, c_uint::MAX, 0), Step::Descriptors)?;
        libc::umask(0o077);
        if is_owner(owner, groups) { Ok(()) } else { Err(Step::Verify) }
    }
}

/// Asks the kernel who we are, and whether there is a way back.
///
/// # Safety
/// As `become_owner`.
unsafe fn is_owner(owner: &Owner, groups: &mut [u32]) -> bool {
    // SAFETY: as above; every place that is written to is as large as the call needs it.
    unsafe {
        *libc::__errno_location() = libc::EPERM;
        let (mut a, mut b, mut c) = (u32::MAX, u32::MAX, u32::MAX);
        if libc::getresuid(&raw mut a, &raw mut b, &raw mut c) < 0 || (a, b, c) != (owner.uid, owner.uid, owner.uid) {
            return false;
        }
        if libc::getresgid(&raw mut a, &raw mut b, &raw mut c) < 0 || (a, b, c) != (owner.gid, owner.gid, owner.gid) {
            return false;
        }
        let count = libc::syscall(libc::SYS_getgroups, groups.len(), groups.as_mut_ptr());
        if usize::try_from(count) != Ok(owner.groups.len()) || groups[..owner.groups.len()] != owner.groups[..] {
            return false;
        }
        let mut header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
        let mut left = [Capabilities { effective: 1, permitted: 1, inheritable: 1 }; 2];
        let asked = libc::syscall(libc::SYS_capget, &raw mut header, left.as_mut_ptr());
        if asked < 0 || left != [Capabilities::default(); 2] {
            return false;
        }
        if libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1 {
            return false;
        }
        owner.uid == 0 || libc::syscall(libc::SYS_setresuid, 0, 0, 0) < 0
    }
}

fn done(result: c_long, step: Step) -> Result<(), Step> {
    if result < 0 { Err(step) } else { Ok(()) }
}
