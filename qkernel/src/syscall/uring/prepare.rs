//! What is looked at, and read in user memory, when a request is submitted: what is wrong there
//! ends the submission, and what was read may change afterwards.

use alloc::sync::Arc;

use qlib::Va;

use super::job::Prepared;
use super::ops;
use crate::abi::{IoVec, TimeSpec};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::ipc::uring::Ring;
use crate::ipc::uring::abi::*;
use crate::net::address;
use crate::syscall::rw;
use crate::task::Thread;

const FLAGS: u8 = SQE_FIXED_FILE
    | SQE_DRAIN
    | SQE_LINK
    | SQE_HARDLINK
    | SQE_ASYNC
    | SQE_BUFFER_SELECT
    | SQE_CQE_SKIP;

/// The credentials with which a request is served. EINVAL.
pub(super) fn creds(thread: &Thread, ring: &Ring, sqe: &Sqe) -> Result<Arc<Creds>> {
    match sqe.personality {
        0 => Ok(thread.creds()),
        id => ring.personalities.lock().get(&id).cloned().ok_or(Errno::EINVAL),
    }
}

fn demand(is_so: bool) -> Result {
    if is_so { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Checks a request, and reads what it names.
pub(super) fn prepare(worker: &Arc<Thread>, ring: &Ring, sqe: &Sqe) -> Result<Prepared> {
    demand(ops::is_served(sqe.opcode) && sqe.flags & !FLAGS == 0)?;
    let selects = sqe.flags & SQE_BUFFER_SELECT != 0;
    if selects && !matches!(sqe.opcode, OP_READ | OP_READV | OP_RECV | OP_RECVMSG) {
        return Err(Errno::EOPNOTSUPP);
    }
    let is_plain = |sqe: &Sqe| sqe.buffer == 0 && sqe.file_index == 0;
    match sqe.opcode {
        OP_READ | OP_WRITE | OP_READV | OP_WRITEV | OP_READ_FIXED | OP_WRITE_FIXED => {
            return transfer(worker, ring, sqe, selects);
        }
        OP_FSYNC => {
            demand(sqe.address == 0 && is_plain(sqe) && sqe.op_flags & !FSYNC_DATASYNC == 0)?;
        }
        OP_SYNC_FILE_RANGE => demand(sqe.address == 0 && is_plain(sqe))?,
        OP_POLL_ADD => {
            demand(sqe.buffer == 0 && sqe.offset == 0 && sqe.address == 0)?;
            demand(sqe.length & !POLL_ADD_MULTI == 0)?;
            demand(sqe.length == 0 || sqe.flags & SQE_CQE_SKIP == 0)?;
        }
        OP_POLL_REMOVE => {
            let known = POLL_UPDATE_EVENTS | POLL_UPDATE_USER_DATA | POLL_ADD_MULTI;
            demand(is_plain(sqe) && sqe.length & !known == 0 && sqe.length != POLL_ADD_MULTI)?;
            demand(sqe.length & POLL_UPDATE_USER_DATA != 0 || sqe.offset == 0)?;
            demand(sqe.length & POLL_UPDATE_EVENTS != 0 || sqe.op_flags == 0)?;
        }
        OP_TIMEOUT | OP_LINK_TIMEOUT => {
            demand(is_plain(sqe) && sqe.length == 1)?;
            demand(sqe.opcode == OP_TIMEOUT || sqe.offset == 0)?;
            return time(worker, sqe.op_flags, Va(sqe.address));
        }
        OP_TIMEOUT_REMOVE => {
            demand(is_plain(sqe) && sqe.length == 0)?;
            let update = TIMEOUT_UPDATE | LINK_TIMEOUT_UPDATE;
            if sqe.op_flags & update != 0 {
                return time(worker, sqe.op_flags & !update, Va(sqe.offset));
            }
            demand(sqe.op_flags == 0)?;
        }
        OP_ASYNC_CANCEL => {
            demand(sqe.offset == 0 && sqe.file_index == 0)?;
            demand(sqe.op_flags & !(CANCEL_ALL | CANCEL_FD | CANCEL_ANY | CANCEL_FD_FIXED) == 0)?;
            let one = sqe.op_flags & (CANCEL_FD | CANCEL_ANY);
            demand(one != CANCEL_FD | CANCEL_ANY)?;
        }
        OP_ACCEPT => {
            demand(sqe.length == 0 && sqe.buffer == 0)?;
            demand(sqe.priority & !ACCEPT_MULTISHOT == 0)?;
            let is_multi = sqe.priority & ACCEPT_MULTISHOT != 0;
            demand(!is_multi || sqe.flags & SQE_CQE_SKIP == 0)?;
        }
        OP_CONNECT => {
            demand(sqe.length == 0 && is_plain(sqe) && sqe.op_flags == 0)?;
            let length = u32::try_from(sqe.offset).map_err(|_| Errno::EINVAL)?;
            return Ok(Prepared::Address(address::read(worker, Va(sqe.address), length)?));
        }
        OP_SEND | OP_RECV | OP_SENDMSG | OP_RECVMSG => {
            let may_have_address = sqe.opcode == OP_SEND && (0..1 << 16).contains(&sqe.file_index);
            demand(sqe.file_index == 0 || may_have_address)?;
            let is_multi = sqe.priority & RECV_MULTISHOT != 0;
            let known = if sqe.opcode == OP_RECV { RECV_MULTISHOT } else { 0 };
            demand(sqe.priority & !(RECVSEND_POLL_FIRST | known) == 0)?;
            demand(!is_multi || selects && sqe.length == 0)?;
        }
        OP_SHUTDOWN => {
            demand(sqe.offset == 0 && sqe.address == 0 && sqe.op_flags == 0 && is_plain(sqe))?;
        }
        OP_CLOSE => {
            demand(sqe.offset == 0 && sqe.address == 0 && sqe.length == 0)?;
            demand(sqe.op_flags == 0 && sqe.buffer == 0)?;
            demand(sqe.file_index == 0 || sqe.fd == 0)?;
            if sqe.flags & SQE_FIXED_FILE != 0 {
                return Err(Errno::EBADF);
            }
        }
        OP_OPENAT | OP_OPENAT2 | OP_STATX | OP_RENAMEAT | OP_UNLINKAT | OP_MKDIRAT
        | OP_SYMLINKAT | OP_LINKAT => {
            demand(sqe.buffer == 0)?;
            if sqe.flags & SQE_FIXED_FILE != 0 {
                return Err(Errno::EBADF);
            }
        }
        OP_PROVIDE_BUFFERS => {
            demand(sqe.op_flags == 0 && sqe.file_index == 0)?;
            if !(1..=1 << 16).contains(&sqe.fd) {
                return Err(Errno::E2BIG);
            }
            demand(sqe.length > 0 && sqe.offset < 1 << 16)?;
            if sqe.offset + sqe.fd as u64 > 1 << 16 {
                return Err(Errno::E2BIG);
            }
            let bytes = u64::from(sqe.length) * sqe.fd as u64;
            sqe.address.checked_add(bytes).ok_or(Errno::EOVERFLOW)?;
        }
        OP_REMOVE_BUFFERS => {
            demand(sqe.op_flags == 0 && sqe.address == 0 && sqe.length == 0 && sqe.offset == 0)?;
            demand(sqe.file_index == 0 && (1..=1 << 16).contains(&sqe.fd))?;
        }
        OP_MSG_RING => demand(sqe.buffer == 0 && sqe.personality == 0)?,
        _ => {}
    }
    Ok(Prepared::Nothing)
}

/// The buffer of a read or write, unless that is chosen when there is something to read.
fn transfer(worker: &Thread, ring: &Ring, sqe: &Sqe, selects: bool) -> Result<Prepared> {
    let (address, length) = (Va(sqe.address), sqe.length as usize);
    let buffer = match sqe.opcode {
        OP_READV if selects => {
            demand(length == 1)?;
            let one: IoVec = worker.mm().read(address)?;
            return Ok(Prepared::Most(usize::try_from(one.len).unwrap_or(usize::MAX)));
        }
        _ if selects => return Ok(Prepared::Most(length)),
        OP_READV | OP_WRITEV => rw::vectored(worker, address, length)?,
        OP_READ_FIXED | OP_WRITE_FIXED => {
            ring.buffers.lock().check(sqe.buffer, address, length)?;
            rw::single(worker, address, length)?
        }
        _ => rw::single(worker, address, length)?,
    };
    Ok(Prepared::Buffer(buffer))
}

/// A time with these flags. EINVAL.
fn time(worker: &Thread, flags: u32, place: Va) -> Result<Prepared> {
    const KNOWN: u32 = TIMEOUT_ABS | TIMEOUT_BOOTTIME | TIMEOUT_REALTIME | TIMEOUT_ETIME_SUCCESS;
    const CLOCKS: u32 = TIMEOUT_BOOTTIME | TIMEOUT_REALTIME;
    demand(flags & !KNOWN == 0 && flags & CLOCKS != CLOCKS)?;
    let time: TimeSpec = worker.mm().read(place)?;
    Ok(Prepared::Time(time.to_ns()?))
}
