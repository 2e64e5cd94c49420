//! Socket addresses between user memory and the kernel.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr};

use linux_raw_sys::net::{AF_INET, AF_INET6};
use qlib::Va;

use crate::errno::{Errno, Result};
use crate::task::Thread;

/// Bytes of struct sockaddr_storage.
pub const MAX_ADDRESS_BYTES: usize = 128;

/// Reads an address of `length` bytes. EINVAL when that is too long.
pub fn read(thread: &Thread, address: Va, length: u32) -> Result<Vec<u8>> {
    let length = length as usize;
    if length > MAX_ADDRESS_BYTES {
        return Err(Errno::EINVAL);
    }
    let mut bytes = alloc::vec![0; length];
    thread.mm().read_bytes(address, &mut bytes)?;
    Ok(bytes)
}

/// Stores an address, cut to the length found at `length`, and its whole length there. Nowhere, if
/// `address` is null.
pub fn write(thread: &Thread, address: Va, length: Va, bytes: &[u8]) -> Result {
    if address.0 == 0 {
        return Ok(());
    }
    let mm = thread.mm();
    let room = usize::try_from(mm.read::<i32>(length)?).map_err(|_| Errno::EINVAL)?;
    mm.write_bytes(address, &bytes[..bytes.len().min(room)])?;
    mm.write(length, &(bytes.len() as u32))
}

/// sa_family; EINVAL when the address is too short to have one.
pub fn family(bytes: &[u8]) -> Result<u32> {
    match bytes {
        [a, b, ..] => Ok(u16::from_ne_bytes([*a, *b]).into()),
        _ => Err(Errno::EINVAL),
    }
}

/// The port of an address to bind a socket of the family `domain` to. AF_UNSPEC counts as the
/// socket's own family: Linux takes it for AF_INET.
pub fn port(domain: u32, bytes: &[u8]) -> Option<u16> {
    match domain {
        AF_INET | AF_INET6 => bytes.get(2..4).map(|b| u16::from_be_bytes([b[0], b[1]])),
        _ => None,
    }
}

/// An address of the internet families, for people: "10.0.0.1:80", "[::1]:80"; of others the
/// family's number.
pub fn show(bytes: &[u8]) -> String {
    let number = port(AF_INET, bytes).unwrap_or_default();
    match family(bytes) {
        Ok(AF_INET) if bytes.len() >= 8 => {
            let [a, b, c, d] = [bytes[4], bytes[5], bytes[6], bytes[7]];
            format!("{}:{number}", Ipv4Addr::new(a, b, c, d))
        }
        Ok(AF_INET6) => match bytes.get(8..24).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok()) {
            Some(address) => format!("[{}]:{number}", Ipv6Addr::from(address)),
            None => "a socket".to_string(),
        },
        Ok(family) => format!("a socket of family {family}"),
        Err(_) => "a socket".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use linux_raw_sys::net::AF_NETLINK;

    use super::*;

    #[test]
    fn ports_are_found_on_internet_sockets_only() {
        assert_eq!(port(AF_INET, &[2, 0, 0x1f, 0x90, 127, 0, 0, 1]), Some(8080));
        assert_eq!(port(AF_INET6, &[10, 0, 0, 80]), Some(80));
        assert_eq!(
            port(AF_INET, &[0, 0, 0, 80]),
            Some(80),
            "whatever family the address claims to be of"
        );
        assert_eq!(port(AF_NETLINK, &[16, 0, 0, 80]), None);
        assert_eq!(port(AF_INET, &[2, 0, 0]), None);
        assert_eq!(family(&[2]), Err(Errno::EINVAL));
    }

    #[test]
    fn addresses_are_shown_as_people_write_them() {
        assert_eq!(show(&[2, 0, 0x1f, 0x90, 127, 0, 0, 1]), "127.0.0.1:8080");
        let mut six = [0; 28];
        six[..4].copy_from_slice(&[10, 0, 0, 80]);
        six[23] = 1;
        assert_eq!(show(&six), "[::1]:80");
        assert_eq!(show(&six[..20]), "a socket");
        assert_eq!(show(&[16, 0, 0, 0]), "a socket of family 16");
        assert_eq!(show(&[]), "a socket");
    }
}
