//! What a guest may ask of the host's sockets: options (socket(7), ip(7), ipv6(7), tcp(7), udp(7),
//! udplite(7), netlink(7)) and control messages.
//!
//! One list for both sides of a host call. The guest kernel asks with the capabilities of the
//! calling thread, qvisor with those that the container was given at all: qvisor's own are of no
//! account, although the host would honour them. What is not listed does not exist (ENOPROTOOPT):
//! options that hold pointers, descriptors or programs, that reach the firewall, IPsec, multicast
//! routing or traffic control, that may load a module, and that make the host's threads spin.

use linux_raw_sys::general;

/// CAP_NET_BIND_SERVICE, as a bit.
pub const CAP_NET_BIND_SERVICE: u64 = 1 << general::CAP_NET_BIND_SERVICE;
/// CAP_NET_ADMIN, as a bit.
pub const CAP_NET_ADMIN: u64 = 1 << general::CAP_NET_ADMIN;
/// CAP_NET_RAW, as a bit.
pub const CAP_NET_RAW: u64 = 1 << general::CAP_NET_RAW;

/// The longest value of an option, in bytes.
pub const MAX_VALUE: usize = 4096;

/// SOL_SOCKET.
pub const SOL_SOCKET: i32 = 1;
const IPPROTO_IP: i32 = 0;
const IPPROTO_TCP: i32 = 6;
const IPPROTO_UDP: i32 = 17;
const IPPROTO_IPV6: i32 = 41;
const IPPROTO_ICMPV6: i32 = 58;
const IPPROTO_UDPLITE: i32 = 136;
const IPPROTO_RAW: i32 = 255;
const SOL_NETLINK: i32 = 270;

const SO_DEBUG: i32 = 1;
const SO_BINDTODEVICE: i32 = 25;
/// SO_BINDTOIFINDEX.
pub const SO_BINDTOIFINDEX: i32 = 62;
const TCP_CONGESTION: i32 = 13;
const NETLINK_ADD_MEMBERSHIP: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const SCM_CREDENTIALS: i32 = 2;

/// Why an option or a control message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such option, or not in this direction: ENOPROTOOPT.
    Unknown,
    /// It needs a capability: EPERM.
    NotPermitted,
    /// It needs a capability, and Linux says so by EACCES.
    AccessDenied,
    /// Not a control message that may be sent: EINVAL.
    Invalid,
}

impl Refused {
    /// The errno of Linux.
    pub const fn errno(self) -> i32 {
        match self {
            Refused::Unknown => 92,
            Refused::NotPermitted => 1,
            Refused::AccessDenied => 13,
            Refused::Invalid => 22,
        }
    }
}

/// When setting an option takes one of some capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// Never.
    Nothing,
    /// Always.
    Any(u64),
    /// When the value is not zero.
    NonZero(u64),
    /// When there is a value.
    NonEmpty(u64),
    /// When the value is not one of 0 to 6.
    Priority(u64),
}

use Needs::{Any, NonEmpty, NonZero, Nothing, Priority};

/// May be read, may be set.
type Ways = (bool, bool);
const GET: Ways = (true, false);
const SET: Ways = (false, true);
const BOTH: Ways = (true, true);

const RAW_OR_ADMIN: u64 = CAP_NET_RAW | CAP_NET_ADMIN;

/// Level, options with their numbers, ways, needs.
type Level = (i32, &'static [(&'static str, i32, Ways, Needs)]);

#[rustfmt::skip]
const LEVELS: &[Level] = &[
    (SOL_SOCKET, &[
        ("SO_DEBUG", SO_DEBUG, BOTH, NonZero(CAP_NET_ADMIN)),
        ("SO_REUSEADDR", 2, BOTH, Nothing), ("SO_TYPE", 3, GET, Nothing),
        ("SO_ERROR", 4, GET, Nothing),
        ("SO_DONTROUTE", 5, BOTH, Nothing), ("SO_BROADCAST", 6, BOTH, Nothing),
        ("SO_SNDBUF", 7, BOTH, Nothing),
        ("SO_RCVBUF", 8, BOTH, Nothing), ("SO_KEEPALIVE", 9, BOTH, Nothing),
        ("SO_OOBINLINE", 10, BOTH, Nothing),
        ("SO_NO_CHECK", 11, BOTH, Nothing), ("SO_PRIORITY", 12, BOTH, Priority(RAW_OR_ADMIN)),
        ("SO_LINGER", 13, BOTH, Nothing), ("SO_BSDCOMPAT", 14, BOTH, Nothing),
        ("SO_REUSEPORT", 15, BOTH, Nothing), ("SO_PEERCRED", 17, GET, Nothing),
        ("SO_RCVLOWAT", 18, BOTH, Nothing), ("SO_SNDLOWAT", 19, GET, Nothing),
        // A socket that is bound already takes CAP_NET_RAW: `binds_to_device`.
        ("SO_BINDTODEVICE", SO_BINDTODEVICE, BOTH, Nothing), ("SO_PEERNAME", 28, GET, Nothing),
        ("SO_TIMESTAMP", 29, BOTH, Nothing), ("SO_ACCEPTCONN", 30, GET, Nothing),
        ("SO_SNDBUFFORCE", 32, SET, Any(CAP_NET_ADMIN)),
        ("SO_RCVBUFFORCE", 33, SET, Any(CAP_NET_ADMIN)),
        ("SO_TIMESTAMPNS", 35, BOTH, Nothing), ("SO_MARK", 36, BOTH, Any(RAW_OR_ADMIN)),
        ("SO_TIMESTAMPING", 37, BOTH, Nothing), ("SO_PROTOCOL", 38, GET, Nothing),
        ("SO_DOMAIN", 39, GET, Nothing),
        ("SO_RXQ_OVFL", 40, BOTH, Nothing), ("SO_PEEK_OFF", 42, BOTH, Nothing),
        ("SO_SELECT_ERR_QUEUE", 45, BOTH, Nothing),
        ("SO_MAX_PACING_RATE", 47, BOTH, Nothing), ("SO_INCOMING_CPU", 49, BOTH, Nothing),
        ("SO_MEMINFO", 55, GET, Nothing),
        ("SO_INCOMING_NAPI_ID", 56, GET, Nothing), ("SO_COOKIE", 57, GET, Nothing),
        ("SO_BINDTOIFINDEX", SO_BINDTOIFINDEX, BOTH, Nothing),
        ("SO_TIMESTAMP_NEW", 63, BOTH, Nothing),
        ("SO_TIMESTAMPNS_NEW", 64, BOTH, Nothing), ("SO_TIMESTAMPING_NEW", 65, BOTH, Nothing),
        ("SO_BUF_LOCK", 72, BOTH, Nothing), ("SO_TXREHASH", 74, BOTH, Nothing),
        ("SO_RCVMARK", 75, BOTH, Nothing),
        ("SO_RCVPRIORITY", 82, BOTH, Nothing),
    ]),
    (IPPROTO_IP, &[
        ("IP_TOS", 1, BOTH, Nothing), ("IP_TTL", 2, BOTH, Nothing),
        ("IP_HDRINCL", 3, BOTH, Nothing),
        // Some options in it take CAP_NET_RAW on Linux; here all do.
        ("IP_OPTIONS", 4, BOTH, NonEmpty(CAP_NET_RAW)),
        ("IP_RECVOPTS", 6, BOTH, Nothing), ("IP_RETOPTS", 7, BOTH, Nothing),
        ("IP_PKTINFO", 8, BOTH, Nothing),
        ("IP_MTU_DISCOVER", 10, BOTH, Nothing), ("IP_RECVERR", 11, BOTH, Nothing),
        ("IP_RECVTTL", 12, BOTH, Nothing),
        ("IP_RECVTOS", 13, BOTH, Nothing), ("IP_MTU", 14, GET, Nothing),
        ("IP_FREEBIND", 15, BOTH, Nothing),
        ("IP_TRANSPARENT", 19, BOTH, NonZero(RAW_OR_ADMIN)),
        ("IP_RECVORIGDSTADDR", 20, BOTH, Nothing),
        ("IP_MINTTL", 21, BOTH, Nothing), ("IP_CHECKSUM", 23, BOTH, Nothing),
        ("IP_BIND_ADDRESS_NO_PORT", 24, BOTH, Nothing),
        ("IP_RECVFRAGSIZE", 25, BOTH, Nothing), ("IP_RECVERR_RFC4884", 26, BOTH, Nothing),
        ("IP_MULTICAST_IF", 32, BOTH, Nothing), ("IP_MULTICAST_TTL", 33, BOTH, Nothing),
        ("IP_MULTICAST_LOOP", 34, BOTH, Nothing), ("IP_ADD_MEMBERSHIP", 35, SET, Nothing),
        ("IP_DROP_MEMBERSHIP", 36, SET, Nothing), ("IP_UNBLOCK_SOURCE", 37, SET, Nothing),
        ("IP_BLOCK_SOURCE", 38, SET, Nothing),
        ("IP_ADD_SOURCE_MEMBERSHIP", 39, SET, Nothing),
        ("IP_DROP_SOURCE_MEMBERSHIP", 40, SET, Nothing),
        ("IP_MSFILTER", 41, SET, Nothing), ("MCAST_JOIN_GROUP", 42, SET, Nothing),
        ("MCAST_BLOCK_SOURCE", 43, SET, Nothing),
        ("MCAST_UNBLOCK_SOURCE", 44, SET, Nothing), ("MCAST_LEAVE_GROUP", 45, SET, Nothing),
        ("MCAST_JOIN_SOURCE_GROUP", 46, SET, Nothing),
        ("MCAST_LEAVE_SOURCE_GROUP", 47, SET, Nothing),
        ("MCAST_MSFILTER", 48, SET, Nothing), ("IP_MULTICAST_ALL", 49, BOTH, Nothing),
        ("IP_UNICAST_IF", 50, BOTH, Nothing),
        ("IP_LOCAL_PORT_RANGE", 51, BOTH, Nothing), ("IP_PROTOCOL", 52, GET, Nothing),
    ]),
    (IPPROTO_IPV6, &[
        ("IPV6_2292PKTINFO", 2, BOTH, Nothing), ("IPV6_CHECKSUM", 7, BOTH, Nothing),
        ("IPV6_2292HOPLIMIT", 8, BOTH, Nothing),
        ("IPV6_FLOWINFO", 11, BOTH, Nothing), ("IPV6_UNICAST_HOPS", 16, BOTH, Nothing),
        ("IPV6_MULTICAST_IF", 17, BOTH, Nothing),
        ("IPV6_MULTICAST_HOPS", 18, BOTH, Nothing), ("IPV6_MULTICAST_LOOP", 19, BOTH, Nothing),
        ("IPV6_JOIN_GROUP", 20, SET, Nothing), ("IPV6_LEAVE_GROUP", 21, SET, Nothing),
        ("IPV6_MTU_DISCOVER", 23, BOTH, Nothing),
        ("IPV6_MTU", 24, BOTH, Nothing), ("IPV6_RECVERR", 25, BOTH, Nothing),
        ("IPV6_V6ONLY", 26, BOTH, Nothing),
        ("IPV6_MULTICAST_ALL", 29, BOTH, Nothing), ("IPV6_RECVERR_RFC4884", 31, BOTH, Nothing),
        ("IPV6_FLOWINFO_SEND", 33, BOTH, Nothing), ("IPV6_HDRINCL", 36, BOTH, Nothing),
        ("MCAST_JOIN_GROUP", 42, SET, Nothing),
        ("MCAST_BLOCK_SOURCE", 43, SET, Nothing), ("MCAST_UNBLOCK_SOURCE", 44, SET, Nothing),
        ("MCAST_LEAVE_GROUP", 45, SET, Nothing), ("MCAST_JOIN_SOURCE_GROUP", 46, SET, Nothing),
        ("MCAST_LEAVE_SOURCE_GROUP", 47, SET, Nothing), ("MCAST_MSFILTER", 48, SET, Nothing),
        ("IPV6_RECVPKTINFO", 49, BOTH, Nothing), ("IPV6_PKTINFO", 50, BOTH, Nothing),
        ("IPV6_RECVHOPLIMIT", 51, BOTH, Nothing),
        ("IPV6_RECVHOPOPTS", 53, BOTH, Nothing), ("IPV6_HOPOPTS", 54, BOTH, Any(CAP_NET_RAW)),
        ("IPV6_RTHDRDSTOPTS", 55, BOTH, Any(CAP_NET_RAW)), ("IPV6_RECVRTHDR", 56, BOTH, Nothing),
        ("IPV6_RECVDSTOPTS", 58, BOTH, Nothing), ("IPV6_DSTOPTS", 59, BOTH, Any(CAP_NET_RAW)),
        ("IPV6_RECVPATHMTU", 60, BOTH, Nothing), ("IPV6_PATHMTU", 61, GET, Nothing),
        ("IPV6_DONTFRAG", 62, BOTH, Nothing),
        ("IPV6_RECVTCLASS", 66, BOTH, Nothing), ("IPV6_TCLASS", 67, BOTH, Nothing),
        ("IPV6_AUTOFLOWLABEL", 70, BOTH, Nothing),
        ("IPV6_ADDR_PREFERENCES", 72, BOTH, Nothing), ("IPV6_MINHOPCOUNT", 73, BOTH, Nothing),
        ("IPV6_ORIGDSTADDR", 74, BOTH, Nothing),
        ("IPV6_TRANSPARENT", 75, BOTH, NonZero(RAW_OR_ADMIN)),
        ("IPV6_UNICAST_IF", 76, BOTH, Nothing), ("IPV6_RECVFRAGSIZE", 77, BOTH, Nothing),
        ("IPV6_FREEBIND", 78, BOTH, Nothing),
    ]),
    (IPPROTO_TCP, &[
        ("TCP_NODELAY", 1, BOTH, Nothing), ("TCP_MAXSEG", 2, BOTH, Nothing),
        ("TCP_CORK", 3, BOTH, Nothing),
        ("TCP_KEEPIDLE", 4, BOTH, Nothing), ("TCP_KEEPINTVL", 5, BOTH, Nothing),
        ("TCP_KEEPCNT", 6, BOTH, Nothing),
        ("TCP_SYNCNT", 7, BOTH, Nothing), ("TCP_LINGER2", 8, BOTH, Nothing),
        ("TCP_DEFER_ACCEPT", 9, BOTH, Nothing),
        ("TCP_WINDOW_CLAMP", 10, BOTH, Nothing), ("TCP_INFO", 11, GET, Nothing),
        ("TCP_QUICKACK", 12, BOTH, Nothing),
        // Names that the host lets everybody use: `is_congestion`.
        ("TCP_CONGESTION", TCP_CONGESTION, BOTH, Nothing),
        ("TCP_THIN_LINEAR_TIMEOUTS", 16, BOTH, Nothing),
        ("TCP_THIN_DUPACK", 17, BOTH, Nothing), ("TCP_USER_TIMEOUT", 18, BOTH, Nothing),
        ("TCP_FASTOPEN", 23, BOTH, Nothing),
        ("TCP_NOTSENT_LOWAT", 25, BOTH, Nothing), ("TCP_CC_INFO", 26, GET, Nothing),
        ("TCP_SAVE_SYN", 27, BOTH, Nothing),
        ("TCP_SAVED_SYN", 28, GET, Nothing), ("TCP_FASTOPEN_CONNECT", 30, BOTH, Nothing),
        ("TCP_FASTOPEN_NO_COOKIE", 34, BOTH, Nothing), ("TCP_INQ", 36, BOTH, Nothing),
        ("TCP_IS_MPTCP", 43, GET, Nothing),
        ("TCP_RTO_MAX_MS", 44, BOTH, Nothing),
    ]),
    (IPPROTO_UDP, &[
        ("UDP_CORK", 1, BOTH, Nothing), ("UDP_NO_CHECK6_TX", 101, BOTH, Nothing),
        ("UDP_NO_CHECK6_RX", 102, BOTH, Nothing),
        ("UDP_SEGMENT", 103, BOTH, Nothing), ("UDP_GRO", 104, BOTH, Nothing),
    ]),
    (IPPROTO_UDPLITE, &[
        ("UDPLITE_SEND_CSCOV", 10, BOTH, Nothing), ("UDPLITE_RECV_CSCOV", 11, BOTH, Nothing),
    ]),
    (IPPROTO_ICMPV6, &[("ICMPV6_FILTER", 1, BOTH, Nothing)]),
    (IPPROTO_RAW, &[("ICMP_FILTER", 1, BOTH, Nothing)]),
    (SOL_NETLINK, &[
        // Of some groups: `netlink_group`.
        ("NETLINK_ADD_MEMBERSHIP", NETLINK_ADD_MEMBERSHIP, SET, Nothing),
        ("NETLINK_DROP_MEMBERSHIP", 2, SET, Nothing),
        ("NETLINK_PKTINFO", 3, BOTH, Nothing), ("NETLINK_BROADCAST_ERROR", 4, BOTH, Nothing),
        ("NETLINK_NO_ENOBUFS", 5, BOTH, Nothing), ("NETLINK_LIST_MEMBERSHIPS", 9, GET, Nothing),
        ("NETLINK_CAP_ACK", 10, BOTH, Nothing), ("NETLINK_EXT_ACK", 11, BOTH, Nothing),
        ("NETLINK_GET_STRICT_CHK", 12, BOTH, Nothing),
    ]),
];

fn find(level: i32, name: i32) -> Option<(Ways, Needs)> {
    let options = LEVELS.iter().find(|(l, _)| *l == level)?.1;
    options.iter().find(|(_, n, ..)| *n == name).map(|(_, _, ways, needs)| (*ways, *needs))
}

impl Needs {
    fn met(self, value: &[u8], caps: u64) -> bool {
        let int = value.get(..4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
        let (mask, asked) = match self {
            Nothing => return true,
            Any(mask) => (mask, true),
            // The host takes shorter values too, for some options.
            NonZero(mask) => (mask, value.iter().take(4).any(|b| *b != 0)),
            NonEmpty(mask) => (mask, !value.is_empty()),
            Priority(mask) => (mask, int.is_none_or(|p| !(0..=6).contains(&p))),
        };
        !asked || caps & mask != 0
    }
}

/// True if an option may be read.
///
/// # Errors
/// [`Refused::Unknown`].
pub fn check_get(level: i32, name: i32) -> Result<(), Refused> {
    match find(level, name) {
        Some(((true, _), _)) => Ok(()),
        _ => Err(Refused::Unknown),
    }
}

/// True if who has the capabilities `caps` (a mask) may set an option to `value`. What it takes
/// besides: [`binds_to_device`], [`is_congestion`].
///
/// # Errors
/// As [`Refused`] says.
pub fn check_set(level: i32, name: i32, value: &[u8], caps: u64) -> Result<(), Refused> {
    let Some(((_, true), needs)) = find(level, name) else { return Err(Refused::Unknown) };
    if !needs.met(value, caps) {
        return Err(if (level, name) == (SOL_SOCKET, SO_DEBUG) {
            Refused::AccessDenied
        } else {
            Refused::NotPermitted
        });
    }
    if (level, name) == (SOL_NETLINK, NETLINK_ADD_MEMBERSHIP) {
        // Too short a value is the host's to refuse.
        let group = value.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes);
        if group.is_some_and(|g| !netlink_group(g)) {
            return Err(Refused::NotPermitted);
        }
    }
    Ok(())
}

/// True if an option ties a socket to a network device. Anyone may do that once; to change it takes
/// CAP_NET_RAW (Linux 5.7).
pub fn binds_to_device(level: i32, name: i32) -> bool {
    level == SOL_SOCKET && matches!(name, SO_BINDTODEVICE | SO_BINDTOIFINDEX)
}

/// True if an option chooses a congestion control by its name. Names that are not loaded, or not
/// for everybody, take CAP_NET_ADMIN of the host, and are refused to every guest.
pub fn is_congestion(level: i32, name: i32) -> bool {
    (level, name) == (IPPROTO_TCP, TCP_CONGESTION)
}

/// True if a multicast group of NETLINK_ROUTE (RTNLGRP_*) may be joined: all that tell of the
/// network namespace, but RTNLGRP_IPV4_MROUTE_R and its twin, which take CAP_NET_ADMIN, and those
/// that are not known.
pub fn netlink_group(group: u32) -> bool {
    matches!(group, 1..=29 | 32..=36)
}

/// True if who has the capabilities `caps` may send a control message with some data.
///
/// # Errors
/// As [`Refused`] says. Descriptors and credentials never pass here.
pub fn check_control(level: i32, kind: i32, data: &[u8], caps: u64) -> Result<(), Refused> {
    let needs = match (level, kind) {
        (SOL_SOCKET, SCM_RIGHTS | SCM_CREDENTIALS) => return Err(Refused::NotPermitted),
        // SO_PRIORITY, SO_MARK, SO_TIMESTAMPING and its newer form.
        (SOL_SOCKET, 12) => Priority(RAW_OR_ADMIN),
        (SOL_SOCKET, 36) => Any(RAW_OR_ADMIN),
        (SOL_SOCKET, 37 | 65) => Nothing,
        // IP_TOS, IP_TTL, IP_PKTINFO; IP_RETOPTS.
        (IPPROTO_IP, 1 | 2 | 8) => Nothing,
        (IPPROTO_IP, 7) => Any(CAP_NET_RAW),
        // IPV6_2292PKTINFO, 2292HOPLIMIT, FLOWINFO, PKTINFO, HOPLIMIT, DONTFRAG, TCLASS; extension
        // headers.
        (IPPROTO_IPV6, 2 | 8 | 11 | 50 | 52 | 62 | 67) => Nothing,
        (IPPROTO_IPV6, 3 | 4 | 54 | 55 | 59) => Any(CAP_NET_RAW),
        // UDP_SEGMENT.
        (IPPROTO_UDP, 103) => Nothing,
        _ => return Err(Refused::Invalid),
    };
    if needs.met(data, caps) { Ok(()) } else { Err(Refused::NotPermitted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INT: [u8; 4] = 1i32.to_ne_bytes();

    #[test]
    fn every_option_is_listed_once() {
        for (level, options) in LEVELS {
            for (index, (name, number, ..)) in options.iter().enumerate() {
                assert!(
                    options[index + 1..].iter().all(|o| o.1 != *number && o.0 != *name),
                    "{level} {name}"
                );
            }
        }
    }

    #[test]
    fn options_need_what_linux_says() {
        let set = |level, name, value: &[u8], caps| {
            check_set(level, name, value, caps).map_err(Refused::errno)
        };
        assert_eq!(set(SOL_SOCKET, 36, &INT, 0), Err(1));
        assert_eq!(set(SOL_SOCKET, 36, &[0; 4], 0), Err(1), "also to take a mark away");
        assert_eq!(set(SOL_SOCKET, 36, &INT, CAP_NET_RAW), Ok(()));
        assert_eq!(set(SOL_SOCKET, 33, &INT, CAP_NET_RAW), Err(1));
        assert_eq!(set(SOL_SOCKET, 33, &INT, CAP_NET_ADMIN), Ok(()));
        assert_eq!(set(SOL_SOCKET, SO_DEBUG, &INT, 0), Err(13));
        assert_eq!(set(SOL_SOCKET, SO_DEBUG, &[0; 4], 0), Ok(()));
        for (priority, outcome) in [(0i32, Ok(())), (6, Ok(())), (7, Err(1)), (-1, Err(1))] {
            assert_eq!(set(SOL_SOCKET, 12, &priority.to_ne_bytes(), 0), outcome);
        }
        assert_eq!(set(IPPROTO_IP, 19, &[1], 0), Err(1), "one byte counts");
        assert_eq!(set(IPPROTO_IP, 19, &[0, 0, 1, 0], 0), Err(1));
        assert_eq!(set(IPPROTO_IP, 19, &[0, 0, 0, 0, 1], 0), Ok(()), "the fifth byte does not");
        assert_eq!(set(IPPROTO_IP, 4, &[], 0), Ok(()));
        assert_eq!(set(IPPROTO_IP, 4, &[1], 0), Err(1));
        assert_eq!(set(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &INT, 0), Ok(()));
        assert_eq!(
            set(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &30i32.to_ne_bytes(), u64::MAX),
            Err(1)
        );
    }

    #[test]
    fn what_is_not_listed_does_not_exist() {
        // Filters, XFRM, tables, multicast routing, repair, upper protocols, encapsulation, busy
        // polling, transmission times.
        let hidden = [
            (1, 26),
            (1, 50),
            (1, 46),
            (1, 61),
            (0, 17),
            (0, 64),
            (0, 200),
            (41, 35),
            (41, 64),
            (6, 14),
            (6, 19),
            (6, 31),
        ];
        for (level, name) in
            hidden.into_iter().chain([(6, 35), (17, 100), (SOL_NETLINK, 8), (263, 1), (-1, 1)])
        {
            assert_eq!(
                check_set(level, name, &INT, u64::MAX),
                Err(Refused::Unknown),
                "{level} {name}"
            );
            assert_eq!(check_get(level, name), Err(Refused::Unknown), "{level} {name}");
        }
        assert_eq!(
            check_set(SOL_SOCKET, 3, &INT, u64::MAX),
            Err(Refused::Unknown),
            "the type is only read"
        );
        assert_eq!(check_get(SOL_SOCKET, 33), Err(Refused::Unknown));
    }

    #[test]
    fn control_messages_need_what_linux_says() {
        assert_eq!(check_control(IPPROTO_IP, 2, &INT, 0), Ok(()));
        assert_eq!(check_control(SOL_SOCKET, 36, &INT, 0), Err(Refused::NotPermitted));
        assert_eq!(check_control(SOL_SOCKET, 36, &INT, CAP_NET_ADMIN), Ok(()));
        assert_eq!(check_control(IPPROTO_IPV6, 54, &[0; 8], 0), Err(Refused::NotPermitted));
        assert_eq!(
            check_control(SOL_SOCKET, SCM_RIGHTS, &INT, u64::MAX),
            Err(Refused::NotPermitted)
        );
        assert_eq!(check_control(SOL_SOCKET, 61, &[0; 8], u64::MAX), Err(Refused::Invalid));
    }
}
