//! Asynchronous I/O (io_setup(2), io_submit(2), io_getevents(2) and their kin), as libaio uses it.
//!
//! A request is served while it is submitted, as Linux serves those of files without O_DIRECT: what
//! has to wait for a disk has its thread wait, and no other.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::RLIMIT_AS;
use qlib::{PAGE_SIZE, Va};

use super::transfer::{Position, Read, Transfer, Write};
use super::{poll, rw};
use crate::abi::{TimeSpec, abi_struct};
use crate::errno::{Errno, Result};
use crate::fs::disk::finished;
use crate::fs::{Fd, OpenFile};
use crate::io::IoBuffer;
use crate::ipc::aio::{Context, IoEvent, MOST_EVENTS};
use crate::ipc::eventfd::EventFd;
use crate::mm::Prot;
use crate::mm::map::{Limits, Placement};
use crate::mm::vma::{Vma, VmaFlags};
use crate::task::Thread;
use crate::time;
use crate::wait::{PollMask, Sleeper, block_on};

abi_struct! {
    /// struct iocb of linux/aio_abi.h: a request.
    pub struct IoCb {
        pub data: u64, pub key: u32, pub rw_flags: u32, pub opcode: u16, pub priority: i16,
        pub fd: u32, pub buffer: u64, pub bytes: u64, pub offset: i64, pub reserved: u64,
        pub flags: u32, pub resfd: u32,
    }
}
abi_struct! {
    /// struct __aio_sigset.
    pub struct AioSigSet { pub mask: u64, pub size: u64, }
}

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
const IOCB_CMD_FSYNC: u16 = 2;
const IOCB_CMD_FDSYNC: u16 = 3;
const IOCB_CMD_PREADV: u16 = 7;
const IOCB_CMD_PWRITEV: u16 = 8;
/// `resfd` is an eventfd to be notified.
const IOCB_FLAG_RESFD: u32 = 1;
/// Where `key` lies.
const KEY_OFFSET: u64 = 8;
/// The most events of one context that Linux has a number for.
const MOST_IN_A_RING: u32 = 0x1000_0000 / size_of::<IoEvent>() as u32;
/// Events that are taken at once.
const MOST_AT_ONCE: usize = 256;

/// io_setup(2). The context's id is the address of a page, which libaio looks at before it makes a
/// call; that it holds nothing sends it here.
pub fn io_setup(thread: &Arc<Thread>, nr_events: u32, ctxp: Va) -> Result<usize> {
    let mm = thread.mm();
    if mm.read::<u64>(ctxp)? != 0 || !(1..=MOST_IN_A_RING).contains(&nr_events) {
        return Err(Errno::EINVAL);
    }
    if u64::from(nr_events) > MOST_EVENTS {
        return Err(Errno::EAGAIN);
    }
    let context = Context::new(nr_events)?;
    let page = Vma::anonymous(Prot::READ | Prot::WRITE, VmaFlags::empty());
    let id = mm.map(
        Placement::Hint(Va(0)),
        PAGE_SIZE,
        page,
        Limits::from(thread.process.rlimit(RLIMIT_AS)),
    )?;
    if let Err(error) = mm.write(ctxp, &id.0) {
        let _ = mm.unmap(id, PAGE_SIZE);
        return Err(error);
    }
    thread.process.aio.lock().insert(id.0, context);
    Ok(0)
}

/// io_destroy(2).
pub fn io_destroy(thread: &Arc<Thread>, ctx: u64) -> Result<usize> {
    let context = Context::of(&thread.process, ctx)?;
    let removed = thread.process.aio.lock().remove(&ctx);
    drop(removed);
    context.destroy();
    let _ = thread.mm().unmap(Va(ctx), PAGE_SIZE);
    Ok(0)
}

/// io_submit(2): how many requests have been served.
pub async fn io_submit(thread: &Arc<Thread>, ctx: u64, nr: i64, iocbpp: Va) -> Result<usize> {
    let context = Context::of(&thread.process, ctx)?;
    let count = u64::try_from(nr).map_err(|_| Errno::EINVAL)?;
    let mut served = 0;
    while served < count && !thread.is_dying() {
        let one = async {
            let place = Va(iocbpp.0.checked_add(served * 8).ok_or(Errno::EFAULT)?);
            let request = thread.mm().read::<u64>(place)?;
            submit(thread, &context, Va(request)).await
        };
        match one.await {
            Ok(()) => served += 1,
            Err(error) if served == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(served as usize)
}

/// What a request asks for, checked.
enum Job<'a> {
    Read(Read<'a>),
    Write(Write<'a>),
    Sync { file: Arc<OpenFile>, data_only: bool },
}

async fn submit(thread: &Arc<Thread>, context: &Context, place: Va) -> Result {
    let mm = thread.mm();
    let request: IoCb = mm.read(place)?;
    if request.reserved != 0 || isize::try_from(request.bytes).is_err() {
        return Err(Errno::EINVAL);
    }
    context.begin()?;
    let checked = check(thread, &request).and_then(|checked| {
        mm.write(Va(place.0.wrapping_add(KEY_OFFSET)), &0u32)?;
        Ok(checked)
    });
    drop(mm);
    let (job, notified) = checked.inspect_err(|_| context.give_up())?;
    let result = match job {
        Job::Read(read) => read.complete().await,
        Job::Write(write) => write.complete().await,
        Job::Sync { file, data_only } => match file.ops.sync(&file, data_only) {
            Ok(begun) => finished(thread, begun).await.map(|()| 0),
            Err(error) => Err(error),
        },
    };
    let result = match result {
        Ok(bytes) => bytes as i64,
        // It has been submitted, and is not made again.
        Err(error) if error.is_internal() => -i64::from(Errno::EINTR.0),
        Err(error) => -i64::from(error.0),
    };
    context.end(IoEvent { data: request.data, request: place.0, result, result2: 0 });
    if let Some(file) = notified {
        let one = 1u64.to_ne_bytes();
        // One whose count is full has been notified enough.
        let _ = file.ops.write(&file, &mut IoBuffer::kernel_const(&one), 0);
    }
    Ok(())
}

type Checked<'a> = (Job<'a>, Option<Arc<OpenFile>>);

fn check<'a>(thread: &'a Arc<Thread>, request: &IoCb) -> Result<Checked<'a>> {
    let files = thread.files();
    let file = files.opened(request.fd as Fd)?;
    let notified = match request.flags & IOCB_FLAG_RESFD {
        0 => None,
        _ => Some(files.get(request.resfd as Fd)?),
    };
    if notified.as_ref().is_some_and(|file| file.downcast::<EventFd>().is_none()) {
        return Err(Errno::EINVAL);
    }
    if request.rw_flags != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let position = match file.ops.is_seekable() {
        true => Position::At(u64::try_from(request.offset).map_err(|_| Errno::EINVAL)?),
        false => Position::Current,
    };
    let (buffer, bytes) = (Va(request.buffer), request.bytes as usize);
    let allowed = |is: bool| if is { Ok(()) } else { Err(Errno::EBADF) };
    let transfer = |file: Arc<OpenFile>| -> Result<Transfer<'a>> {
        let buffer = match request.opcode {
            IOCB_CMD_PREADV | IOCB_CMD_PWRITEV => rw::vectored(thread, buffer, bytes)?,
            _ => rw::single(thread, buffer, bytes)?,
        };
        Ok(Transfer { position, ..Transfer::new(thread, file, buffer) })
    };
    let job = match request.opcode {
        IOCB_CMD_PREAD | IOCB_CMD_PREADV => {
            allowed(file.is_readable())?;
            Job::Read(Read(transfer(file)?))
        }
        IOCB_CMD_PWRITE | IOCB_CMD_PWRITEV => {
            allowed(file.is_writable())?;
            Job::Write(Write(transfer(file)?))
        }
        IOCB_CMD_FSYNC | IOCB_CMD_FDSYNC => {
            if request.buffer != 0 || request.offset != 0 || request.bytes != 0 {
                return Err(Errno::EINVAL);
            }
            Job::Sync { data_only: request.opcode == IOCB_CMD_FDSYNC, file }
        }
        // IOCB_CMD_POLL is not served, as on Linux before 4.18.
        _ => return Err(Errno::EINVAL),
    };
    Ok((job, notified))
}

/// io_cancel(2): what is submitted has been served, and cannot be taken back.
pub fn io_cancel(thread: &Arc<Thread>, ctx: u64, iocb: Va, _result: Va) -> Result<usize> {
    thread.mm().read::<u32>(Va(iocb.0.wrapping_add(KEY_OFFSET)))?;
    Context::of(&thread.process, ctx)?;
    Err(Errno::EINVAL)
}

/// io_getevents(2).
pub async fn io_getevents(
    thread: &Arc<Thread>,
    ctx: u64,
    min_nr: i64,
    nr: i64,
    events: Va,
    timeout: Va,
) -> Result<usize> {
    let deadline_ns = match timeout.0 {
        0 => None,
        _ => Some(time::deadline_after(thread.mm().read::<TimeSpec>(timeout)?.to_ns()?)),
    };
    let context = Context::of(&thread.process, ctx)?;
    let (Ok(least), Ok(most)) = (usize::try_from(min_nr), usize::try_from(nr)) else {
        return Err(Errno::EINVAL);
    };
    if least > most {
        return Err(Errno::EINVAL);
    }
    let mut got = 0;
    loop {
        got += store(thread, &context, events, got, most)?;
        if got >= least || got == most {
            return Ok(got);
        }
        let attempt = || match (context.has_events(), context.is_destroyed()) {
            (true, _) => Ok(()),
            (false, true) => Err(Errno::EINVAL),
            (false, false) => Err(Errno::EAGAIN),
        };
        match block_on(thread, &[context.queue()], PollMask::READ, deadline_ns, attempt).await {
            Ok(()) => {}
            Err(_) if got > 0 => return Ok(got),
            Err(Errno::ETIMEDOUT) => return Ok(0),
            Err(Errno::ERESTARTSYS) => return Err(Errno::EINTR),
            Err(error) => return Err(error),
        }
    }
}

/// Stores events that are done, from place `from` of the program's list on: how many.
fn store(
    thread: &Thread,
    context: &Context,
    events: Va,
    from: usize,
    most: usize,
) -> Result<usize> {
    let mut stored = 0;
    while from + stored < most {
        let taken = context.take((most - from - stored).min(MOST_AT_ONCE));
        if taken.is_empty() {
            break;
        }
        let offset = ((from + stored) * size_of::<IoEvent>()) as u64;
        let bytes: Vec<u8> =
            taken.iter().flat_map(|event| zerocopy::IntoBytes::as_bytes(event).to_vec()).collect();
        if let Err(error) = thread.mm().write_bytes(Va(events.0.wrapping_add(offset)), &bytes) {
            context.put_back(taken);
            return if stored > 0 { Ok(stored) } else { Err(error) };
        }
        stored += taken.len();
    }
    Ok(stored)
}

/// io_pgetevents(2).
pub async fn io_pgetevents(
    thread: &Arc<Thread>,
    ctx: u64,
    min_nr: i64,
    nr: i64,
    events: Va,
    timeout: Va,
    sigset: Va,
) -> Result<usize> {
    let AioSigSet { mask, size } = match sigset.0 {
        0 => AioSigSet { mask: 0, size: 0 },
        _ => thread.mm().read(sigset)?,
    };
    poll::set_mask(thread, Va(mask), size as usize)?;
    let result = io_getevents(thread, ctx, min_nr, nr, events, timeout).await;
    poll::reset_mask(thread, Va(mask), &result);
    result
}
