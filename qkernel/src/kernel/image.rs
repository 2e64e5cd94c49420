//! A sandbox as an image: what must be so when its memory is copied, and what a kernel does that
//! has been made of such a copy. What lies on the host's side is qvisor's (`qvisor/src/image`).

use qlib::control::WakeCause;

use crate::fs::proc::{generation, sys};
use crate::hibernate::state::State;
use crate::mm::AddressSpace;
use crate::mm::swap::kept;
use crate::{arch, hibernate, klog, random};

/// Why guest memory and what the host knows of it are not all that the sandbox is; if they are,
/// they are copied now.
pub fn obstacle() -> Option<&'static str> {
    if arch::boot().host_bytes_per_process == 0 {
        return Some("on the kvm platform no image can be made: use the process platform");
    }
    if hibernate::current() != State::Hibernated {
        return Some("it does not sleep");
    }
    // One that a system call is about to make, or that the host has taken away and nobody has been
    // told of.
    if arch::user::are_some_there() {
        return Some("a process of it has not left the host");
    }
    kept::give().is_err().then_some("an image of it is being made")
}

/// What the sandbox whose memory this has did after it was copied is not what happens here: what
/// that drew from its random generator says nothing about what comes, and what programs want no
/// copy to have (MADV_WIPEONFORK) is zeros. `is_another`: it is not that one itself, gone back.
pub fn become_another(is_another: bool) {
    random::reseed();
    generation::renew();
    if is_another {
        sys::renew_boot_id();
    }
    for mm in AddressSpace::all() {
        let ranges = mm.never_copied();
        if !ranges.is_empty() {
            // Where the working set goes must stay as it is until that is there.
            hibernate::wake(WakeCause::Sigcont);
        }
        for range in ranges {
            if let Err(error) = mm.discard(range.start, range.end - range.start) {
                klog!(Error, "memory that no copy should have could not be wiped: {error:?}");
            }
        }
    }
}
