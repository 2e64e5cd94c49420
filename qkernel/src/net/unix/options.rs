//! Options of AF_UNIX sockets (unix(7), socket(7)). What has no effect on them on Linux (SO_RCVBUF,
//! SO_LINGER, SO_KEEPALIVE and the like) is kept and reported, as there.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::CAP_NET_ADMIN;
use linux_raw_sys::net::{
    AF_UNIX, SO_ACCEPTCONN, SO_BROADCAST, SO_DOMAIN, SO_DONTROUTE, SO_ERROR, SO_KEEPALIVE,
    SO_LINGER, SO_NO_CHECK, SO_OOBINLINE, SO_PASSCRED, SO_PASSPIDFD, SO_PASSSEC, SO_PEEK_OFF,
    SO_PEERCRED, SO_PROTOCOL, SO_RCVBUF, SO_RCVBUFFORCE, SO_RCVLOWAT, SO_REUSEADDR, SO_REUSEPORT,
    SO_SNDBUF, SO_SNDBUFFORCE, SO_SNDLOWAT, SO_TIMESTAMP_OLD, SO_TIMESTAMPNS_OLD, SO_TYPE,
    SOL_SOCKET,
};
use zerocopy::{FromBytes, IntoBytes};

use super::{Credentials, UnixSocket};
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::fs::proc::sys;
use crate::task::Thread;
use crate::wait::PollMask;

/// The bytes that may wait in a socket (net.core.wmem_default and rmem_default).
pub const QUEUE_BYTES: usize = 212_992;
/// The least of SO_SNDBUF and SO_RCVBUF (SOCK_MIN_SNDBUF, SOCK_MIN_RCVBUF).
const MIN_SEND_BYTES: usize = 4608;
const MIN_RECEIVE_BYTES: usize = 2304;

/// What setsockopt(2) has set.
#[derive(Clone, Debug)]
pub struct Options {
    /// SO_SNDBUF as getsockopt(2) reports it: twice what was asked for.
    pub send_bytes: usize,
    /// SO_RCVBUF, likewise.
    receive_bytes: usize,
    /// SO_RCVLOWAT: a stream's reader waits for this many bytes.
    pub low_water: usize,
    /// SO_LINGER: l_onoff, l_linger.
    linger: [u32; 2],
    /// SO_PEEK_OFF: how many bytes a look with MSG_PEEK passes over, if they are counted.
    pub peek_offset: Option<usize>,
    /// Flags that were set, a bit for each option's number.
    flags: u64,
}

/// The options that are flags, all with numbers below 64.
const FLAGS: [u32; 9] = [
    SO_REUSEADDR,
    SO_KEEPALIVE,
    SO_BROADCAST,
    SO_DONTROUTE,
    SO_OOBINLINE,
    SO_NO_CHECK,
    SO_PASSSEC,
    SO_TIMESTAMP_OLD,
    SO_TIMESTAMPNS_OLD,
];

impl Options {
    /// True if this flag is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags >> flag & 1 != 0
    }

    fn set(&mut self, flag: u32, on: bool) {
        self.flags = self.flags & !(1 << flag) | u64::from(on) << flag;
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            send_bytes: QUEUE_BYTES,
            receive_bytes: QUEUE_BYTES,
            low_water: 1,
            linger: [0; 2],
            peek_offset: None,
            flags: 0,
        }
    }
}

/// A buffer's size for what was asked: doubled, within bounds.
fn buffer_bytes(asked: u32, least: usize, most: usize) -> usize {
    ((asked as usize).min(most).min(i32::MAX as usize / 2) * 2).max(least)
}

/// The datagrams that may wait in a socket besides one.
pub fn max_datagrams() -> usize {
    sys::number("net/unix/max_dgram_qlen", 10) as usize
}

/// The longest backlog.
pub fn max_backlog() -> u64 {
    sys::number("net/core/somaxconn", 4096)
}

impl UnixSocket {
    /// SO_RCVBUF as getsockopt(2) reports it.
    pub fn receive_bytes(&self) -> usize {
        self.state.lock().options.receive_bytes
    }

    /// SO_LINGER: the seconds that it is set to, if it is on.
    pub fn lingers_for(&self) -> Option<u32> {
        let [is_on, seconds] = self.state.lock().options.linger;
        (is_on != 0).then_some(seconds)
    }

    /// Has the sizes of another one's buffers, and SO_OOBINLINE as that.
    pub fn take_buffers_of(&self, other: &UnixSocket) {
        let (send, receive, is_inline) = {
            let options = &other.state.lock().options;
            (options.send_bytes, options.receive_bytes, options.has(SO_OOBINLINE))
        };
        let options = &mut self.state.lock().options;
        (options.send_bytes, options.receive_bytes) = (send, receive);
        options.set(SO_OOBINLINE, is_inline);
    }

    /// SO_RCVLOWAT.
    pub fn low_water(&self) -> usize {
        self.state.lock().options.low_water
    }

    /// SO_PEERPIDFD: a descriptor of the process that connected, or listened. ENODATA if there is
    /// none, EINVAL once it has been waited for.
    pub fn peer_pidfd(&self) -> Result<Arc<OpenFile>> {
        let peer = self.state.lock().peer_credentials;
        peer.ok_or(Errno::ENODATA)?.pidfd()
    }

    /// getsockopt(2).
    pub fn option(&self, level: u32, name: u32) -> Result<Vec<u8>> {
        if level != SOL_SOCKET {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        let value = match name {
            SO_PEERCRED => {
                return Ok(state
                    .peer_credentials
                    .unwrap_or(Credentials::NOBODY)
                    .to_bytes()
                    .to_vec());
            }
            SO_LINGER => return Ok(state.options.linger.as_bytes().to_vec()),
            SO_TYPE => self.kind,
            SO_DOMAIN => AF_UNIX,
            SO_ERROR => state.error.take().map_or(0, |error| error.0 as u32),
            SO_ACCEPTCONN => state.backlog.is_some().into(),
            SO_PASSCRED => state.asked.credentials.into(),
            SO_PASSPIDFD => state.asked.pidfd.into(),
            SO_SNDBUF => state.options.send_bytes as u32,
            SO_RCVBUF => state.options.receive_bytes as u32,
            SO_RCVLOWAT => state.options.low_water as u32,
            SO_SNDLOWAT => 1,
            SO_PROTOCOL | SO_REUSEPORT => 0,
            SO_PEEK_OFF => state.options.peek_offset.map_or(-1, |bytes| bytes as i32) as u32,
            _ if FLAGS.contains(&name) => state.options.has(name).into(),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        Ok(value.to_ne_bytes().to_vec())
    }

    /// setsockopt(2).
    pub fn set_option(&self, thread: &Thread, level: u32, name: u32, value: &[u8]) -> Result {
        if level != SOL_SOCKET {
            return Err(Errno::EOPNOTSUPP);
        }
        let word = value.first_chunk().map(|b| u32::from_ne_bytes(*b)).ok_or(Errno::EINVAL)?;
        if matches!(name, SO_SNDBUFFORCE | SO_RCVBUFFORCE) && !thread.creds().capable(CAP_NET_ADMIN)
        {
            return Err(Errno::EPERM);
        }
        let most = |which| {
            sys::number(&alloc::format!("net/core/{which}_max"), QUEUE_BYTES as u64) as usize
        };
        let mut state = self.state.lock();
        let options = &mut state.options;
        match name {
            SO_PASSCRED => state.asked.credentials = word != 0,
            SO_PASSPIDFD => state.asked.pidfd = word != 0,
            SO_SNDBUF => options.send_bytes = buffer_bytes(word, MIN_SEND_BYTES, most("wmem")),
            SO_RCVBUF => {
                options.receive_bytes = buffer_bytes(word, MIN_RECEIVE_BYTES, most("rmem"))
            }
            SO_SNDBUFFORCE => options.send_bytes = buffer_bytes(word, MIN_SEND_BYTES, usize::MAX),
            SO_RCVBUFFORCE => {
                options.receive_bytes = buffer_bytes(word, MIN_RECEIVE_BYTES, usize::MAX)
            }
            // A negative number means as much as there can be.
            SO_RCVLOWAT if (word as i32) < 0 => options.low_water = i32::MAX as usize,
            SO_RCVLOWAT => options.low_water = word.max(1) as usize,
            SO_LINGER => {
                let [on, seconds] =
                    <[u32; 2]>::read_from_prefix(value).map_err(|_| Errno::EINVAL)?.0;
                options.linger = if on == 0 { [0, options.linger[1]] } else { [1, seconds] };
            }
            // Of internet sockets only.
            SO_REUSEPORT if word != 0 => return Err(Errno::EOPNOTSUPP),
            SO_REUSEPORT => {}
            SO_PEEK_OFF => options.peek_offset = usize::try_from(word as i32).ok(),
            _ if FLAGS.contains(&name) => {
                // The time comes in one form.
                if matches!(name, SO_TIMESTAMP_OLD | SO_TIMESTAMPNS_OLD) {
                    options.flags &= !(1 << SO_TIMESTAMP_OLD | 1 << SO_TIMESTAMPNS_OLD);
                }
                options.flags = options.flags & !(1 << name) | u64::from(word != 0) << name;
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        drop(state);
        if matches!(name, SO_SNDBUF | SO_SNDBUFFORCE) {
            self.queue.wake(PollMask::SENDABLE);
        }
        Ok(())
    }

    /// Gives a socket with SO_PASSCRED or SO_PASSPIDFD a name before it connects or sends a
    /// message, so that there is one to answer to (unix(7)).
    pub fn autobind(&self, thread: &Arc<Thread>) -> Result {
        let wants_name = {
            let state = self.state.lock();
            state.asked.is_any() && state.name.is_none()
        };
        if wants_name { self.bind(thread, &(AF_UNIX as u16).to_ne_bytes()) } else { Ok(()) }
    }
}
