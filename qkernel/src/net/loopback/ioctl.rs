//! Requests of ioctl(2) about the loopback interface (netdevice(7)).

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use linux_raw_sys::general::CAP_NET_ADMIN;
use linux_raw_sys::net::AF_INET;
use qlib::Va;

use super::address;
use super::interface::{Assigned, INDEX, Interface, NAME, UP};
use crate::errno::{Errno, Result};
use crate::fs::Caller;
use crate::namespace::NetNamespace;

const SIOCGIFNAME: u32 = 0x8910;
const SIOCGIFCONF: u32 = 0x8912;
const SIOCGIFFLAGS: u32 = 0x8913;
const SIOCSIFFLAGS: u32 = 0x8914;
const SIOCGIFADDR: u32 = 0x8915;
const SIOCSIFADDR: u32 = 0x8916;
const SIOCGIFNETMASK: u32 = 0x891b;
const SIOCGIFMETRIC: u32 = 0x891d;
const SIOCGIFMTU: u32 = 0x8921;
const SIOCSIFMTU: u32 = 0x8922;
const SIOCGIFHWADDR: u32 = 0x8927;
const SIOCGIFINDEX: u32 = 0x8933;
const SIOCGIFTXQLEN: u32 = 0x8942;

/// Bytes of struct ifreq, and of the name at its beginning.
const IFREQ: usize = 40;
const IFNAME: usize = 16;
/// ARPHRD_LOOPBACK.
pub const KIND: u16 = 772;

/// A request of ioctl(2), of a socket in a namespace.
pub fn ioctl(
    (namespace, interface): (&NetNamespace, &Interface),
    caller: &dyn Caller,
    command: u32,
    argument: u64,
) -> Result<usize> {
    if command == SIOCGIFCONF {
        return list(interface, caller, argument);
    }
    let mut request = [0; IFREQ];
    caller.mm().read_bytes(Va(argument), &mut request)?;
    if command == SIOCGIFNAME {
        if request[IFNAME..IFNAME + 4] != INDEX.to_ne_bytes() {
            return Err(Errno::ENODEV);
        }
        request[..IFNAME].fill(0);
        request[..NAME.len()].copy_from_slice(NAME);
        return caller.mm().write_bytes(Va(argument), &request).map(|()| 0);
    }
    let name = request[..IFNAME].split(|byte| *byte == 0).next().unwrap_or_default();
    if name != NAME {
        return Err(Errno::ENODEV);
    }
    let may = || caller.creds().capable_in(&namespace.user, CAP_NET_ADMIN);
    let first = || {
        let four = interface.addresses().into_iter().find(|one| one.ip.is_ipv4());
        four.ok_or(Errno::EADDRNOTAVAIL)
    };
    let value: Vec<u8> = match command {
        SIOCGIFFLAGS => (interface.flags() as u16).to_ne_bytes().to_vec(),
        SIOCSIFFLAGS | SIOCSIFADDR | SIOCSIFMTU if !may() => return Err(Errno::EPERM),
        SIOCSIFFLAGS => {
            interface.set_up(u32::from(request[IFNAME]) & UP != 0);
            return Ok(0);
        }
        SIOCSIFMTU => {
            let mtu = request[IFNAME..].first_chunk().map(|b| u32::from_ne_bytes(*b));
            return interface.set_mtu(mtu.ok_or(Errno::EINVAL)?).map(|()| 0);
        }
        SIOCSIFADDR => {
            let ip = address::parse(AF_INET, &request[IFNAME..IFNAME + 16])?.ip();
            if let Ok(old) = first() {
                interface.remove(old)?;
            }
            interface.add(Assigned { ip, prefix: if ip.is_loopback() { 8 } else { 32 } })?;
            return Ok(0);
        }
        SIOCGIFADDR => address::to_bytes(AF_INET, (first()?.ip, 0).into()),
        SIOCGIFNETMASK => {
            let mask = u32::MAX.checked_shl(32 - u32::from(first()?.prefix)).unwrap_or(0);
            address::to_bytes(AF_INET, (IpAddr::from(Ipv4Addr::from(mask)), 0).into())
        }
        SIOCGIFINDEX => INDEX.to_ne_bytes().to_vec(),
        SIOCGIFMTU => interface.mtu().to_ne_bytes().to_vec(),
        SIOCGIFMETRIC => alloc::vec![0; 4],
        SIOCGIFTXQLEN => 1000u32.to_ne_bytes().to_vec(),
        SIOCGIFHWADDR => [&KIND.to_ne_bytes()[..], &[0; 14]].concat(),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    request[IFNAME..IFNAME + value.len()].copy_from_slice(&value);
    caller.mm().write_bytes(Va(argument), &request).map(|()| 0)
}

/// SIOCGIFCONF: the addresses of IPv4. struct ifconf has a length, and where the list goes.
fn list(interface: &Interface, caller: &dyn Caller, argument: u64) -> Result<usize> {
    let mm = caller.mm();
    let room = usize::try_from(mm.read::<i32>(Va(argument))?).map_err(|_| Errno::EINVAL)?;
    let place = mm.read::<u64>(Va(argument.wrapping_add(8)))?;
    let mut bytes = Vec::new();
    for one in interface.addresses().iter().filter(|one| one.ip.is_ipv4()) {
        if place != 0 && bytes.len() + IFREQ > room {
            break;
        }
        let start = bytes.len();
        bytes.extend(NAME);
        bytes.resize(start + IFNAME, 0);
        bytes.extend(address::to_bytes(AF_INET, (one.ip, 0).into()));
        bytes.resize(start + IFREQ, 0);
    }
    if place != 0 {
        mm.write_bytes(Va(place), &bytes)?;
    }
    mm.write(Va(argument), &(bytes.len() as i32)).map(|()| 0)
}
