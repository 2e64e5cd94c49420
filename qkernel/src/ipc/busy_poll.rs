//! How an epoll is to poll devices of the network itself (ioctl_eventpoll(2)). There are none here
//! whose queues could be polled, so that the parameters, as on Linux for sockets of such, are kept
//! and change nothing.

use linux_raw_sys::general::CAP_NET_ADMIN;
use qlib::Va;

use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::Caller;
use crate::sync::Mutex;

/// _IOW(0x8a, 1, struct epoll_params), _IOR(0x8a, 2, struct epoll_params).
const EPIOCSPARAMS: u32 = 0x4008_8a01;
const EPIOCGPARAMS: u32 = 0x8008_8a02;
/// A larger budget takes CAP_NET_ADMIN (NAPI_POLL_WEIGHT).
const MOST_PACKETS: u16 = 64;

abi_struct! {
    /// struct epoll_params.
    pub struct Params {
        pub busy_poll_usecs: u32, pub busy_poll_budget: u16, pub prefer_busy_poll: u8, pub pad: u8,
    }
}

/// EPIOCSPARAMS and EPIOCGPARAMS; ENOTTY for anything else.
pub fn ioctl(params: &Mutex<Params>, caller: &dyn Caller, command: u32, at: Va) -> Result<usize> {
    let mm = caller.mm();
    match command {
        EPIOCSPARAMS => {
            let new: Params = mm.read(at)?;
            let is_sound = i32::try_from(new.busy_poll_usecs).is_ok();
            if new.pad != 0 || new.prefer_busy_poll > 1 || !is_sound {
                return Err(Errno::EINVAL);
            }
            if new.busy_poll_budget > MOST_PACKETS && !caller.creds().capable(CAP_NET_ADMIN) {
                return Err(Errno::EPERM);
            }
            *params.lock() = new;
        }
        EPIOCGPARAMS => {
            let now = *params.lock();
            mm.write(at, &now)?;
        }
        _ => return Err(Errno::ENOTTY),
    }
    Ok(0)
}
