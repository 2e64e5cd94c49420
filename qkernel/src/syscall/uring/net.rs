//! Requests about sockets.

use alloc::vec::Vec;

use linux_raw_sys::general::{O_CLOEXEC, O_NONBLOCK};
use linux_raw_sys::net::{MSG_DONTWAIT, MSG_NOSIGNAL, MSG_WAITALL};
use qlib::Va;

use super::buffers::Choice;
use super::job::{Done, Job, Prepared};
use crate::errno::{Errno, Result};
use crate::executor;
use crate::ipc::uring::abi::{ACCEPT_MULTISHOT, RECV_MULTISHOT, SQE_BUFFER_SELECT};
use crate::net::message::Control;
use crate::net::{Socket, address};
use crate::syscall::message::{self, MsgHdr, buffer_of};
use crate::syscall::socket;

/// How it ended: with MSG_WAITALL, less than all is a failure.
fn sent(flags: u32, bytes: usize, wanted: usize) -> Done {
    let all = if flags & MSG_WAITALL != 0 { wanted } else { 0 };
    Done::transferred(bytes, all)
}

/// IORING_OP_SEND.
pub(super) async fn send(job: Job) -> Result<Done> {
    let (file, sqe) = (job.file()?, *job.sqe());
    socket::of(&file)?;
    let flags = sqe.op_flags | MSG_NOSIGNAL;
    let mut buffer = buffer_of(&job.worker, job.address(), sqe.length as usize)?;
    // Where sqe.addr_len says that there is one.
    let to = match sqe.file_index as u32 & 0xffff {
        0 => Vec::new(),
        length => address::read(&job.worker, Va(sqe.offset), length)?,
    };
    let control = Control::of(&job.worker);
    let bytes = message::send(&job.worker, (&file, true), &mut buffer, flags, &to, control).await?;
    Ok(sent(flags, bytes, sqe.length as usize))
}

/// IORING_OP_SENDMSG.
pub(super) async fn send_message(job: Job) -> Result<Done> {
    let (file, sqe) = (job.file()?, *job.sqe());
    socket::of(&file)?;
    let header: MsgHdr = job.worker.mm().read(job.address())?;
    let flags = sqe.op_flags | MSG_NOSIGNAL;
    let bytes = message::send_message(&job.worker, (&file, true), &header, flags).await?;
    Ok(Done::with(bytes))
}

/// IORING_OP_RECV.
pub(super) async fn receive(job: Job) -> Result<Done> {
    let (file, sqe) = (job.file()?, *job.sqe());
    socket::of(&file)?;
    let flags = sqe.op_flags;
    if sqe.flags & SQE_BUFFER_SELECT == 0 {
        let mut buffer = buffer_of(&job.worker, job.address(), sqe.length as usize)?;
        let got =
            message::receive(&job.worker, (&file, true), &mut buffer, flags, false, 0).await?;
        return Ok(sent(flags, got.bytes, sqe.length as usize));
    }
    let (how, flags) = ((&*file, false), flags | MSG_DONTWAIT);
    let mut choice = Choice::of(&job, &file)?;
    loop {
        let (chosen, mut buffer) = choice.take()?;
        let got = message::receive(&job.worker, how, &mut buffer, flags, false, 0).await;
        let got = got.map(|got| got.bytes);
        let is_over = got == Err(Errno::EAGAIN) && sqe.op_flags & MSG_DONTWAIT != 0;
        let Some(done) = choice.settle(chosen, got, is_over).await? else { continue };
        let is_end = sqe.priority & RECV_MULTISHOT == 0 || done.result == 0;
        if is_end || job.ring.has_overflow() {
            return Ok(done);
        }
        job.answer_more(done.result, done.flags);
        executor::yield_now().await;
    }
}

/// IORING_OP_RECVMSG.
pub(super) async fn receive_message(job: Job) -> Result<Done> {
    let (file, sqe) = (job.file()?, *job.sqe());
    socket::of(&file)?;
    let (place, flags) = (job.address(), sqe.op_flags);
    if sqe.flags & SQE_BUFFER_SELECT == 0 {
        let how = (&*file, true);
        let bytes = message::receive_message(&job.worker, how, place, flags, None).await?;
        return Ok(Done::with(bytes));
    }
    let (how, flags) = ((&*file, false), flags | MSG_DONTWAIT);
    let mut choice = Choice::of(&job, &file)?;
    loop {
        let (chosen, buffer) = choice.take()?;
        let got = message::receive_message(&job.worker, how, place, flags, Some(buffer)).await;
        let is_over = got == Err(Errno::EAGAIN) && sqe.op_flags & MSG_DONTWAIT != 0;
        if let Some(done) = choice.settle(chosen, got, is_over).await? {
            return Ok(done);
        }
    }
}

/// IORING_OP_ACCEPT.
pub(super) async fn accept(job: Job) -> Result<Done> {
    let (file, sqe) = (job.file()?, *job.sqe());
    let flags = sqe.op_flags;
    if flags & !(O_NONBLOCK | O_CLOEXEC) != 0 || sqe.file_index != 0 && flags & O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let place = (job.address(), Va(sqe.offset));
    loop {
        let wants_address = place.0.0 != 0;
        let (family, from) = socket::accepted(&job.worker, &file, wants_address, true).await?;
        let new = Socket::file(family, flags);
        let result = match sqe.file_index {
            0 => socket::give_accepted(&job.worker, new, flags, place, &from)?,
            index => {
                address::write(&job.worker, place.0, place.1, &from)?;
                job.install(index, new)?
            }
        };
        if sqe.priority & ACCEPT_MULTISHOT == 0 || job.ring.has_overflow() {
            return Ok(Done::with(result));
        }
        job.answer_more(result as i32, 0);
        executor::yield_now().await;
    }
}

/// IORING_OP_CONNECT.
pub(super) async fn connect(job: Job) -> Result<Done> {
    let file = job.file()?;
    let Prepared::Address(to) = &job.prepared else { return Err(Errno::EFAULT) };
    socket::connect_to(&job.worker, &file, to, true).await.map(Done::with)
}

/// IORING_OP_SHUTDOWN.
pub(super) fn shut_down(job: &Job) -> Result<Done> {
    socket::shut_down(&*job.file()?, job.sqe().length).map(Done::with)
}

/// IORING_OP_SOCKET.
pub(super) fn make(job: &Job) -> Result<Done> {
    let sqe = job.sqe();
    let (domain, kind) = (sqe.fd as u32, sqe.offset as u32);
    if sqe.op_flags != 0 || sqe.file_index != 0 && kind & O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let file = socket::socket_file(&job.worker, domain, kind, sqe.length)?;
    job.give(file, kind & O_CLOEXEC != 0)
}
