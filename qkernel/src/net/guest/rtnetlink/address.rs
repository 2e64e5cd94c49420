//! Messages about addresses: RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR.

use alloc::vec::Vec;
use core::net::IpAddr;

use linux_raw_sys::net::{AF_INET, AF_INET6};

use super::{ADDRESS, EXCLUSIVE, REPLACE, find};
use crate::errno::{Errno, Result};
use crate::net::guest::interface::{Assigned, Interface};
use crate::net::guest::network::Network;
use crate::net::netlink::{Message, append, word};

/// Bytes of struct ifaddrmsg.
const IFADDR: usize = 8;
/// IFA_*.
const IP: u16 = 1;
const LOCAL: u16 = 2;
const LABEL: u16 = 3;
const BROADCAST: u16 = 4;
const TIMES: u16 = 6;
const FLAGS: u16 = 8;
/// IFA_F_PERMANENT.
const PERMANENT: u8 = 0x80;

/// AF_INET or AF_INET6 with the bytes of an address.
pub fn parts(ip: IpAddr) -> (u8, Vec<u8>) {
    match ip {
        IpAddr::V4(four) => (AF_INET as u8, four.octets().to_vec()),
        IpAddr::V6(six) => (AF_INET6 as u8, six.octets().to_vec()),
    }
}

/// The address of a family. EINVAL for bytes of another length, EOPNOTSUPP for another family.
pub fn ip_of(family: u8, bytes: &[u8]) -> Result<IpAddr> {
    let ip = match u32::from(family) {
        AF_INET => <[u8; 4]>::try_from(bytes).map(IpAddr::from),
        AF_INET6 => <[u8; 16]>::try_from(bytes).map(IpAddr::from),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    ip.map_err(|_| Errno::EINVAL)
}

/// All addresses of the family that a question names, and of the interface.
pub fn all(network: &Network, question: &[u8]) -> Vec<Message> {
    let family = question.first().copied().unwrap_or(0);
    let index = word(question, 4).unwrap_or(0);
    let mut links = network.links();
    links.retain(|link| index == 0 || link.index() == index);
    let each = |link: &Interface| -> Vec<_> {
        link.addresses().into_iter().map(|one| message(link, one)).collect()
    };
    let all = links.iter().flat_map(|link| each(link));
    all.filter(|message| family == 0 || message.body[0] == family).collect()
}

/// An address, as RTM_NEWADDR tells of it.
pub fn message(link: &Interface, one: Assigned) -> Message {
    let (family, bytes) = parts(one.ip);
    let mut body = alloc::vec![family, one.prefix, PERMANENT, one.scope];
    body.extend(link.index().to_ne_bytes());
    append(&mut body, IP, &bytes);
    if one.ip.is_ipv4() {
        append(&mut body, LOCAL, &bytes);
        append(&mut body, LABEL, &[&link.name()[..], b"\0"].concat());
    }
    if let Some(broadcast) = one.broadcast {
        append(&mut body, BROADCAST, &broadcast.octets());
    }
    // struct ifa_cacheinfo: for how many seconds it is preferred and valid, which is for ever.
    let times = [u32::MAX, u32::MAX, 0, 0].map(u32::to_ne_bytes).concat();
    append(&mut body, TIMES, &times);
    append(&mut body, FLAGS, &u32::from(PERMANENT).to_ne_bytes());
    Message { kind: ADDRESS, flags: 0, body }
}

/// RTM_NEWADDR.
pub fn add(network: &Network, request: &Message) -> Result {
    let (index, one) = assigned(&request.body)?;
    let link = network.link(index)?;
    match network.add_address(&link, one) {
        // It is there: the same is not another one.
        Err(Errno::EEXIST) if request.flags & (EXCLUSIVE | REPLACE) == REPLACE => Ok(()),
        outcome => outcome,
    }
}

/// RTM_DELADDR.
pub fn remove(network: &Network, body: &[u8]) -> Result {
    let (index, mut one) = assigned(body)?;
    let link = network.link(index)?;
    if one.ip.is_ipv4() && find(body, IFADDR, IP)?.is_none() {
        // Whatever its network is.
        let is_it = |other: &Assigned| other.ip == one.ip;
        one = link.addresses().into_iter().find(is_it).ok_or(Errno::EADDRNOTAVAIL)?;
    }
    network.remove_address(&link, one)
}

/// What a message about an address names: the interface's number, and the address. EINVAL;
/// EOPNOTSUPP for one of a point-to-point connection.
fn assigned(body: &[u8]) -> Result<(u32, Assigned)> {
    let index = word(body, 4).ok_or(Errno::EINVAL)?;
    let own = find(body, IFADDR, LOCAL)?;
    let of_network = find(body, IFADDR, IP)?;
    let bytes = own.or(of_network).ok_or(Errno::EINVAL)?;
    if of_network.is_some_and(|other| other != bytes) {
        return Err(Errno::EOPNOTSUPP);
    }
    let one = Assigned::new(ip_of(body[0], bytes)?, body[1]);
    let broadcast = find(body, IFADDR, BROADCAST)?.and_then(|four| four.first_chunk::<4>());
    let scope = if one.ip.is_ipv4() { body[3] } else { one.scope };
    Ok((index, Assigned { broadcast: broadcast.map(|four| (*four).into()), scope, ..one }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::guest::interface::OF_HOST;

    #[test]
    fn as_bubblewrap_gives_one() {
        let network = Network::new(2);
        let mut body = alloc::vec![2, 8, PERMANENT, OF_HOST, 1, 0, 0, 0];
        append(&mut body, LOCAL, &[127, 0, 0, 1]);
        append(&mut body, IP, &[127, 0, 0, 1]);
        let request = Message { kind: ADDRESS, flags: 5, body };
        assert_eq!(add(&network, &request), Ok(()));
        assert_eq!(add(&network, &request), Err(Errno::EEXIST));
        let lo = network.link(1).expect("it");
        network.set_up(&lo, true);
        let told = all(&network, &[2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((told.len(), &told[0].body[..4]), (1, &[2, 8, PERMANENT, OF_HOST][..]));
        assert_eq!(all(&network, &[0]).len(), 2);
        assert_eq!(remove(&network, &request.body), Ok(()));
        assert_eq!(remove(&network, &request.body), Err(Errno::EADDRNOTAVAIL));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let network = Network::new(2);
        assert_eq!(remove(&network, &[2, 8, 0, 0, 1, 0, 0, 0]), Err(Errno::EINVAL));
        assert_eq!(remove(&network, &[2, 8, 0]), Err(Errno::EINVAL));
        let mut body = alloc::vec![2, 8, 0, 0, 9, 0, 0, 0];
        append(&mut body, LOCAL, &[127, 0, 0, 1]);
        assert_eq!(remove(&network, &body), Err(Errno::ENODEV));
        append(&mut body, IP, &[127, 0, 0, 2]);
        assert_eq!(remove(&network, &body), Err(Errno::EOPNOTSUPP));
    }
}
