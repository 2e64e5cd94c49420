//! Changes of the container's own network, by rtnetlink(7), for containers that were given
//! CAP_NET_ADMIN. A message passes if all that is in it is on a list: no other network namespace,
//! no new kind of link or tunnel, for which the host would load a module.

use rustix::io::Errno;

use super::netlink::{attributes, half};

/// What an attribute may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// At most so many bytes.
    Bytes(usize),
    /// Metrics of a route (RTA_METRICS): attributes of four bytes.
    Metrics,
}

use Holds::{Bytes, Metrics};

/// An attribute's number and what it may hold.
type Allowed = &'static [(u16, Holds)];

/// The changes: type, length of the fixed part, attributes.
const CHANGES: &[(u16, usize, Allowed)] = &[
    (libc::RTM_NEWLINK, 16, LINK),
    (libc::RTM_SETLINK, 16, LINK),
    (libc::RTM_DELLINK, 16, LINK),
    (libc::RTM_NEWADDR, 8, ADDRESS),
    (libc::RTM_DELADDR, 8, ADDRESS),
    (libc::RTM_NEWROUTE, 12, ROUTE),
    (libc::RTM_DELROUTE, 12, ROUTE),
    (libc::RTM_NEWNEIGH, 12, NEIGHBOUR),
    (libc::RTM_DELNEIGH, 12, NEIGHBOUR),
    (libc::RTM_NEWRULE, 12, RULE),
    (libc::RTM_DELRULE, 12, RULE),
];

/// IFLA_ADDRESS, BROADCAST, IFNAME, MTU, TXQLEN, OPERSTATE, LINKMODE, IFALIAS, GROUP, EXT_MASK.
const LINK: Allowed = &[
    (1, Bytes(32)),
    (2, Bytes(32)),
    (3, Bytes(16)),
    (4, Bytes(4)),
    (13, Bytes(4)),
    (16, Bytes(1)),
    (17, Bytes(1)),
    (20, Bytes(256)),
    (27, Bytes(4)),
    (29, Bytes(4)),
];
/// IFA_ADDRESS, LOCAL, LABEL, BROADCAST, CACHEINFO, FLAGS, RT_PRIORITY.
const ADDRESS: Allowed = &[
    (1, Bytes(16)),
    (2, Bytes(16)),
    (3, Bytes(16)),
    (4, Bytes(16)),
    (6, Bytes(16)),
    (8, Bytes(4)),
    (9, Bytes(4)),
];
/// RTA_DST, SRC, OIF, GATEWAY, PRIORITY, PREFSRC, METRICS, TABLE, VIA, PREF, EXPIRES.
const ROUTE: Allowed = &[
    (1, Bytes(16)),
    (2, Bytes(16)),
    (4, Bytes(4)),
    (5, Bytes(16)),
    (6, Bytes(4)),
    (7, Bytes(16)),
    (8, Metrics),
    (15, Bytes(4)),
    (18, Bytes(18)),
    (20, Bytes(1)),
    (23, Bytes(4)),
];
/// NDA_DST, LLADDR, PROBES, IFINDEX, PROTOCOL.
const NEIGHBOUR: Allowed =
    &[(1, Bytes(16)), (2, Bytes(32)), (4, Bytes(4)), (8, Bytes(4)), (12, Bytes(1))];
/// FRA_DST, SRC, IIFNAME, GOTO, PRIORITY, FWMARK, SUPPRESS_*, TABLE, FWMASK, OIFNAME, UID_RANGE,
/// PROTOCOL, IP_PROTO, SPORT_RANGE, DPORT_RANGE.
const RULE: Allowed = &[
    (1, Bytes(16)),
    (2, Bytes(16)),
    (3, Bytes(16)),
    (4, Bytes(4)),
    (6, Bytes(4)),
    (10, Bytes(4)),
    (13, Bytes(4)),
    (14, Bytes(4)),
    (15, Bytes(4)),
    (16, Bytes(4)),
    (17, Bytes(16)),
    (20, Bytes(8)),
    (21, Bytes(1)),
    (22, Bytes(1)),
    (23, Bytes(4)),
    (24, Bytes(4)),
];

/// RTAX_CC_ALGO, whose name the host may load a module for; what comes after it is a number too.
const CONGESTION: u16 = 16;

/// NLM_F_REQUEST, ACK, ECHO, REPLACE, EXCL, CREATE and APPEND.
const FLAGS: u16 = 0x0f00 | 1 | 4 | 8;

/// True if a message of this type changes something that a list is there for.
pub(super) fn is_known(kind: u16) -> bool {
    CHANGES.iter().any(|(k, ..)| *k == kind)
}

/// Lets a change pass (`body`: what follows the header). EOPNOTSUPP for what is on no list, EINVAL
/// for what is malformed.
pub(super) fn check(kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
    let change = CHANGES.iter().find(|(k, ..)| *k == kind).ok_or(Errno::OPNOTSUPP)?;
    let (_, fixed, allowed) = change;
    let makes_link = kind == libc::RTM_NEWLINK && flags & libc::NLM_F_CREATE as u16 != 0;
    if flags & !FLAGS != 0 || makes_link {
        return Err(Errno::OPNOTSUPP);
    }
    let family = body.first().map_or(libc::AF_UNSPEC, |f| i32::from(*f));
    if !matches!(family, libc::AF_UNSPEC | libc::AF_INET | libc::AF_INET6 | libc::AF_PACKET) {
        return Err(Errno::OPNOTSUPP);
    }
    let rest = body.get(*fixed..).ok_or(Errno::INVAL)?;
    for attribute in attributes(rest) {
        let (kind, data) = attribute?;
        let holds = allowed.iter().find(|(k, _)| *k == kind).ok_or(Errno::OPNOTSUPP)?.1;
        match holds {
            Bytes(most) if data.len() > most => return Err(Errno::INVAL),
            Bytes(_) => {}
            Metrics => {
                for metric in attributes(data) {
                    let (kind, data) = metric?;
                    if kind == CONGESTION {
                        return Err(Errno::OPNOTSUPP);
                    }
                    if data.len() != 4 {
                        return Err(Errno::INVAL);
                    }
                }
            }
        }
    }
    // What the host takes for a multipath route lies in attributes that are on no list; its flags
    // say no more than rtm_type does.
    half(body, 0).map(|_| ()).ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
    const CREATE: u16 = libc::NLM_F_CREATE as u16;

    fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
        let mut a = ((4 + data.len()) as u16).to_ne_bytes().to_vec();
        a.extend(kind.to_ne_bytes());
        a.extend(data);
        a.resize(a.len().next_multiple_of(4), 0);
        a
    }

    fn with(fixed: usize, family: i32, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![0; fixed];
        body[0] = family as u8;
        body.extend(attributes.concat());
        body
    }

    #[test]
    fn what_is_listed_passes() {
        let up = with(16, 0, &[]);
        assert_eq!(check(libc::RTM_NEWLINK, REQUEST, &up), Ok(()));
        let address = [attribute(2, &[10, 0, 0, 1]), attribute(1, &[10, 0, 0, 1])];
        let body = with(8, 2, &address);
        assert_eq!(check(libc::RTM_NEWADDR, REQUEST | CREATE, &body), Ok(()));
        let mtu = attribute(8, &attribute(2, &[0, 5, 0, 0]));
        assert_eq!(check(libc::RTM_NEWROUTE, REQUEST, &with(12, 2, &[mtu])), Ok(()));
    }

    #[test]
    fn nothing_else_does() {
        let refused = |kind, flags, body: &[u8]| check(kind, flags, body).unwrap_err();
        let link = with(16, 0, &[]);
        assert_eq!(refused(libc::RTM_NEWLINK, REQUEST | CREATE, &link), Errno::OPNOTSUPP);
        // IFLA_LINKINFO, NET_NS_PID, NET_NS_FD, VFINFO_LIST, AF_SPEC, XDP, TARGET_NETNSID.
        for kind in [18, 19, 28, 22, 26, 43, 46] {
            for flag in [0, 0x8000] {
                let body = with(16, 0, &[attribute(kind | flag, &[0; 4])]);
                assert_eq!(refused(libc::RTM_SETLINK, REQUEST, &body), Errno::OPNOTSUPP, "{kind}");
            }
        }
        // RTA_MULTIPATH, ENCAP_TYPE, ENCAP, NH_ID; IFA_TARGET_NETNSID.
        for kind in [9, 21, 22, 30] {
            let body = with(12, 2, &[attribute(kind, &[0; 4])]);
            assert_eq!(refused(libc::RTM_NEWROUTE, REQUEST, &body), Errno::OPNOTSUPP, "{kind}");
        }
        let body = with(8, 2, &[attribute(10, &[0; 4])]);
        assert_eq!(refused(libc::RTM_NEWADDR, REQUEST, &body), Errno::OPNOTSUPP);
        let congestion = attribute(8, &attribute(16, b"bbr\0"));
        let body = with(12, 2, &[congestion]);
        assert_eq!(refused(libc::RTM_NEWROUTE, REQUEST, &body), Errno::OPNOTSUPP);
        // AF_BRIDGE, AF_MPLS; other types.
        for family in [7, 28, 128] {
            let body = with(12, family, &[]);
            assert_eq!(refused(libc::RTM_NEWNEIGH, REQUEST, &body), Errno::OPNOTSUPP);
        }
        for kind in (0..200).filter(|kind| !is_known(*kind)) {
            assert_eq!(refused(kind, REQUEST, &[0; 64]), Errno::OPNOTSUPP, "{kind}");
        }
    }

    #[test]
    fn lengths_are_checked() {
        let refused = |body: &[u8]| check(libc::RTM_NEWADDR, REQUEST, body).unwrap_err();
        assert_eq!(refused(&[]), Errno::INVAL);
        assert_eq!(refused(&[2; 7]), Errno::INVAL);
        assert_eq!(refused(&with(8, 2, &[attribute(1, &[0; 17])])), Errno::INVAL);
        assert_eq!(refused(&with(8, 2, &[vec![3, 0, 1, 0]])), Errno::INVAL);
        assert_eq!(refused(&with(8, 2, &[vec![9, 0, 1, 0]])), Errno::INVAL);
    }
}
