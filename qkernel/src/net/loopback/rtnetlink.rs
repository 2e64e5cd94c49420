//! rtnetlink(7) of a namespace that has a loopback interface: links, addresses, and no routes but
//! those that come with the addresses.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use linux_raw_sys::general::CAP_NET_ADMIN;
use linux_raw_sys::net::{AF_INET, AF_INET6};

use super::interface::{Assigned, INDEX, Interface, NAME, UP};
use super::ioctl::KIND;
use crate::errno::{Errno, Result};
use crate::namespace::NetNamespace;
use crate::net::local::{Serve, Served, code, error};
use crate::net::netlink::{
    self, DONE, DUMP, FIRST, MULTI, Message, append, attributes, half, word,
};
use crate::task::current;

const NEWLINK: u16 = 16;
const DELLINK: u16 = 17;
const GETLINK: u16 = 18;
const SETLINK: u16 = 19;
const NEWADDR: u16 = 20;
const DELADDR: u16 = 21;
const GETADDR: u16 = 22;
const GETROUTE: u16 = 26;
/// With RTM_GETNEIGH, GETRULE and others, of which there are none: lists are empty.
const EMPTY: &[u16] = &[GETROUTE, 30, 34, 38, 42, 46];
/// NLM_F_ACK.
const ACK: u16 = 4;
/// NETLINK_ROUTE.
const ROUTE: u32 = 0;

/// Bytes of struct ifinfomsg and of struct ifaddrmsg.
const IFINFO: usize = 16;
const IFADDR: usize = 8;
/// IFLA_*.
const IFLA_ADDRESS: u16 = 1;
const IFLA_BROADCAST: u16 = 2;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKMODE: u16 = 17;
const IFLA_STATS64: u16 = 23;
const IFLA_GROUP: u16 = 27;
const IFLA_CARRIER: u16 = 33;
/// IFA_*.
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_FLAGS: u16 = 8;
/// IFA_F_PERMANENT, RT_SCOPE_HOST.
const PERMANENT: u8 = 0x80;
const OF_HOST: u8 = 254;

/// What serves the messages of a netlink socket of this protocol in a namespace.
pub fn server(namespace: Arc<NetNamespace>, interface: Arc<Interface>, protocol: u32) -> Serve {
    Box::new(move |message, sequence, port| {
        let outcome = match protocol {
            ROUTE => answer(&namespace, &interface, message),
            // What other protocols tell of is the container's.
            _ => Err(Errno::EOPNOTSUPP),
        };
        Served::Here(packets(message, outcome, (sequence, port)))
    })
}

fn packets(request: &Message, outcome: Result<Vec<Message>>, ids: (u32, u32)) -> Vec<Vec<u8>> {
    let (sequence, port) = ids;
    let mut all = match outcome {
        Ok(all) => all,
        Err(errno) => alloc::vec![error(request, sequence, port, code(errno))],
    };
    let is_dump = request.flags & DUMP == DUMP && request.kind & 3 == GETLINK & 3;
    let has_failed = all.first().is_some_and(|first| first.kind == netlink::ERROR);
    if is_dump && !has_failed {
        all.iter_mut().for_each(|message| message.flags |= MULTI);
        all.push(Message { kind: DONE, flags: MULTI, body: alloc::vec![0; 4] });
    } else if request.flags & ACK != 0 && !has_failed {
        all.push(error(request, sequence, port, 0));
    }
    all.iter().map(|message| message.to_bytes(sequence, port)).collect()
}

fn answer(
    namespace: &NetNamespace,
    interface: &Interface,
    request: &Message,
) -> Result<Vec<Message>> {
    let is_change = request.kind >= FIRST && request.kind & 3 != GETLINK & 3;
    let may =
        || current::get().is_some_and(|t| t.creds().capable_in(&namespace.user, CAP_NET_ADMIN));
    if is_change && !may() {
        return Err(Errno::EPERM);
    }
    let is_dump = request.flags & DUMP == DUMP;
    match request.kind {
        GETLINK => {
            if !is_dump {
                names_it(&request.body)?;
            }
            Ok(alloc::vec![link(interface)])
        }
        NEWLINK | SETLINK => change_link(interface, &request.body).map(|()| Vec::new()),
        DELLINK => names_it(&request.body).and(Err(Errno::EOPNOTSUPP)),
        GETADDR => {
            let family = request.body.first().copied().unwrap_or(0);
            let all = interface.addresses().into_iter();
            Ok(all.map(address).filter(|m| family == 0 || m.body[0] == family).collect())
        }
        NEWADDR => interface.add(assigned(&request.body)?).map(|()| Vec::new()),
        DELADDR => interface.remove(assigned(&request.body)?).map(|()| Vec::new()),
        kind if EMPTY.contains(&kind) && is_dump => Ok(Vec::new()),
        GETROUTE => Err(Errno::ENETUNREACH),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Checks that a message about a link is about this one. ENODEV.
fn names_it(body: &[u8]) -> Result {
    let index = word(body, 4).ok_or(Errno::EINVAL)?;
    let name = attributes(body.get(IFINFO..).ok_or(Errno::EINVAL)?)
        .find(|(kind, _)| *kind == IFLA_IFNAME)
        .map(|(_, name)| name.split(|byte| *byte == 0).next().unwrap_or_default());
    match (index, name) {
        (INDEX, _) | (0, Some(NAME)) => Ok(()),
        (0, None) => Err(Errno::EINVAL),
        _ => Err(Errno::ENODEV),
    }
}

/// RTM_NEWLINK and RTM_SETLINK: up or down. What makes other links has none of their kind.
fn change_link(interface: &Interface, body: &[u8]) -> Result {
    match names_it(body) {
        Err(Errno::ENODEV) if word(body, 4) == Some(0) => return Err(Errno::EOPNOTSUPP),
        outcome => outcome?,
    }
    let given = attributes(body.get(IFINFO..).ok_or(Errno::EINVAL)?);
    for (_, mtu) in given.filter(|(kind, _)| *kind == IFLA_MTU) {
        interface.set_mtu(word(mtu, 0).ok_or(Errno::EINVAL)?)?;
    }
    let (flags, mask) = word(body, 8).zip(word(body, 12)).ok_or(Errno::EINVAL)?;
    // Without a mask the flags are meant as a whole.
    if mask == 0 && flags == 0 {
        return Ok(());
    }
    if mask == 0 || mask & UP != 0 {
        interface.set_up(flags & UP != 0);
    }
    Ok(())
}

fn link(interface: &Interface) -> Message {
    let mut body = alloc::vec![0, 0];
    body.extend(KIND.to_ne_bytes());
    body.extend(INDEX.to_ne_bytes());
    body.extend(interface.flags().to_ne_bytes());
    body.extend([0; 4]);
    append(&mut body, IFLA_IFNAME, &[NAME, b"\0"].concat());
    append(&mut body, IFLA_TXQLEN, &1000u32.to_ne_bytes());
    append(&mut body, IFLA_OPERSTATE, &[if interface.is_up() { 0 } else { 2 }]);
    append(&mut body, IFLA_LINKMODE, &[0]);
    append(&mut body, IFLA_MTU, &interface.mtu().to_ne_bytes());
    append(&mut body, IFLA_GROUP, &[0; 4]);
    append(&mut body, IFLA_CARRIER, &[interface.is_up().into()]);
    append(&mut body, IFLA_ADDRESS, &[0; 6]);
    append(&mut body, IFLA_BROADCAST, &[0; 6]);
    let (packets, bytes) = interface.traffic();
    // struct rtnl_link_stats64: what is sent is received.
    let counted = [packets, packets, bytes, bytes].map(u64::to_ne_bytes).concat();
    append(&mut body, IFLA_STATS64, &[&counted[..], &[0; 160]].concat());
    Message { kind: NEWLINK, flags: 0, body }
}

fn address(one: Assigned) -> Message {
    let (family, bytes) = match one.ip {
        IpAddr::V4(four) => (AF_INET, four.octets().to_vec()),
        IpAddr::V6(six) => (AF_INET6, six.octets().to_vec()),
    };
    let mut body = alloc::vec![family as u8, one.prefix, PERMANENT, OF_HOST];
    body.extend(INDEX.to_ne_bytes());
    append(&mut body, IFA_ADDRESS, &bytes);
    if one.ip.is_ipv4() {
        append(&mut body, IFA_LOCAL, &bytes);
        append(&mut body, IFA_LABEL, &[NAME, b"\0"].concat());
    }
    append(&mut body, IFA_FLAGS, &u32::from(PERMANENT).to_ne_bytes());
    Message { kind: NEWADDR, flags: 0, body }
}

/// What a message about an address names. EINVAL, ENODEV.
fn assigned(body: &[u8]) -> Result<Assigned> {
    if body.len() < IFADDR {
        return Err(Errno::EINVAL);
    }
    if word(body, 4) != Some(INDEX) {
        return Err(Errno::ENODEV);
    }
    let find = |wanted| attributes(&body[IFADDR..]).find(|(kind, _)| *kind == wanted);
    let (_, bytes) = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS)).ok_or(Errno::EINVAL)?;
    let family = half(&[body[0], 0], 0).map(u32::from);
    let ip: IpAddr = match (family, bytes.len()) {
        (Some(AF_INET), 4) => <[u8; 4]>::try_from(bytes).map_err(|_| Errno::EINVAL)?.into(),
        (Some(AF_INET6), 16) => <[u8; 16]>::try_from(bytes).map_err(|_| Errno::EINVAL)?.into(),
        (Some(AF_INET | AF_INET6), _) => return Err(Errno::EINVAL),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    Ok(Assigned { ip, prefix: body[1] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(interface: &Interface, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<Message>> {
        // Without a thread nothing may be changed; who may is not looked at here.
        let message = Message { kind, flags, body: body.to_vec() };
        match kind {
            NEWLINK => change_link(interface, body).map(|()| Vec::new()),
            NEWADDR => interface.add(assigned(body)?).map(|()| Vec::new()),
            _ => answer(&NetNamespace::initial(), interface, &message),
        }
    }

    #[test]
    fn as_bubblewrap_brings_it_up() {
        let lo = Interface::default();
        let mut body = alloc::vec![2, 8, PERMANENT, OF_HOST, 1, 0, 0, 0];
        append(&mut body, IFA_LOCAL, &[127, 0, 0, 1]);
        append(&mut body, IFA_ADDRESS, &[127, 0, 0, 1]);
        assert!(ask(&lo, NEWADDR, 5, &body).is_ok());
        let mut body = alloc::vec![0; IFINFO];
        (body[4], body[8]) = (1, 1);
        assert!(ask(&lo, NEWLINK, 5, &body).is_ok());
        assert!(lo.has("127.0.0.1".parse().expect("an address")));
        let all = ask(&lo, GETADDR, DUMP, &[2, 0, 0, 0, 0, 0, 0, 0]).expect("addresses");
        assert_eq!((all.len(), &all[0].body[..4]), (1, &[2, 8, PERMANENT, OF_HOST][..]));
        assert_eq!(ask(&lo, GETADDR, DUMP, &[0]).expect("addresses").len(), 2);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let lo = Interface::default();
        let mut body = alloc::vec![0; IFINFO];
        body[4] = 2;
        assert_eq!(ask(&lo, GETLINK, 1, &body), Err(Errno::ENODEV));
        assert_eq!(ask(&lo, NEWLINK, 1, &body), Err(Errno::ENODEV));
        body[4] = 0;
        append(&mut body, IFLA_IFNAME, b"veth0\0");
        assert_eq!(ask(&lo, NEWLINK, 1, &body), Err(Errno::EOPNOTSUPP));
        assert_eq!(ask(&lo, GETLINK, 1, &[0; 7]), Err(Errno::EINVAL));
        assert_eq!(ask(&lo, NEWADDR, 1, &[2, 8, 0, 0, 1, 0, 0, 0]), Err(Errno::EINVAL));
        assert_eq!(ask(&lo, NEWADDR, 1, &[2, 8, 0, 0, 2, 0, 0, 0]), Err(Errno::ENODEV));
        assert_eq!(ask(&lo, 24, 1, &body), Err(Errno::EPERM));
    }
}
