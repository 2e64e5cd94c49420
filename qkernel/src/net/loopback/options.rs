//! Options of internet sockets of a loopback interface. Those that are about what gets lost, takes
//! long ways or is looked at on its way are kept and reported, and have nothing to act on.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use linux_raw_sys::net::{
    AF_INET6, IP_MTU_DISCOVER, IP_TOS, IP_TTL, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPV6_TCLASS,
    IPV6_UNICAST_HOPS, IPV6_V6ONLY, SO_ACCEPTCONN, SO_BROADCAST, SO_DOMAIN, SO_DONTROUTE, SO_ERROR,
    SO_KEEPALIVE, SO_LINGER, SO_OOBINLINE, SO_PRIORITY, SO_PROTOCOL, SO_RCVBUF, SO_RCVBUFFORCE,
    SO_REUSEADDR, SO_REUSEPORT, SO_SNDBUF, SO_SNDBUFFORCE, SO_TYPE, SOL_SOCKET, TCP_KEEPCNT,
    TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_NODELAY, TCP_QUICKACK, TCP_USER_TIMEOUT,
};

use super::ports::Shares;
use super::socket::{LoopbackSocket, Role};
use crate::errno::{Errno, Result};
use crate::task::Thread;

const IP: u32 = IPPROTO_IP as u32;
const IP6: u32 = IPPROTO_IPV6 as u32;
const TCP: u32 = IPPROTO_TCP as u32;
const UDP: u32 = 17;

/// Level, name, what it is at first: those that are kept.
const KEPT: &[(u32, u32, u32)] = &[
    (SOL_SOCKET, SO_KEEPALIVE, 0),
    (SOL_SOCKET, SO_BROADCAST, 0),
    (SOL_SOCKET, SO_DONTROUTE, 0),
    (SOL_SOCKET, SO_OOBINLINE, 0),
    (SOL_SOCKET, SO_PRIORITY, 0),
    (TCP, TCP_NODELAY, 0),
    (TCP, TCP_KEEPIDLE, 7200),
    (TCP, TCP_KEEPINTVL, 75),
    (TCP, TCP_KEEPCNT, 9),
    (TCP, TCP_QUICKACK, 1),
    (TCP, TCP_USER_TIMEOUT, 0),
    (IP, IP_TTL, 64),
    (IP, IP_TOS, 0),
    (IP, IP_MTU_DISCOVER, 1),
    (IP6, IPV6_UNICAST_HOPS, 64),
    (IP6, IPV6_TCLASS, 0),
];

/// What setsockopt(2) has set.
#[derive(Clone, Default)]
pub(super) struct Options {
    reuses_address: bool,
    reuses_port: bool,
    /// IPV6_V6ONLY.
    pub is_v6_only: bool,
    kept: BTreeMap<(u32, u32), u32>,
}

impl Options {
    /// With whom a port is shared by one that `listens` or not.
    pub fn shares(&self, listens: bool) -> Shares {
        Shares { address: self.reuses_address, port: self.reuses_port, listens }
    }
}

impl LoopbackSocket {
    /// getsockopt(2).
    pub fn option(&self, level: u32, name: u32) -> Result<Vec<u8>> {
        if level == SOL_SOCKET && matches!(name, SO_SNDBUF | SO_RCVBUF | SO_LINGER | SO_TYPE) {
            return self.data.option(level, name);
        }
        if (level, name) == (SOL_SOCKET, SO_ERROR) {
            let error = self.state.lock().error.take();
            return match error {
                Some(error) => Ok(error.0.to_ne_bytes().to_vec()),
                None => self.data.option(level, name),
            };
        }
        let state = self.state.lock();
        let options = &state.options;
        let value = match (level, name) {
            (SOL_SOCKET, SO_DOMAIN) => self.domain,
            (SOL_SOCKET, SO_PROTOCOL) if self.is_stream() => TCP,
            (SOL_SOCKET, SO_PROTOCOL) => UDP,
            (SOL_SOCKET, SO_ACCEPTCONN) => matches!(state.role, Role::Listens(_)).into(),
            (SOL_SOCKET, SO_REUSEADDR) => options.reuses_address.into(),
            (SOL_SOCKET, SO_REUSEPORT) => options.reuses_port.into(),
            (IP6, IPV6_V6ONLY) if self.domain == AF_INET6 => options.is_v6_only.into(),
            key => {
                let first = self.first_value(key)?;
                options.kept.get(&key).copied().unwrap_or(first)
            }
        };
        Ok(value.to_ne_bytes().to_vec())
    }

    /// What an option that is kept has for a value at first. ENOPROTOOPT.
    fn first_value(&self, (level, name): (u32, u32)) -> Result<u32> {
        let has_level = match level {
            TCP => self.is_stream(),
            IP6 => self.domain == AF_INET6,
            _ => true,
        };
        let kept = KEPT.iter().find(|kept| has_level && (kept.0, kept.1) == (level, name));
        kept.map(|kept| kept.2).ok_or(Errno::ENOPROTOOPT)
    }

    /// setsockopt(2).
    pub fn set_option(&self, thread: &Thread, level: u32, name: u32, value: &[u8]) -> Result {
        let of_buffers = [SO_SNDBUF, SO_RCVBUF, SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_LINGER];
        if level == SOL_SOCKET && of_buffers.contains(&name) {
            return self.data.set_option(thread, level, name, value);
        }
        let word = match (level, value) {
            // Those of IP may be of one byte.
            (IP, [byte]) => (*byte).into(),
            _ => value.first_chunk().map(|b| u32::from_ne_bytes(*b)).ok_or(Errno::EINVAL)?,
        };
        let mut state = self.state.lock();
        let is_bound = state.local.is_some();
        let options = &mut state.options;
        match (level, name) {
            (SOL_SOCKET, SO_REUSEADDR) => options.reuses_address = word != 0,
            (SOL_SOCKET, SO_REUSEPORT) => options.reuses_port = word != 0,
            (IP6, IPV6_V6ONLY) if self.domain == AF_INET6 => {
                if is_bound {
                    return Err(Errno::EINVAL);
                }
                options.is_v6_only = word != 0;
            }
            key => {
                self.first_value(key)?;
                let is_flag =
                    level == SOL_SOCKET && name != SO_PRIORITY || key == (TCP, TCP_NODELAY);
                options.kept.insert(key, if is_flag { (word != 0).into() } else { word });
            }
        }
        Ok(())
    }
}
