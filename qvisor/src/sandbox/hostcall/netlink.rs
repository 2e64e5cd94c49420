//! Netlink: questions of rtnetlink(7) and sock_diag(7) to the kernel. The network of a container is
//! set up from outside, and by itself if it was given CAP_NET_ADMIN ([`super::netchange`]).

use qlib::sockopt::CAP_NET_ADMIN;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::super::memory::GuestRange;
use super::Call;
use super::netchange;
use super::table::Object;

/// The longest request.
const MAX_NETLINK: usize = 65_536;
/// Bytes of struct nlmsghdr and of struct nlattr.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// The questions that may be asked, each with the length of its fixed part, and the attributes that
/// it may have. Attributes that are not here name another network namespace (IFLA_TARGET_NETNSID
/// and its like, which the host would honour for our capabilities) or are of no use in a question.
const QUESTIONS: &[(u16, usize, &[u16])] = &[
    // struct ifinfomsg: IFLA_IFNAME, MASTER, LINKINFO, EXT_MASK, ALT_IFNAME.
    (libc::RTM_GETLINK, 16, &[3, 10, 18, 29, 53]),
    // struct ifaddrmsg: IFA_ADDRESS, LOCAL.
    (libc::RTM_GETADDR, 8, &[1, 2]),
    // struct rtmsg: RTA_DST, SRC, IIF, OIF, GATEWAY, PRIORITY, PREFSRC, TABLE, MARK, UID, IP_PROTO,
    // SPORT, DPORT.
    (libc::RTM_GETROUTE, 12, &[1, 2, 3, 4, 5, 6, 7, 15, 16, 25, 27, 28, 29]),
    // struct ndmsg: NDA_DST, IFINDEX, MASTER.
    (libc::RTM_GETNEIGH, 12, &[1, 8, 9]),
    // struct fib_rule_hdr.
    (libc::RTM_GETRULE, 12, &[]),
    // struct ndtmsg; struct netconfmsg: NETCONFA_IFINDEX.
    (libc::RTM_GETNEIGHTBL, 4, &[]),
    (RTM_GETNETCONF, 4, &[1]),
    // struct nhmsg: NHA_ID, OIF, GROUPS, MASTER. struct ifaddrlblmsg.
    (RTM_GETNEXTHOP, 8, &[1, 5, 9, 10]),
    (libc::RTM_GETADDRLABEL, 12, &[]),
];
const RTM_GETNETCONF: u16 = 82;
const RTM_GETNEXTHOP: u16 = 106;

/// Bytes of struct ifinfomsg.
const LINK: usize = 16;

/// NLM_F_REQUEST, MULTI, ACK, ECHO, ROOT and MATCH.
const FLAGS: u16 = (libc::NLM_F_REQUEST
    | libc::NLM_F_MULTI
    | libc::NLM_F_ACK
    | libc::NLM_F_ECHO
    | libc::NLM_F_ROOT
    | libc::NLM_F_MATCH) as u16;

impl Call<'_> {
    /// Sends netlink requests that ask, and changes for who may make them.
    pub(super) fn send_netlink(
        &self,
        object: &Object,
        addr: &[u8],
        data: &[GuestRange<'_>],
        flags: i32,
    ) -> Result<usize, Errno> {
        let mut bytes = Vec::new();
        for range in data {
            bytes.extend(range.to_vec(MAX_NETLINK.saturating_sub(bytes.len()))?);
        }
        let protocol = rustix::net::sockopt::socket_protocol(object.as_fd())?;
        if protocol.is_some_and(|p| p.as_raw().get() == libc::NETLINK_SOCK_DIAG as u32) {
            let question = check_diag(&bytes)?;
            rustix::net::send(object.as_fd(), &question, SendFlags::DONTWAIT)?;
            return Ok(bytes.len());
        }
        let checked = check_messages(&bytes, self.host.granted())?;
        if !addr.is_empty() {
            check_peer(addr)?;
        }
        let flags =
            SendFlags::from_bits_retain(flags as u32) | SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // What was checked is what is sent: the copy, not guest memory. Without an address it goes
        // to the kernel: a socket is never connected to anybody else.
        rustix::net::send(object.as_fd(), bytes.get(..checked).unwrap_or_default(), flags)?;
        Ok(bytes.len())
    }
}

pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_ne_bytes)
}

/// Lets an address to send or connect to pass (struct sockaddr_nl) that is the kernel's, or
/// AF_UNSPEC, which disconnects. EPERM for any other: processes in the network namespace do not
/// talk to guests this way.
pub(super) fn check_peer(addr: &[u8]) -> Result<(), Errno> {
    match half(addr, 0).map(i32::from) {
        Some(libc::AF_UNSPEC) => Ok(()),
        Some(libc::AF_NETLINK) => match (word(addr, 4), word(addr, 8)) {
            (Some(0), Some(0)) => Ok(()),
            (Some(_), Some(_)) => Err(Errno::PERM),
            _ => Err(Errno::INVAL),
        },
        _ => Err(Errno::INVAL),
    }
}

/// Lets an address of one's own pass whose multicast groups are all harmless; EPERM for others.
pub(super) fn check_bind(addr: &[u8]) -> Result<(), Errno> {
    let groups = word(addr, 8).ok_or(Errno::INVAL)?;
    // Group n is bit n - 1.
    let allowed = (0..32)
        .filter(|bit| groups >> bit & 1 != 0)
        .all(|bit| qlib::sockopt::netlink_group(bit + 1));
    if allowed { Ok(()) } else { Err(Errno::PERM) }
}

/// Refuses messages that are not questions of the list: EPERM, or EINVAL for what is malformed;
/// and changes, unless CAP_NET_ADMIN was granted. How
/// many bytes the messages take: Linux does not look at what follows the last one, and programs
/// (iproute2) send whole buffers.
fn check_messages(bytes: &[u8], granted: u64) -> Result<usize, Errno> {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|r| r.len() >= HEADER) {
        let len = word(rest, 0).ok_or(Errno::INVAL)? as usize;
        let Some(message) = rest.get(..len).filter(|m| m.len() >= HEADER) else { break };
        check_message(message, granted)?;
        at += len.next_multiple_of(4);
    }
    if at == 0 { Err(Errno::INVAL) } else { Ok(at.min(bytes.len())) }
}

/// True if it is how `ip link` finds out what the host knows: an operation to change no link in no
/// way. It has no effect whatever our capabilities are, and an answer: EPERM, EINVAL or ENODEV.
fn is_probe(kind: u16, flags: u16, body: &[u8]) -> bool {
    const FLAGS: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    kind == libc::RTM_NEWLINK
        && flags & !FLAGS == 0
        && body.len() == LINK
        && body.iter().all(|b| *b == 0)
}

fn check_message(message: &[u8], granted: u64) -> Result<(), Errno> {
    let kind = half(message, 4).ok_or(Errno::INVAL)?;
    let flags = half(message, 6).ok_or(Errno::INVAL)?;
    if is_probe(kind, flags, message.get(HEADER..).unwrap_or_default()) {
        return Ok(());
    }
    if granted & CAP_NET_ADMIN != 0 && netchange::is_known(kind) {
        return netchange::check(kind, flags, message.get(HEADER..).unwrap_or_default());
    }
    let (_, fixed, listed) = QUESTIONS.iter().find(|(k, ..)| *k == kind).ok_or(Errno::PERM)?;
    if flags & !FLAGS != 0 {
        return Err(Errno::PERM);
    }
    let body = message.get(HEADER..).unwrap_or_default();
    // Families with tables of their own (bridges, multicast routing, MPLS) are not asked about.
    // iproute2 asks for links by AF_PACKET.
    let family = body.first().map_or(libc::AF_UNSPEC, |f| i32::from(*f));
    if !matches!(family, libc::AF_UNSPEC | libc::AF_INET | libc::AF_INET6 | libc::AF_PACKET) {
        return Err(Errno::PERM);
    }
    // Old programs send the family alone (struct rtgenmsg), padded: the host then takes what is
    // shorter than the fixed part for that, and what follows the padded family for attributes.
    if body.len() < *fixed {
        let rest = body.get(1..).unwrap_or_default();
        return if rest.len() <= 3 || rest.iter().all(|b| *b == 0) {
            Ok(())
        } else {
            Err(Errno::PERM)
        };
    }
    for attribute in attributes(body.get(*fixed..).unwrap_or_default()) {
        if !listed.contains(&attribute?.0) {
            return Err(Errno::PERM);
        }
    }
    Ok(())
}

/// Attributes: type without NLA_F_NESTED and NLA_F_NET_BYTEORDER, which say how to read it, and
/// data. EINVAL, the last item, for one that is malformed.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Errno>> {
    std::iter::from_fn(move || {
        if rest.len() < ATTRIBUTE {
            return None;
        }
        let len = half(rest, 0).map(usize::from)?;
        let kind = half(rest, 2)? & 0x3fff;
        let data = rest.get(ATTRIBUTE..len);
        rest = if data.is_some() { rest.get(len.next_multiple_of(4)..) } else { None }
            .unwrap_or_default();
        Some(data.map(|data| (kind, data)).ok_or(Errno::INVAL))
    })
}

/// A question to sock_diag(7) about internet sockets, made anew of what was checked: which family
/// and protocol, what is to be told, the states, the addresses. The guest's kernel asks no other.
/// EPERM for any other, EINVAL for what is malformed.
fn check_diag(bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    /// Bytes of struct inet_diag_req_v2.
    const QUESTION: usize = 56;
    const FLAGS: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ROOT | libc::NLM_F_MATCH) as u16;
    const BY_FAMILY: u16 = 20;
    const PROTOCOLS: [u8; 4] = [
        libc::IPPROTO_TCP as u8,
        libc::IPPROTO_UDP as u8,
        libc::IPPROTO_UDPLITE as u8,
        libc::IPPROTO_RAW as u8,
    ];
    if bytes.len() != HEADER + QUESTION || word(bytes, 0) != Some(bytes.len() as u32) {
        return Err(Errno::INVAL);
    }
    let (kind, flags) = (half(bytes, 4), half(bytes, 6).ok_or(Errno::INVAL)?);
    let [family, protocol] = [bytes[HEADER], bytes[HEADER + 1]];
    let is_internet = matches!(i32::from(family), libc::AF_INET | libc::AF_INET6);
    if kind != Some(BY_FAMILY)
        || flags & !FLAGS != 0
        || !is_internet
        || !PROTOCOLS.contains(&protocol)
    {
        return Err(Errno::PERM);
    }
    let mut question = bytes.to_vec();
    // nlmsg_pid: the host's to say.
    question[12..HEADER].fill(0);
    Ok(question)
}

/// True if there is a network device of a name (at most 15 bytes) in the network namespace. Asked
/// by rtnetlink, as to ask by ioctl(2) has the host load a module of that name for who has our
/// capabilities.
pub(super) fn is_device(name: &[u8]) -> Result<bool, Errno> {
    const NAME: usize = 16;
    const IFLA_IFNAME: u16 = 3;
    if name.is_empty() || name.len() >= NAME {
        return Ok(false);
    }
    let socket = crate::sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    let mut message = Vec::with_capacity(64);
    message.extend([0; 4]);
    message.extend(libc::RTM_GETLINK.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8 + 16]);
    message.extend(((ATTRIBUTE + NAME) as u16).to_ne_bytes());
    message.extend(IFLA_IFNAME.to_ne_bytes());
    message.extend(name);
    message.resize(HEADER + 16 + ATTRIBUTE + NAME, 0);
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    rustix::net::send(&socket, &message, SendFlags::DONTWAIT)?;
    // The answer lies there when the question has been sent. Its head is enough; the rest is cut
    // off.
    let mut answer = [0u8; HEADER];
    rustix::io::read(&socket, &mut answer)?;
    Ok(half(&answer, 4) == Some(libc::RTM_NEWLINK))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8]) -> Result<usize, Errno> {
        check_messages(bytes, 0)
    }

    fn message(kind: u16, flags: i32, body: &[u8]) -> Vec<u8> {
        let mut m = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        m.extend(kind.to_ne_bytes());
        m.extend((flags as u16).to_ne_bytes());
        m.extend([0; 8]);
        m.extend(body);
        m.resize(m.len().next_multiple_of(4), 0);
        m
    }

    fn question(kind: u16) -> Vec<u8> {
        message(kind, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, &[0; 20])
    }

    fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
        let mut a = ((ATTRIBUTE + data.len()) as u16).to_ne_bytes().to_vec();
        a.extend(kind.to_ne_bytes());
        a.extend(data);
        a.resize(a.len().next_multiple_of(4), 0);
        a
    }

    #[test]
    fn only_listed_questions_pass() {
        for kind in 0..200u16 {
            // No attributes: exactly the fixed part, or the family alone.
            let listed = QUESTIONS.iter().find(|(k, ..)| *k == kind);
            let fixed = listed.map_or(20, |(_, fixed, _)| *fixed);
            for body in [vec![0; fixed], vec![0]] {
                let outcome = check(&message(kind, libc::NLM_F_REQUEST, &body));
                assert_eq!(
                    outcome.map(|_| ()),
                    if listed.is_some() { Ok(()) } else { Err(Errno::PERM) },
                    "{kind}"
                );
            }
        }
        assert_eq!(check(&question(libc::RTM_GETDCB)), Err(Errno::PERM));
    }

    #[test]
    fn a_probe_changes_nothing() {
        let probe =
            |flags, body: &[u8]| check(&message(libc::RTM_NEWLINK, flags, body)).map(|_| ());
        let ask = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        assert_eq!(probe(ask, &[0; LINK]), Ok(()));
        for at in 0..LINK {
            let mut body = [0; LINK];
            body[at] = 1;
            assert_eq!(probe(ask, &body), Err(Errno::PERM), "byte {at}");
        }
        assert_eq!(probe(ask | libc::NLM_F_CREATE, &[0; LINK]), Err(Errno::PERM));
        assert_eq!(
            probe(ask, &[&[0; LINK][..], &attribute(3, b"name")].concat()),
            Err(Errno::PERM)
        );
    }

    #[test]
    fn changes_take_a_capability() {
        let up = message(libc::RTM_NEWLINK, libc::NLM_F_REQUEST, &[&[0; 4][..], &[1; 12]].concat());
        assert_eq!(check_messages(&up, !CAP_NET_ADMIN), Err(Errno::PERM));
        assert_eq!(check_messages(&up, CAP_NET_ADMIN), Ok(32));
        let dcb = message(libc::RTM_SETDCB, libc::NLM_F_REQUEST, &[0; 4]);
        assert_eq!(check_messages(&dcb, u64::MAX), Err(Errno::PERM));
    }

    #[test]
    fn each_message_of_a_buffer_counts() {
        let ask = message(libc::RTM_GETROUTE, libc::NLM_F_REQUEST, &[0; 12]);
        let set = message(libc::RTM_SETLINK, libc::NLM_F_REQUEST, &[0; 16]);
        assert_eq!(check(&[ask.clone(), ask.clone()].concat()), Ok(56));
        assert_eq!(
            check(&[ask.clone(), vec![0; 100]].concat()),
            Ok(28),
            "what follows the last message is not sent"
        );
        assert_eq!(check(&[ask.clone(), set].concat()), Err(Errno::PERM));
        assert_eq!(check(&ask[..12]), Err(Errno::INVAL));
        let mut longer = ask.clone();
        longer[0] = 200;
        assert_eq!(check(&longer), Err(Errno::INVAL));
        let mut shorter = ask;
        shorter[0] = 8;
        assert_eq!(check(&shorter), Err(Errno::INVAL));
    }

    #[test]
    fn other_namespaces_families_and_flags_are_out() {
        let link = |rest: &[u8]| {
            message(libc::RTM_GETLINK, libc::NLM_F_REQUEST, &[&[0; 16], rest].concat())
        };
        assert_eq!(check(&link(&attribute(3, b"eth0\0"))), Ok(44));
        assert_eq!(check(&link(&attribute(46, &[0; 4]))), Err(Errno::PERM), "IFLA_TARGET_NETNSID");
        assert_eq!(check(&link(&attribute(46 | 0x8000, &[0; 4]))), Err(Errno::PERM));
        let second = [attribute(29, &[1, 0, 0, 0]), attribute(46, &[0; 4])].concat();
        assert_eq!(check(&link(&second)), Err(Errno::PERM));
        assert_eq!(check(&link(&[2, 0, 3, 0])), Err(Errno::INVAL), "shorter than its own head");
        // Behind a family alone, where the host would look for attributes.
        let short = [&[0; 4], &attribute(46, &[0; 4])[..]].concat();
        assert_eq!(
            check(&message(libc::RTM_GETLINK, libc::NLM_F_REQUEST, &short)),
            Err(Errno::PERM)
        );
        let bridge = [&[libc::AF_BRIDGE as u8][..], &[0; 15]].concat();
        assert_eq!(
            check(&message(libc::RTM_GETLINK, libc::NLM_F_REQUEST, &bridge)),
            Err(Errno::PERM)
        );
        let atomic = libc::NLM_F_REQUEST | libc::NLM_F_ATOMIC;
        assert_eq!(check(&message(libc::RTM_GETLINK, atomic, &[0; 16])), Err(Errno::PERM));
    }

    #[test]
    fn diagnoses_are_of_internet_sockets() {
        let ask = |kind, flags, head: [u8; 2], length: usize| {
            let body = [&head[..], &[0; 54]].concat();
            let mut bytes = message(kind, flags, &body);
            bytes[12] = 7;
            bytes.truncate(length);
            check_diag(&bytes)
        };
        let request = libc::NLM_F_REQUEST;
        let good = ask(20, request | libc::NLM_F_DUMP, [2, 6], 72).unwrap();
        assert_eq!((good.len(), &good[12..16]), (72, &[0; 4][..]));
        assert_eq!(ask(21, request, [2, 6], 72), Err(Errno::PERM), "SOCK_DESTROY");
        assert_eq!(ask(18, request, [2, 6], 72), Err(Errno::PERM), "TCPDIAG_GETSOCK");
        assert_eq!(ask(20, request | libc::NLM_F_ATOMIC, [2, 6], 72), Err(Errno::PERM));
        for head in [[1, 0], [17, 6], [2, 132], [16, 0]] {
            assert_eq!(ask(20, request, head, 72), Err(Errno::PERM), "{head:?}");
        }
        assert_eq!(ask(20, request, [2, 6], 71), Err(Errno::INVAL));
        let more = [message(20, request, &[2; 56]), attribute(1, &[0; 4])].concat();
        assert_eq!(check_diag(&more), Err(Errno::INVAL), "a program");
    }

    #[test]
    fn the_kernel_is_the_only_peer() {
        let addr = |pid: u32, groups: u32| {
            let mut a = (libc::AF_NETLINK as u16).to_ne_bytes().to_vec();
            a.extend([0; 2]);
            a.extend(pid.to_ne_bytes());
            a.extend(groups.to_ne_bytes());
            a
        };
        assert_eq!(check_peer(&addr(0, 0)), Ok(()));
        assert_eq!(check_peer(&addr(1, 0)), Err(Errno::PERM));
        assert_eq!(check_peer(&addr(0, 1)), Err(Errno::PERM));
        assert_eq!(check_peer(&addr(0, 0)[..8]), Err(Errno::INVAL));
        assert_eq!(check_peer(&[0, 0]), Ok(()));
        assert_eq!(check_bind(&addr(7, 1 | 1 << 4)), Ok(()));
        assert_eq!(check_bind(&addr(0, 1 << 29)), Err(Errno::PERM));
        assert_eq!(check_bind(&addr(0, u32::MAX)), Err(Errno::PERM));
    }

    #[test]
    fn devices_are_found_by_name() {
        assert_eq!(is_device(b"lo"), Ok(true));
        for name in [&b""[..], b"nosuchdevice", b"a-name-that-is-too-long"] {
            assert_eq!(is_device(name), Ok(false));
        }
    }
}
