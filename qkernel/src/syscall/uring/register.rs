//! io_uring_register(2).

use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::Va;

use super::table::{register_files, update_files};
use super::{ops, ring_of};
use crate::abi::IoVec;
use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::Fd;
use crate::ipc::eventfd::EventFd;
use crate::ipc::uring::abi::{self, FilesUpdate, OP_LAST, OP_SUPPORTED, RsrcRegister, RsrcUpdate};
use crate::ipc::uring::{Ring, Told};
use crate::syscall::memory;
use crate::task::Thread;

/// The most registered buffers, and the largest in bytes.
const MOST_BUFFERS: u32 = 1 << 14;
const LARGEST_BUFFER: u64 = 1 << 30;

/// io_uring_register(2).
pub fn io_uring_register(
    thread: &Arc<Thread>,
    fd: Fd,
    op: u32,
    arg: Va,
    count: u32,
) -> Result<usize> {
    let (_file, ring) = ring_of(thread, fd)?;
    if ring.flags & abi::SETUP_SINGLE_ISSUER != 0 && ring.is_enabled() {
        ring.check_issuer(thread.tid())?;
    }
    let nothing = |is_so: bool| if is_so { Ok(()) } else { Err(Errno::EINVAL) };
    match op {
        abi::REGISTER_BUFFERS => register_buffers(thread, &ring, arg, count),
        abi::UNREGISTER_BUFFERS => {
            nothing(arg.0 == 0 && count == 0)?;
            let old = ring.buffers.lock().registered.take();
            old.map(|_| 0).ok_or(Errno::ENXIO)
        }
        abi::REGISTER_FILES => register_files(thread, &ring, arg, count),
        abi::REGISTER_FILES2 => {
            let RsrcRegister { count: files, flags, reserved, data, tags } =
                sized(thread, arg, count)?;
            let is_sparse = flags & abi::RSRC_REGISTER_SPARSE != 0;
            nothing(reserved == 0 && flags & !abi::RSRC_REGISTER_SPARSE == 0 && tags == 0)?;
            nothing(!is_sparse || data == 0)?;
            register_files(thread, &ring, Va(data), files)
        }
        abi::UNREGISTER_FILES => {
            nothing(arg.0 == 0 && count == 0)?;
            let old = ring.files.lock().take();
            old.map(|_| 0).ok_or(Errno::ENXIO)
        }
        abi::REGISTER_FILES_UPDATE => {
            let FilesUpdate { offset, reserved, fds } = thread.mm().read(arg)?;
            nothing(reserved == 0)?;
            update_files(thread, &ring, offset, Va(fds), count)
        }
        abi::REGISTER_FILES_UPDATE2 => {
            let update: RsrcUpdate = sized(thread, arg, count)?;
            nothing(update.reserved == 0 && update.reserved2 == 0 && update.tags == 0)?;
            update_files(thread, &ring, update.offset, Va(update.data), update.count)
        }
        abi::REGISTER_EVENTFD | abi::REGISTER_EVENTFD_ASYNC => {
            nothing(count == 1)?;
            let only_late = op == abi::REGISTER_EVENTFD_ASYNC;
            register_eventfd(thread, &ring, thread.mm().read(arg)?, only_late)
        }
        abi::UNREGISTER_EVENTFD => {
            nothing(arg.0 == 0 && count == 0)?;
            let old = ring.set_told(None);
            old.map(|_| 0).ok_or(Errno::ENXIO)
        }
        abi::REGISTER_PROBE => probe(thread, arg, count),
        abi::REGISTER_PERSONALITY => {
            nothing(arg.0 == 0 && count == 0)?;
            register_personality(thread, &ring)
        }
        abi::UNREGISTER_PERSONALITY => {
            nothing(arg.0 == 0)?;
            let id = u16::try_from(count).map_err(|_| Errno::EINVAL)?;
            let old = ring.personalities.lock().remove(&id);
            old.map(|_| 0).ok_or(Errno::EINVAL)
        }
        abi::REGISTER_ENABLE_RINGS => {
            nothing(arg.0 == 0 && count == 0)?;
            if ring.is_enabled() {
                return Err(Errno::EBADFD);
            }
            if ring.flags & abi::SETUP_SINGLE_ISSUER != 0 {
                ring.set_issuer(thread.tid());
            }
            ring.enable();
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// A structure whose size is told.
fn sized<T: crate::abi::Pod>(thread: &Thread, arg: Va, size: u32) -> Result<T> {
    if size as usize != size_of::<T>() {
        return Err(Errno::EINVAL);
    }
    thread.mm().read(arg)
}

fn register_buffers(thread: &Arc<Thread>, ring: &Ring, arg: Va, count: u32) -> Result<usize> {
    if ring.buffers.lock().registered.is_some() {
        return Err(Errno::EBUSY);
    }
    if count == 0 || count > MOST_BUFFERS {
        return Err(Errno::EINVAL);
    }
    let mm = thread.mm();
    let vectors: Vec<IoVec> = mm.read_array(arg, count as usize)?;
    check_bytes(thread, vectors.iter().map(|vector| vector.len))?;
    let mut list = account::vec_for(vectors.len())?;
    for IoVec { base, len } in vectors {
        match (base, len) {
            // A place that is not used.
            (0, 0) => {}
            (0, _) | (_, 0) => return Err(Errno::EFAULT),
            _ if len > LARGEST_BUFFER => return Err(Errno::EFAULT),
            _ => {
                let (start, before) = (Va(base).page_floor(), Va(base).page_offset());
                mm.populate(start, len.saturating_add(before), true).map_err(|_| Errno::EFAULT)?;
            }
        }
        list.push((Va(base), len as usize));
    }
    ring.buffers.lock().registered = Some(list);
    Ok(0)
}

/// ENOMEM for more than the thread may have locked in memory, as Linux has registered buffers, or
/// than there is.
fn check_bytes(thread: &Thread, lengths: impl Iterator<Item = u64>) -> Result {
    let limit = memory::lockable_bytes(thread);
    let bytes = lengths.fold(0, u64::saturating_add);
    if bytes > limit.min(account::memory_bytes()) { Err(Errno::ENOMEM) } else { Ok(()) }
}

fn register_eventfd(thread: &Thread, ring: &Ring, fd: Fd, only_late: bool) -> Result<usize> {
    if ring.tells() {
        return Err(Errno::EBUSY);
    }
    let file = thread.files().opened(fd)?;
    if file.downcast::<EventFd>().is_none() {
        return Err(Errno::EINVAL);
    }
    ring.set_told(Some(Told { file, only_late }));
    Ok(0)
}

/// Bytes of struct io_uring_probe, and of each of its operations.
const PROBE_BYTES: usize = 16;
const PROBE_OP_BYTES: usize = 8;

fn probe(thread: &Thread, arg: Va, count: u32) -> Result<usize> {
    if arg.0 == 0 || count > 256 {
        return Err(Errno::EINVAL);
    }
    let count = count.min(OP_LAST.into()) as usize;
    let mut bytes = alloc::vec![0; PROBE_BYTES + count * PROBE_OP_BYTES];
    thread.mm().read_bytes(arg, &mut bytes)?;
    if bytes.iter().any(|byte| *byte != 0) {
        return Err(Errno::EINVAL);
    }
    bytes[0] = OP_LAST - 1;
    bytes[1] = count as u8;
    for (opcode, entry) in (0..OP_LAST).zip(bytes[PROBE_BYTES..].chunks_mut(PROBE_OP_BYTES)) {
        entry[0] = opcode;
        if ops::is_served(opcode) {
            entry[2..4].copy_from_slice(&OP_SUPPORTED.to_ne_bytes());
        }
    }
    thread.mm().write_bytes(arg, &bytes)?;
    Ok(0)
}

fn register_personality(thread: &Thread, ring: &Ring) -> Result<usize> {
    let mut list = ring.personalities.lock();
    let id = (1..=u16::MAX).find(|id| !list.contains_key(id)).ok_or(Errno::ENOSPC)?;
    list.insert(id, thread.creds());
    Ok(id.into())
}
