//! Programs by which a request chooses among internet sockets (INET_DIAG_REQ_BYTECODE). They are
//! run here: the host is asked for all sockets, and sees no program.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use linux_raw_sys::net::{AF_INET, AF_INET6};

use super::inet::ANSWER;
use crate::errno::{Errno, Result};
use crate::net::netlink::{half, word};

/// INET_DIAG_BC_*.
const NOP: u8 = 0;
const JMP: u8 = 1;
const S_GE: u8 = 2;
const S_LE: u8 = 3;
const D_GE: u8 = 4;
const D_LE: u8 = 5;
const S_COND: u8 = 7;
const D_COND: u8 = 8;
const DEV_COND: u8 = 9;
const S_EQ: u8 = 11;
const D_EQ: u8 = 12;

/// Bytes of struct inet_diag_bc_op, and of struct inet_diag_hostcond without the address.
const OP: usize = 4;
const HOST: usize = 8;

/// A program that was checked.
pub(super) struct Program(Vec<u8>);

/// One side of a socket.
struct Side<'a> {
    port: u16,
    address: &'a [u8],
}

impl Program {
    /// EINVAL for one that Linux would not run, EOPNOTSUPP for conditions that nothing is known of
    /// here (AUTO, marks, cgroups).
    pub fn new(bytes: &[u8]) -> Result<Program> {
        let mut rest = bytes;
        // Where operations begin, and where "no" leads to, in bytes before the end.
        let (mut begins, mut targets) = (BTreeSet::new(), Vec::new());
        while !rest.is_empty() {
            let (code, yes, no) = op(rest).ok_or(Errno::EINVAL)?;
            let least = match code {
                NOP | JMP => OP,
                S_GE..=D_LE | S_EQ | D_EQ | DEV_COND => 2 * OP,
                S_COND | D_COND => OP + HOST + condition(rest).ok_or(Errno::EINVAL)?,
                6 | 10 | 13 => return Err(Errno::EOPNOTSUPP),
                _ => return Err(Errno::EINVAL),
            };
            let jumps_well = no >= least && no <= rest.len() + OP && no % OP == 0;
            if yes < least || yes > rest.len() || yes % OP != 0 || code != NOP && !jumps_well {
                return Err(Errno::EINVAL);
            }
            begins.insert(rest.len());
            if code != NOP && no < rest.len() {
                targets.push(rest.len() - no);
            }
            rest = rest.get(yes..).unwrap_or_default();
        }
        // In the middle of an operation there may be one that leads nowhere.
        if !targets.iter().all(|target| begins.contains(target)) {
            return Err(Errno::EINVAL);
        }
        Ok(Program(bytes.to_vec()))
    }

    /// True if it chooses a socket (struct inet_diag_msg).
    pub fn accepts(&self, socket: &[u8]) -> bool {
        self.run(socket).unwrap_or(false)
    }

    fn run(&self, socket: &[u8]) -> Option<bool> {
        let socket = socket.get(..ANSWER)?;
        let port = |at: usize| Some(u16::from_be_bytes(socket.get(at..at + 2)?.try_into().ok()?));
        let source = Side { port: port(4)?, address: socket.get(8..24)? };
        let destination = Side { port: port(6)?, address: socket.get(24..40)? };
        let mut rest = &self.0[..];
        while !rest.is_empty() {
            let (code, yes, no) = op(rest)?;
            // The port lies in the second half of the next operation.
            let number = || half(rest, OP + 2);
            let holds = match code {
                NOP => true,
                JMP => false,
                S_GE => source.port >= number()?,
                S_LE => source.port <= number()?,
                D_GE => destination.port >= number()?,
                D_LE => destination.port <= number()?,
                S_EQ => source.port == number()?,
                D_EQ => destination.port == number()?,
                DEV_COND => word(socket, 40)? == word(rest, OP)?,
                S_COND => matches(rest.get(OP..)?, socket[0], &source)?,
                D_COND => matches(rest.get(OP..)?, socket[0], &destination)?,
                _ => return None,
            };
            let step = if holds { yes } else { no };
            if step > rest.len() {
                // One past the end is "no".
                return Some(false);
            }
            rest = rest.get(step..)?;
        }
        Some(true)
    }
}

/// The code and both steps of an operation.
fn op(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    Some((*bytes.first()?, usize::from(*bytes.get(1)?), usize::from(half(bytes, 2)?)))
}

/// The bytes of an address of a family.
fn address_bytes(family: u8) -> Option<usize> {
    match u32::from(family) {
        0 => Some(0),
        AF_INET => Some(4),
        AF_INET6 => Some(16),
        _ => None,
    }
}

/// The bytes of the address of the condition in an operation, if it is right.
fn condition(bytes: &[u8]) -> Option<usize> {
    let host = bytes.get(OP..OP + HOST)?;
    let address = address_bytes(host[0])?;
    (usize::from(host[1]) <= address * 8 && bytes.len() >= OP + HOST + address).then_some(address)
}

/// True if a side of a socket of `family` is what a condition wants.
fn matches(host: &[u8], family: u8, side: &Side<'_>) -> Option<bool> {
    let (wanted, prefix) = (*host.first()?, usize::from(*host.get(1)?));
    let port = word(host, 4)?.cast_signed();
    if port != -1 && port != i32::from(side.port) {
        return Some(false);
    }
    let pattern = host.get(HOST..HOST + address_bytes(wanted)?)?;
    let mut address = side.address;
    if wanted != 0 && wanted != family {
        // IPv4 behind IPv6.
        const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        if u32::from(wanted) != AF_INET || !address.starts_with(&MAPPED) {
            return Some(false);
        }
        address = address.get(12..)?;
    }
    let bytes = prefix / 8;
    let bits = prefix % 8;
    let mask = !(0xff_u32 >> bits) as u8;
    let whole = address.get(..bytes)? == pattern.get(..bytes)?;
    Some(whole && (bits == 0 || (address.get(bytes)? ^ pattern.get(bytes)?) & mask == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.1.2.3:80 from 10.1.2.4:5000, on interface 3.
    fn socket() -> Vec<u8> {
        let mut socket = alloc::vec![0; ANSWER];
        socket[0] = AF_INET as u8;
        socket[4..8].copy_from_slice(&[0, 80, 5000u16.to_be_bytes()[0], 5000u16.to_be_bytes()[1]]);
        socket[8..12].copy_from_slice(&[10, 1, 2, 3]);
        socket[24..28].copy_from_slice(&[10, 1, 2, 4]);
        socket[40] = 3;
        socket
    }

    fn port(code: u8, port: u16) -> Vec<u8> {
        [&[code, 8, 12, 0, 0, 0][..], &port.to_ne_bytes()].concat()
    }

    fn host(code: u8, family: u8, prefix: u8, port: i32, address: &[u8]) -> Vec<u8> {
        let yes = (OP + HOST + address.len()) as u8;
        let head = [code, yes, yes + 4, 0, family, prefix, 0, 0];
        [&head[..], &port.to_ne_bytes(), address].concat()
    }

    fn accepts(program: &[u8]) -> Result<bool> {
        Ok(Program::new(program)?.accepts(&socket()))
    }

    #[test]
    fn ports_are_compared() {
        for (code, number, outcome) in [
            (S_GE, 80, true),
            (S_GE, 81, false),
            (S_LE, 80, true),
            (S_LE, 79, false),
            (S_EQ, 80, true),
            (D_EQ, 80, false),
            (D_GE, 5000, true),
            (D_LE, 4999, false),
        ] {
            assert_eq!(accepts(&port(code, number)), Ok(outcome), "{code} {number}");
        }
        assert_eq!(accepts(&[]), Ok(true));
        // "No" of the first leads past the end of both.
        let mut both = [port(S_GE, 80), port(S_LE, 80)].concat();
        both[2] = 20;
        assert_eq!(accepts(&both), Ok(true));
    }

    #[test]
    fn addresses_are_compared() {
        let net = |prefix, last| accepts(&host(S_COND, 2, prefix, -1, &[10, 1, 2, last]));
        assert_eq!(net(32, 3), Ok(true));
        assert_eq!(net(32, 2), Ok(false));
        assert_eq!(net(31, 2), Ok(true));
        assert_eq!(net(24, 200), Ok(true));
        assert_eq!(net(33, 3), Err(Errno::EINVAL));
        assert_eq!(accepts(&host(D_COND, 2, 0, 5000, &[0; 4])), Ok(true));
        assert_eq!(accepts(&host(D_COND, 0, 0, 5001, &[])), Ok(false));
        assert_eq!(accepts(&host(S_COND, 10, 0, -1, &[0; 16])), Ok(false));
        assert_eq!(accepts(&[DEV_COND, 8, 12, 0, 3, 0, 0, 0]), Ok(true));
        assert_eq!(accepts(&[DEV_COND, 8, 12, 0, 4, 0, 0, 0]), Ok(false));
    }

    #[test]
    fn what_linux_would_not_run_is_refused() {
        for program in [
            &[S_GE, 0, 8, 0, 0, 0, 0, 0][..],
            &[S_GE, 8, 0, 0, 0, 0, 0, 0],
            &[S_GE, 8, 16, 0, 0, 0, 0, 0],
            &[S_GE, 4, 8, 0],
            &[S_GE, 8, 8],
            &[99, 4, 4, 0],
            &[S_COND, 4, 4, 0],
            &[JMP, 4, 6, 0],
            // To the middle of an operation, where one stands that leads to itself.
            &[JMP, 4, 8, 0, S_EQ, 8, 12, 0, NOP, 0, 0, 0],
            &[S_GE, 8, 4, 0, NOP, 0, 0, 0],
        ] {
            assert_eq!(accepts(program), Err(Errno::EINVAL), "{program:?}");
        }
        assert_eq!(accepts(&[6, 4, 4, 0]), Err(Errno::EOPNOTSUPP));
    }
}
