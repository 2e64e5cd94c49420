//! The options of internet sockets that are kept, with what each may be. Those that are about what
//! gets lost, takes long ways or is looked at on its way have nothing to act on here.

use linux_raw_sys::net::*;

use crate::errno::{Errno, Result};

/// Levels: SOL_SOCKET is among the names of the headers.
pub const IP: u32 = IPPROTO_IP as u32;
/// See [`IP`].
pub const IP6: u32 = IPPROTO_IPV6 as u32;
/// See [`IP`].
pub const TCP: u32 = IPPROTO_TCP as u32;

/// Not among the headers' constants.
const IP_RETOPTS: u32 = 7;
const IP_BIND_ADDRESS_NO_PORT: u32 = 24;

/// What an option may be set to.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// On or off.
    Flag,
    /// Anything.
    Any,
    /// From the first to the second. EINVAL.
    Within(i32, i32),
    /// The same, or -1 for what it is at first.
    OrFirst(i32, i32),
    /// A byte, whose two low bits are those of congestion: of TCP they are the kernel's.
    Service,
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    level: u32,
    name: u32,
    /// What it is at first.
    pub first: i32,
    rule: Rule,
}

const fn kept(level: u32, name: u32, first: i32, rule: Rule) -> Kept {
    Kept { level, name, first, rule }
}

use Rule::{Any, Flag, OrFirst, Service, Within};

const ALL: &[Kept] = &[
    kept(SOL_SOCKET, SO_KEEPALIVE, 0, Flag),
    kept(SOL_SOCKET, SO_BROADCAST, 0, Flag),
    kept(SOL_SOCKET, SO_DONTROUTE, 0, Flag),
    kept(SOL_SOCKET, SO_PRIORITY, 0, Any),
    kept(SOL_SOCKET, SO_TIMESTAMP_OLD, 0, Flag),
    kept(TCP, TCP_NODELAY, 0, Flag),
    kept(TCP, TCP_CORK, 0, Flag),
    kept(TCP, TCP_MAXSEG, 536, Within(88, 32767)),
    kept(TCP, TCP_KEEPIDLE, 7200, Within(1, 32767)),
    kept(TCP, TCP_KEEPINTVL, 75, Within(1, 32767)),
    kept(TCP, TCP_KEEPCNT, 9, Within(1, 127)),
    kept(TCP, TCP_SYNCNT, 6, Within(1, 255)),
    kept(TCP, TCP_LINGER2, 60, Any),
    kept(TCP, TCP_DEFER_ACCEPT, 0, Within(0, i32::MAX)),
    kept(TCP, TCP_QUICKACK, 1, Flag),
    kept(TCP, TCP_USER_TIMEOUT, 0, Within(0, i32::MAX)),
    kept(TCP, TCP_NOTSENT_LOWAT, 0, Any),
    kept(IP, IP_TTL, 64, OrFirst(1, 255)),
    kept(IP, IP_TOS, 0, Service),
    kept(IP, IP_MTU_DISCOVER, 1, Within(0, 5)),
    kept(IP, IP_PKTINFO, 0, Flag),
    kept(IP, IP_RECVTTL, 0, Flag),
    kept(IP, IP_RECVERR, 0, Flag),
    kept(IP, IP_RETOPTS, 0, Flag),
    kept(IP, IP_BIND_ADDRESS_NO_PORT, 0, Flag),
    kept(IP, IP_MULTICAST_TTL, 1, OrFirst(0, 255)),
    kept(IP, IP_MULTICAST_LOOP, 1, Flag),
    kept(IP6, IPV6_MULTICAST_HOPS, 1, OrFirst(0, 255)),
    kept(IP6, IPV6_MULTICAST_LOOP, 1, Flag),
    kept(IP6, IPV6_UNICAST_HOPS, 64, OrFirst(0, 255)),
    kept(IP6, IPV6_TCLASS, 0, OrFirst(0, 255)),
    kept(IP6, IPV6_MTU_DISCOVER, 1, Within(0, 5)),
    kept(IP6, IPV6_RECVPKTINFO, 0, Flag),
    kept(IP6, IPV6_RECVHOPLIMIT, 0, Flag),
    kept(IP6, IPV6_RECVERR, 0, Flag),
];

/// The option of a level and name for sockets of a family. ENOPROTOOPT.
pub fn find((level, name): (u32, u32), domain: u32, is_stream: bool) -> Result<&'static Kept> {
    let has_level = match level {
        TCP => is_stream,
        IP6 => domain == AF_INET6,
        _ => true,
    };
    let kept = ALL.iter().find(|kept| has_level && (kept.level, kept.name) == (level, name));
    kept.ok_or(Errno::ENOPROTOOPT)
}

impl Kept {
    /// What it is after it was set to `value`, and was `old` before. EINVAL.
    pub fn after(&self, value: i32, old: i32, is_stream: bool) -> Result<i32> {
        match self.rule {
            Flag => Ok((value != 0).into()),
            Any => Ok(value),
            OrFirst(..) if value == -1 => Ok(self.first),
            Within(least, most) | OrFirst(least, most) => {
                (least..=most).contains(&value).then_some(value).ok_or(Errno::EINVAL)
            }
            Service if is_stream => Ok(value & 0xfc | old & 3),
            Service => Ok(value & 0xff),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_option_may_be() {
        let after = |key, value| find(key, AF_INET6, true).and_then(|k| k.after(value, 0, true));
        assert_eq!(after((TCP, TCP_KEEPIDLE), 0), Err(Errno::EINVAL));
        assert_eq!(after((TCP, TCP_KEEPIDLE), 60), Ok(60));
        assert_eq!(after((IP, IP_TTL), -1), Ok(64));
        assert_eq!(after((IP, IP_TTL), 300), Err(Errno::EINVAL));
        assert_eq!(after((IP, IP_TOS), 0x1ff), Ok(0xfc));
        assert_eq!(after((TCP, TCP_NODELAY), 7), Ok(1));
        assert!(find((TCP, TCP_NODELAY), AF_INET, false).is_err());
        assert!(find((IP6, IPV6_TCLASS), AF_INET, false).is_err());
    }
}
