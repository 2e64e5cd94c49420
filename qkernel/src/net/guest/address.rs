//! struct sockaddr_in and sockaddr_in6 (ip(7), ipv6(7)).

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use linux_raw_sys::net::{AF_INET, AF_INET6, AF_UNSPEC};

use crate::errno::{Errno, Result};
use crate::net::address::family;

/// Bytes of struct sockaddr_in, of struct sockaddr_in6 without its scope, and with it.
const IN: usize = 16;
const IN6_LEAST: usize = 24;
const IN6: usize = 28;

/// True if an address is of this family.
pub fn family_is(bytes: &[u8], expected: u32) -> bool {
    family(bytes) == Ok(expected)
}

/// What an address says to a socket of the family `domain`. An IPv4 address that is mapped into
/// IPv6 is the former. EINVAL if it is too short, EAFNOSUPPORT if it is of another family.
pub fn parse(domain: u32, bytes: &[u8]) -> Result<SocketAddr> {
    let least = if domain == AF_INET6 { IN6_LEAST } else { IN };
    if bytes.len() < least {
        return Err(Errno::EINVAL);
    }
    if family(bytes)? != domain {
        return Err(Errno::EAFNOSUPPORT);
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip = match bytes[8..].first_chunk::<16>().filter(|_| domain == AF_INET6) {
        Some(six) => Ipv6Addr::from(*six).to_canonical(),
        None => IpAddr::from([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    Ok(SocketAddr::new(ip, port))
}

/// The same for a datagram: one of no family is of IPv4 to a socket of that, and one of IPv6 may
/// send to IPv4 (udp(7), ipv6(7)).
pub fn parse_datagram(domain: u32, bytes: &[u8]) -> Result<SocketAddr> {
    match (domain, family(bytes)?) {
        (AF_INET, AF_UNSPEC) if bytes.len() >= IN => {
            let mut four = bytes.to_vec();
            four[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
            parse(AF_INET, &four)
        }
        (AF_INET6, AF_INET) => parse(AF_INET, bytes),
        _ => parse(domain, bytes),
    }
}

/// The address as a socket of the family `domain` tells it.
pub fn to_bytes(domain: u32, address: SocketAddr) -> Vec<u8> {
    let mut bytes = (domain as u16).to_ne_bytes().to_vec();
    bytes.extend(address.port().to_be_bytes());
    match (domain, address.ip()) {
        (AF_INET, ip) => {
            let four = if let IpAddr::V4(four) = ip { four } else { Ipv4Addr::UNSPECIFIED };
            bytes.extend(four.octets());
            bytes.resize(IN, 0);
        }
        (_, ip) => {
            let six = match ip {
                IpAddr::V4(four) => four.to_ipv6_mapped(),
                IpAddr::V6(six) => six,
            };
            bytes.extend([0; 4]);
            bytes.extend(six.octets());
            bytes.resize(IN6, 0);
        }
    }
    bytes
}

/// No address, of the family `domain`.
pub fn unspecified(domain: u32) -> IpAddr {
    match domain {
        AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_they_are_told() {
        for (domain, text) in
            [(AF_INET, "127.0.0.1:80"), (AF_INET6, "[::1]:8080"), (AF_INET6, "10.0.0.1:7")]
        {
            let address: SocketAddr = text.parse().expect("an address");
            let bytes = to_bytes(domain, address);
            assert_eq!(parse(domain, &bytes), Ok(address));
            assert_eq!(parse(domain, &bytes[..15]), Err(Errno::EINVAL));
            assert!(parse(AF_INET + AF_INET6 - domain, &bytes).is_err());
        }
        let any = SocketAddr::new(unspecified(AF_INET), 0);
        assert_eq!(to_bytes(AF_INET, any), [&[2, 0][..], &[0; 14]].concat());
    }
}
