//! Requests of ioctl(2) about the interfaces and routes of a namespace (netdevice(7)).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use linux_raw_sys::general::CAP_NET_ADMIN;
use linux_raw_sys::net::AF_INET;
use qlib::Va;

use super::address;
use super::interface::{Assigned, Interface, UP, network_of};
use super::network::Network;
use super::rtnetlink::{QUEUE, hardware_kind};
use crate::errno::{Errno, Result};
use crate::fs::Caller;
use crate::namespace::NetNamespace;

const SIOCGIFNAME: u32 = 0x8910;
const SIOCGIFCONF: u32 = 0x8912;
const SIOCGIFFLAGS: u32 = 0x8913;
const SIOCSIFFLAGS: u32 = 0x8914;
const SIOCGIFADDR: u32 = 0x8915;
const SIOCSIFADDR: u32 = 0x8916;
const SIOCGIFBRDADDR: u32 = 0x8919;
const SIOCGIFNETMASK: u32 = 0x891b;
const SIOCSIFNETMASK: u32 = 0x891c;
const SIOCGIFMETRIC: u32 = 0x891d;
const SIOCGIFMTU: u32 = 0x8921;
const SIOCSIFMTU: u32 = 0x8922;
const SIOCSIFNAME: u32 = 0x8923;
const SIOCGIFHWADDR: u32 = 0x8927;
const SIOCGIFINDEX: u32 = 0x8933;
const SIOCGIFTXQLEN: u32 = 0x8942;
/// Those that change something.
const CHANGES: &[u32] = &[SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU, SIOCSIFNAME];

/// Bytes of struct ifreq, and of the name at its beginning.
const IFREQ: usize = 40;
const IFNAME: usize = 16;

/// A request of ioctl(2), of a socket in a namespace.
pub fn ioctl(
    (namespace, network): (&NetNamespace, &Arc<Network>),
    caller: &dyn Caller,
    command: u32,
    argument: u64,
) -> Result<usize> {
    if command == SIOCGIFCONF {
        return list(network, caller, argument);
    }
    let mut request = [0; IFREQ];
    caller.mm().read_bytes(Va(argument), &mut request)?;
    if command == SIOCGIFNAME {
        let index = word(&request[IFNAME..])?;
        let name = network.link(index)?.name();
        request[..IFNAME].fill(0);
        request[..name.len()].copy_from_slice(&name);
        return caller.mm().write_bytes(Va(argument), &request).map(|()| 0);
    }
    let name = request[..IFNAME].split(|byte| *byte == 0).next().unwrap_or_default();
    let link = network.named(name)?;
    if CHANGES.contains(&command) {
        if !caller.creds().capable_in(&namespace.user, CAP_NET_ADMIN) {
            return Err(Errno::EPERM);
        }
        return change(network, &link, command, &request[IFNAME..]).map(|()| 0);
    }
    let value = ask(&link, command)?;
    request[IFNAME..IFNAME + value.len()].copy_from_slice(&value);
    caller.mm().write_bytes(Va(argument), &request).map(|()| 0)
}

fn word(bytes: &[u8]) -> Result<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

/// The address of IPv4 that stands for an interface: its first one. EADDRNOTAVAIL.
fn first(link: &Interface) -> Result<Assigned> {
    let four = link.addresses().into_iter().find(|one| one.ip.is_ipv4());
    four.ok_or(Errno::EADDRNOTAVAIL)
}

fn mask_of(one: &Assigned) -> IpAddr {
    network_of(Ipv4Addr::BROADCAST.into(), one.prefix)
}

fn ask(link: &Interface, command: u32) -> Result<Vec<u8>> {
    let told = |ip: IpAddr| address::to_bytes(AF_INET, (ip, 0).into());
    Ok(match command {
        SIOCGIFFLAGS => (link.flags() as u16).to_ne_bytes().to_vec(),
        SIOCGIFADDR => told(first(link)?.ip),
        SIOCGIFNETMASK => told(mask_of(&first(link)?)),
        SIOCGIFBRDADDR => told(first(link)?.broadcast.unwrap_or(Ipv4Addr::UNSPECIFIED).into()),
        SIOCGIFINDEX => link.index().to_ne_bytes().to_vec(),
        SIOCGIFMTU => link.mtu().to_ne_bytes().to_vec(),
        SIOCGIFMETRIC => alloc::vec![0; 4],
        SIOCGIFTXQLEN => QUEUE.to_ne_bytes().to_vec(),
        SIOCGIFHWADDR => {
            [&hardware_kind(link).to_ne_bytes()[..], &link.hardware(), &[0; 8]].concat()
        }
        _ => return Err(Errno::EOPNOTSUPP),
    })
}

fn change(network: &Arc<Network>, link: &Arc<Interface>, command: u32, value: &[u8]) -> Result {
    match command {
        SIOCSIFFLAGS => network.set_up(link, u32::from(value[0]) & UP != 0),
        SIOCSIFMTU => link.set_mtu(word(value)?)?,
        SIOCSIFNAME => {
            let name = value[..IFNAME].split(|byte| *byte == 0).next().unwrap_or_default();
            network.rename(link, name)?;
        }
        SIOCSIFADDR => {
            let ip = address::parse(AF_INET, &value[..16])?.ip();
            if let Ok(old) = first(link) {
                network.remove_address(link, old)?;
            }
            if !ip.is_unspecified() {
                network.add_address(link, with_broadcast(ip, class_of(ip)))?;
            }
        }
        SIOCSIFNETMASK => {
            let mask = address::parse(AF_INET, &value[..16])?.ip();
            let IpAddr::V4(four) = mask else { return Err(Errno::EINVAL) };
            let prefix = u32::from(four).leading_ones() as u8;
            if network_of(Ipv4Addr::BROADCAST.into(), prefix) != mask {
                return Err(Errno::EINVAL);
            }
            let old = first(link)?;
            if old.prefix != prefix {
                network.remove_address(link, old)?;
                network.add_address(link, with_broadcast(old.ip, prefix))?;
            }
        }
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(())
}

/// The bits of an address's network if nobody says it: those of its class.
fn class_of(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(four) => match four.octets()[0] {
            0..=127 => 8,
            128..=191 => 16,
            192..=223 => 24,
            _ => 32,
        },
        IpAddr::V6(_) => 128,
    }
}

fn with_broadcast(ip: IpAddr, prefix: u8) -> Assigned {
    let last = match (ip, network_of(ip, prefix)) {
        (IpAddr::V4(_), IpAddr::V4(first)) if prefix < 31 && !ip.is_loopback() => {
            let rest = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
            Some(Ipv4Addr::from(u32::from(first) | rest))
        }
        _ => None,
    };
    Assigned { broadcast: last, ..Assigned::new(ip, prefix) }
}

/// SIOCGIFCONF: the addresses of IPv4. struct ifconf has a length, and where the list goes.
fn list(network: &Network, caller: &dyn Caller, argument: u64) -> Result<usize> {
    let mm = caller.mm();
    let room = usize::try_from(mm.read::<i32>(Va(argument))?).map_err(|_| Errno::EINVAL)?;
    let place = mm.read::<u64>(Va(argument.wrapping_add(8)))?;
    let mut bytes = Vec::new();
    for link in network.links() {
        for one in link.addresses().iter().filter(|one| one.ip.is_ipv4()) {
            if place != 0 && bytes.len() + IFREQ > room {
                break;
            }
            let start = bytes.len();
            bytes.extend(link.name());
            bytes.resize(start + IFNAME, 0);
            bytes.extend(address::to_bytes(AF_INET, (one.ip, 0).into()));
            bytes.resize(start + IFREQ, 0);
        }
    }
    if place != 0 {
        mm.write_bytes(Va(place), &bytes)?;
    }
    mm.write(Va(argument), &(bytes.len() as i32)).map(|()| 0)
}
