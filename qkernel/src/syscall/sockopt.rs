//! Socket options: getsockopt(2), setsockopt(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::net::{
    AF_UNIX, SO_BINDTODEVICE, SO_PEERCRED, SO_PEERPIDFD, SO_RCVTIMEO_NEW, SO_RCVTIMEO_OLD,
    SO_SNDTIMEO_NEW, SO_SNDTIMEO_OLD, SOL_SOCKET,
};
use qlib::Va;
use qlib::sockopt::{self, CAP_NET_RAW, SO_BINDTOIFINDEX};
use zerocopy::IntoBytes;

use super::install;
use super::socket::{file, of};
use crate::abi::TimeVal;
use crate::errno::{Errno, Result};
use crate::fs::Fd;
use crate::mm::AddressSpace;
use crate::net::guest::interface::NAME_BYTES;
use crate::net::{Direction, Side, refused};
use crate::task::Thread;

/// The longest value of an option.
const MAX_VALUE: usize = sockopt::MAX_VALUE;

fn timeout_of(level: u32, option: u32) -> Option<Direction> {
    match (level, option) {
        (SOL_SOCKET, SO_RCVTIMEO_OLD | SO_RCVTIMEO_NEW) => Some(Direction::Receive),
        (SOL_SOCKET, SO_SNDTIMEO_OLD | SO_SNDTIMEO_NEW) => Some(Direction::Send),
        _ => None,
    }
}

/// getsockopt(2).
pub fn getsockopt(
    thread: &Arc<Thread>,
    fd: Fd,
    level: u32,
    option: u32,
    value: Va,
    length: Va,
) -> Result<usize> {
    let file = file(thread, fd)?;
    let socket = of(&file)?;
    let mm = &thread.mm();
    let room = usize::try_from(mm.read::<i32>(length)?).map_err(|_| Errno::EINVAL)?;
    let bytes: Vec<u8> = match (timeout_of(level, option), socket.side()) {
        (Some(direction), _) => TimeVal::from_ns(socket.timeout_ns(direction)).as_bytes().to_vec(),
        (None, Side::Here(unix)) if (level, option) == (SOL_SOCKET, SO_PEERPIDFD) => {
            let fd = install::fd(thread, unix.peer_pidfd()?, true)?;
            let given = give_option(mm, fd.as_bytes(), room, (value, length));
            if given.is_err() {
                drop(thread.files().remove(fd)?);
            }
            return given;
        }
        // Of what is no AF_UNIX socket nobody can tell.
        (None, Side::Guest(_)) if (level, option) == (SOL_SOCKET, SO_PEERPIDFD) => {
            return Err(Errno::ENODATA);
        }
        (None, Side::Here(unix)) => unix.option(level, option)?,
        (None, Side::Guest(own)) => {
            let bytes = own.option(level, option)?;
            // There has to be room for any name.
            let is_name = (level, option) == (SOL_SOCKET, SO_BINDTODEVICE) && !bytes.is_empty();
            if is_name && room < NAME_BYTES {
                return Err(Errno::EINVAL);
            }
            bytes
        }
        // Nobody: the peer is not of this container.
        (None, Side::Host(host))
            if (level, option) == (SOL_SOCKET, SO_PEERCRED) && host.domain() != AF_UNIX =>
        {
            [0u32, u32::MAX, u32::MAX].as_bytes().to_vec()
        }
        (None, Side::Host(host)) => {
            sockopt::check_get(level as i32, option as i32).map_err(refused)?;
            host.option(level, option, room.min(MAX_VALUE))?
        }
    };
    give_option(mm, &bytes, room, (value, length))
}

/// Stores an option's value, as much of it as there is room for, and the length.
fn give_option(
    mm: &AddressSpace,
    bytes: &[u8],
    room: usize,
    (value, length): (Va, Va),
) -> Result<usize> {
    let bytes = &bytes[..bytes.len().min(room)];
    mm.write_bytes(value, bytes)?;
    mm.write(length, &(bytes.len() as u32))?;
    Ok(0)
}

/// setsockopt(2).
pub fn setsockopt(
    thread: &Arc<Thread>,
    fd: Fd,
    level: u32,
    option: u32,
    value: Va,
    length: i32,
) -> Result<usize> {
    let file = file(thread, fd)?;
    let socket = of(&file)?;
    let mm = thread.mm();
    let length = usize::try_from(length).map_err(|_| Errno::EINVAL)?;
    if let Some(direction) = timeout_of(level, option) {
        if length < size_of::<TimeVal>() {
            return Err(Errno::EINVAL);
        }
        let time = mm.read::<TimeVal>(value)?;
        if !(0..1_000_000).contains(&time.usec) {
            return Err(Errno::EDOM);
        }
        // A negative time, as Linux has it, means not to wait at all: the shortest wait stands for
        // that.
        socket.set_timeout_ns(direction, if time.sec < 0 { 1 } else { time.to_ns()? });
        return Ok(0);
    }
    let mut bytes = alloc::vec![0; length.min(MAX_VALUE)];
    mm.read_bytes(value, &mut bytes)?;
    match socket.side() {
        Side::Here(unix) => unix.set_option(thread, level, option, &bytes)?,
        Side::Guest(own) => own.set_option(thread, level, option, &bytes)?,
        Side::Host(host) => {
            if let Some(outcome) = host.set_membership((level, option), &bytes) {
                return outcome.map(|()| 0);
            }
            let caps = thread.creds().host_caps();
            sockopt::check_set(level as i32, option as i32, &bytes, caps).map_err(refused)?;
            let is_tied =
                || host.option(SOL_SOCKET, SO_BINDTOIFINDEX as u32, 4).map(|index| index != [0; 4]);
            if sockopt::binds_to_device(level as i32, option as i32)
                && caps & CAP_NET_RAW == 0
                && is_tied()?
            {
                return Err(Errno::EPERM);
            }
            host.set_option(level, option, &bytes)?;
        }
    }
    Ok(0)
}
