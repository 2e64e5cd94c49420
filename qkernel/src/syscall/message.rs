//! Sending and receiving on sockets: send(2), recv(2) and their families.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, UIO_MAXIOV};
use linux_raw_sys::net::{
    AF_UNIX, MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_DONTWAIT, MSG_ERRQUEUE, MSG_NOSIGNAL, MSG_OOB,
    MSG_PEEK, MSG_WAITALL, SCM_CREDENTIALS, SCM_RIGHTS, SOL_SOCKET,
};
use qlib::Va;
use zerocopy::FromBytes;

use super::install;
use super::rw;
use super::socket::{after_wait, file, of};
use super::transfer::signal_broken;
use crate::abi::{TimeSpec, abi_struct};
use crate::errno::{Errno, Result};
use crate::fs::{Fd, OpenFile};
use crate::io::{IoBuffer, MAX_TRANSFER_BYTES};
use crate::ipc::uring::Ring;
use crate::net::message::{
    self, Control, Credentials, HEADER_BYTES, MAX_RIGHTS, Received, SCM_PIDFD,
};
use crate::net::{Direction, Family, Side, Socket, address};
use crate::task::{Thread, oom};
use crate::time;
use crate::wait::{PollMask, WaitQueue, block_on};

abi_struct! {
    /// struct user_msghdr.
    pub struct MsgHdr {
        pub name: u64, pub name_len: u32, pub pad0: u32, pub iov: u64, pub iov_len: u64,
        pub control: u64, pub control_len: u64, pub flags: u32, pub pad1: u32,
    }
}
abi_struct! {
    /// struct mmsghdr.
    pub struct MMsgHdr { pub header: MsgHdr, pub len: u32, pub pad: u32, }
}

/// recvmmsg(2): wait for the first message only. Not among the headers' constants.
const MSG_WAITFORONE: u32 = 0x10000;
/// The most control data of one message.
const MAX_CONTROL: u64 = 16 << 10;

/// The buffer of one pointer and length, of which Linux looks at what is transferred at most.
pub(super) fn buffer_of(thread: &Thread, base: Va, length: usize) -> Result<IoBuffer<'static>> {
    rw::single(thread, base, length.min(MAX_TRANSFER_BYTES))
}

fn vectored(thread: &Thread, header: &MsgHdr) -> Result<IoBuffer<'static>> {
    if header.iov_len > UIO_MAXIOV.into() {
        return Err(Errno::EMSGSIZE);
    }
    rw::vectored(thread, Va(header.iov), header.iov_len as usize)
}

/// As [`block_on`], where a copy that finds no memory waits for some and goes on.
async fn block_on_copy<T>(
    thread: &Arc<Thread>,
    queues: &[&WaitQueue],
    mask: PollMask,
    deadline: Option<u64>,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        match block_on(thread, queues, mask, deadline, &mut attempt).await {
            Err(Errno::ERESTARTNOMEM) if oom::copy_may_go_on(thread).await => {}
            result => return result,
        }
    }
}

// ---- sending ----

/// Sends a whole message; of a stream everything, unless it may not wait.
pub(super) async fn send(
    thread: &Arc<Thread>,
    (file, waits): (&OpenFile, bool),
    buffer: &mut IoBuffer<'_>,
    flags: u32,
    to: &[u8],
    mut control: Control,
) -> Result<usize> {
    let socket = of(file)?;
    let side = socket.side();
    let inside = match (&side, &socket.family) {
        (Side::Here(unix), _) => Some(*unix),
        // One that leads out by a volume sends to where it is connected.
        (Side::Host(_), Family::Unix(_)) if !to.is_empty() => return Err(Errno::EISCONN),
        (Side::Host(_) | Side::Guest(_), _) => None,
    };
    if let Some(unix) = inside.filter(|unix| !unix.is_stream()) {
        unix.autobind(thread)?;
    }
    let target = match inside {
        Some(unix) if !to.is_empty() => unix.resolve_for_send(thread, to)?,
        _ => None,
    };
    let mut queues: Vec<&WaitQueue> = alloc::vec![socket.events()];
    let peer = match inside {
        Some(unix) if !unix.is_stream() => target.clone().or_else(|| unix.peer()),
        _ => None,
    };
    queues.extend(peer.as_ref().map(|peer| peer.senders()));
    let mut attempt = || {
        let sent = match &side {
            Side::Host(host) => host.send(buffer, flags, to, &control.raw),
            Side::Guest(own) => own.send(buffer, flags, to, &control.raw),
            Side::Here(unix) => unix.send(buffer, flags, target.as_ref(), &mut control),
        };
        match sent {
            Ok(_) if socket.is_stream() && buffer.remaining() > 0 => Err(Errno::EAGAIN),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    };
    let result = if !waits || flags & MSG_DONTWAIT != 0 {
        attempt()
    } else {
        let deadline = socket.deadline(Direction::Send);
        let result = block_on_copy(thread, &queues, PollMask::WRITE, deadline, attempt).await;
        after_wait(result, deadline, Errno::EAGAIN)
    };
    match result {
        Err(_) if socket.is_stream() && buffer.done() > 0 => Ok(buffer.done()),
        Err(error) if flags & MSG_NOSIGNAL == 0 => Err(signal_broken(thread, file, error)),
        Err(error) => Err(error),
        Ok(()) => Ok(buffer.done()),
    }
}

/// sendto(2), and send(2).
pub async fn sendto(
    thread: &Arc<Thread>,
    fd: Fd,
    base: Va,
    length: usize,
    flags: u32,
    addr: Va,
    addr_len: u32,
) -> Result<usize> {
    let file = file(thread, fd)?;
    let to = if addr.0 == 0 { Vec::new() } else { address::read(thread, addr, addr_len)? };
    let control = Control::of(thread);
    let mut buffer = buffer_of(thread, base, length)?;
    send(thread, (&file, !file.is_nonblocking()), &mut buffer, flags, &to, control).await
}

/// sendmsg(2) of a socket.
pub(super) async fn send_message(
    thread: &Arc<Thread>,
    (file, waits): (&OpenFile, bool),
    header: &MsgHdr,
    flags: u32,
) -> Result<usize> {
    let to = match (header.name, header.name_len) {
        (0, _) | (_, 0) => Vec::new(),
        (name, length) => address::read(thread, Va(name), length)?,
    };
    let mut buffer = vectored(thread, header)?;
    let control = read_control(thread, of(file)?, header)?;
    send(thread, (file, waits), &mut buffer, flags, &to, control).await
}

/// sendmsg(2).
pub async fn sendmsg(thread: &Arc<Thread>, fd: Fd, message: Va, flags: u32) -> Result<usize> {
    let file = file(thread, fd)?;
    let header = thread.mm().read::<MsgHdr>(message)?;
    send_message(thread, (&file, !file.is_nonblocking()), &header, flags).await
}

/// sendmmsg(2).
pub async fn sendmmsg(
    thread: &Arc<Thread>,
    fd: Fd,
    messages: Va,
    count: u32,
    flags: u32,
) -> Result<usize> {
    let file = file(thread, fd)?;
    let count = count.min(UIO_MAXIOV).into();
    let waits = !file.is_nonblocking();
    let mut sent = 0;
    for index in 0..count {
        let place = Va(messages.0.wrapping_add(index * size_of::<MMsgHdr>() as u64));
        let one = async {
            let entry = thread.mm().read::<MMsgHdr>(place)?;
            let bytes = send_message(thread, (&file, waits), &entry.header, flags).await?;
            thread.mm().write(Va(place.0.wrapping_add(size_of::<MsgHdr>() as u64)), &(bytes as u32))
        };
        match one.await {
            Ok(()) => sent += 1,
            Err(error) if sent == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(sent)
}

/// The control data of a message to be sent.
fn read_control(thread: &Thread, socket: &Socket, header: &MsgHdr) -> Result<Control> {
    let mut control = Control::of(thread);
    if header.control == 0 || header.control_len == 0 {
        return Ok(control);
    }
    if header.control_len > MAX_CONTROL {
        return Err(Errno::ENOBUFS);
    }
    let mut bytes = alloc::vec![0; header.control_len as usize];
    thread.mm().read_bytes(Va(header.control), &mut bytes)?;
    if let Side::Host(host) = socket.side() {
        // Files of the guest's kernel cannot leave it.
        let is_rights =
            |(level, kind, _): &(u32, u32, &[u8])| (*level, *kind) == (SOL_SOCKET, SCM_RIGHTS);
        if host.domain() == AF_UNIX && message::parse(&bytes)?.iter().any(is_rights) {
            return Err(Errno::EOPNOTSUPP);
        }
        control.raw = message::for_host(&bytes, thread.creds().host_caps())?;
        return Ok(control);
    }
    if matches!(socket.side(), Side::Guest(_)) {
        // Descriptors and credentials are ignored there, as on Linux.
        control.raw = bytes;
        return Ok(control);
    }
    for (level, kind, data) in message::parse(&bytes)? {
        if level != SOL_SOCKET {
            continue;
        }
        match kind {
            SCM_RIGHTS => {
                for fd in data.chunks_exact(4) {
                    let fd = i32::from_ne_bytes(fd.try_into().unwrap_or_default());
                    let file = thread.files().get(fd)?;
                    // As on Linux: rings could keep each other alive for ever.
                    if file.downcast::<Ring>().is_some() {
                        return Err(Errno::EINVAL);
                    }
                    control.rights.push(file);
                }
                if control.rights.len() > MAX_RIGHTS {
                    return Err(Errno::EINVAL);
                }
            }
            SCM_CREDENTIALS => control.claimed = Some(read_credentials(thread, data)?),
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(control)
}

/// Credentials that a sender claims: EPERM unless they are its own or it is privileged (unix(7)),
/// ESRCH if there is no such process, EINVAL if they
/// are no ids.
fn read_credentials(thread: &Thread, data: &[u8]) -> Result<Credentials> {
    let [pid, uid, gid] = <[u32; 3]>::read_from_bytes(data).map_err(|_| Errno::EINVAL)?;
    let creds = thread.creds();
    // -1 stands for none, as what its user namespace has no such number for.
    let (uid, gid) = (creds.user.uid_of(uid)?, creds.user.gid_of(gid)?);
    let numbers = &thread.process.pid_namespace.user;
    let own_pid =
        pid == thread.number_of(thread.process.pid) || creds.capable_in(numbers, CAP_SYS_ADMIN);
    let own_uid =
        [creds.uid, creds.euid, creds.suid].contains(&uid) || creds.capable_here(CAP_SETUID);
    let own_gid =
        [creds.gid, creds.egid, creds.sgid].contains(&gid) || creds.capable_here(CAP_SETGID);
    if !(own_pid && own_uid && own_gid) {
        return Err(Errno::EPERM);
    }
    let process = thread.find_process_of(pid)?;
    Ok(Credentials::claimed(thread, process.pid, uid, gid))
}

// ---- receiving ----

/// Receives a message; of a stream, with MSG_WAITALL all that is asked for, and of an AF_UNIX
/// stream at least SO_RCVLOWAT bytes.
pub(super) async fn receive(
    thread: &Arc<Thread>,
    (file, waits): (&OpenFile, bool),
    buffer: &mut IoBuffer<'_>,
    flags: u32,
    want_address: bool,
    control_bytes: usize,
) -> Result<Received> {
    let socket = of(file)?;
    let may_wait = waits && flags & (MSG_DONTWAIT | MSG_ERRQUEUE | MSG_OOB) == 0;
    let side = socket.side();
    let wanted = match &side {
        _ if flags & MSG_PEEK != 0 || !socket.is_stream() || !may_wait => 0,
        _ if flags & MSG_WAITALL != 0 => buffer.remaining(),
        Side::Here(unix) if unix.low_water() > 1 => unix.low_water().min(buffer.remaining()),
        Side::Guest(own) if own.low_water() > 1 => own.low_water().min(buffer.remaining()),
        _ => 0,
    };
    let mut all: Option<Received> = None;
    // With MSG_WAITALL: until the host says EAGAIN, or an end of file that came along with the data
    // would never be notified of.
    let mut attempt = || loop {
        let got = match &side {
            Side::Host(host) => host.receive(buffer, flags, want_address, control_bytes),
            Side::Guest(own) => own.receive(buffer, flags),
            Side::Here(unix) => unix.receive(buffer, flags),
        }?;
        if wanted == 0 {
            return Ok(got);
        }
        let is_end = got.bytes == 0 || !got.rights.is_empty();
        let bytes = all.as_ref().map_or(0, |r| r.bytes) + got.bytes;
        let merged = Received { bytes, ..got };
        if is_end || bytes >= wanted {
            all = None;
            return Ok(merged);
        }
        all = Some(merged);
    };
    if !may_wait {
        return attempt();
    }
    let deadline = socket.deadline(Direction::Receive);
    let events = [socket.events()];
    let result = block_on_copy(thread, &events, PollMask::READ, deadline, &mut attempt).await;
    let result = after_wait(result, deadline, Errno::EAGAIN);
    match (result, all) {
        (Err(_), Some(partly)) => Ok(partly),
        (result, _) => result,
    }
}

/// recvfrom(2), and recv(2).
pub async fn recvfrom(
    thread: &Arc<Thread>,
    fd: Fd,
    base: Va,
    length: usize,
    flags: u32,
    addr: Va,
    addr_len: Va,
) -> Result<usize> {
    let file = file(thread, fd)?;
    let mut buffer = buffer_of(thread, base, length)?;
    let how = (&*file, !file.is_nonblocking());
    let got = receive(thread, how, &mut buffer, flags, addr.0 != 0, 0).await?;
    // A stream has no address: its length is reported as 0.
    address::write(thread, addr, addr_len, &got.address)?;
    Ok(got.bytes)
}

/// recvmsg(2) of a socket; with `elsewhere` to that buffer, whatever the header says of those.
pub(super) async fn receive_message(
    thread: &Arc<Thread>,
    (file, waits): (&OpenFile, bool),
    place: Va,
    flags: u32,
    elsewhere: Option<IoBuffer<'static>>,
) -> Result<usize> {
    let mm = thread.mm();
    let header = mm.read::<MsgHdr>(place)?;
    let mut buffer = match elsewhere {
        Some(buffer) => buffer,
        None => vectored(thread, &header)?,
    };
    let room = if header.control == 0 { 0 } else { header.control_len.min(MAX_CONTROL) as usize };
    let got = receive(thread, (file, waits), &mut buffer, flags, header.name != 0, room).await?;
    let name_len = if header.name == 0 {
        header.name_len
    } else {
        let Ok(room) = usize::try_from(header.name_len as i32) else { return Err(Errno::EINVAL) };
        mm.write_bytes(Va(header.name), &got.address[..got.address.len().min(room)])?;
        got.address.len() as u32
    };
    let mut out_flags = got.flags | flags & MSG_CMSG_CLOEXEC;
    let control = write_control(thread, &got, room, flags & MSG_CMSG_CLOEXEC != 0, &mut out_flags);
    mm.write_bytes(Va(header.control), &control)?;
    mm.write(
        place,
        &MsgHdr { name_len, control_len: control.len() as u64, flags: out_flags, ..header },
    )?;
    Ok(got.bytes)
}

/// The control messages for a program with `room` bytes for them; installs descriptors. What does
/// not fit is lost, and MSG_CTRUNC says so.
fn write_control(
    thread: &Thread,
    got: &Received,
    room: usize,
    close_on_exec: bool,
    flags: &mut u32,
) -> Vec<u8> {
    let mut control = got.control.clone();
    if control.len() > room {
        *flags |= MSG_CTRUNC;
        message::cut(&mut control, room);
    }
    if let Some(credentials) = got.credentials.filter(|_| got.asked.credentials) {
        let bytes = credentials.to_bytes();
        if !message::append_within(&mut control, room, SOL_SOCKET, SCM_CREDENTIALS, &bytes) {
            *flags |= MSG_CTRUNC;
        }
    }
    if !got.rights.is_empty() {
        let fits = room.saturating_sub(control.len() + HEADER_BYTES) / 4;
        let mut fds: Vec<u8> = Vec::new();
        for file in got.rights.iter().take(fits) {
            match install::fd(thread, file.clone(), close_on_exec) {
                Ok(fd) => fds.extend_from_slice(&fd.to_ne_bytes()),
                Err(_) => break,
            }
        }
        if fds.len() / 4 < got.rights.len() {
            *flags |= MSG_CTRUNC;
        }
        if !fds.is_empty() {
            message::append(&mut control, SOL_SOCKET, SCM_RIGHTS, &fds);
        }
    }
    if let Some(sender) = got.credentials.filter(|sender| got.asked.pidfd && sender.serial != 0) {
        if room.saturating_sub(control.len()) < HEADER_BYTES + size_of::<Fd>() {
            *flags |= MSG_CTRUNC;
        } else {
            // As on Linux the number of the error is told if there is none to be had.
            let fd = sender.pidfd().and_then(|file| install::fd(thread, file, true));
            let fd = fd.unwrap_or_else(|error| -error.0);
            message::append(&mut control, SOL_SOCKET, SCM_PIDFD, &fd.to_ne_bytes());
        }
    }
    control.truncate(room);
    control
}

/// recvmsg(2).
pub async fn recvmsg(thread: &Arc<Thread>, fd: Fd, message: Va, flags: u32) -> Result<usize> {
    let file = file(thread, fd)?;
    receive_message(thread, (&file, !file.is_nonblocking()), message, flags, None).await
}

/// recvmmsg(2).
pub async fn recvmmsg(
    thread: &Arc<Thread>,
    fd: Fd,
    messages: Va,
    count: u32,
    flags: u32,
    timeout: Va,
) -> Result<usize> {
    let file = file(thread, fd)?;
    let deadline = match timeout.0 {
        0 => None,
        _ => Some(time::deadline_after(thread.mm().read::<TimeSpec>(timeout)?.to_ns()?)),
    };
    let count = count.min(UIO_MAXIOV).into();
    let mut flags = flags;
    let mut received = 0;
    for index in 0..count {
        let place = Va(messages.0.wrapping_add(index * size_of::<MMsgHdr>() as u64));
        let one = async {
            let how = (&*file, !file.is_nonblocking());
            let flags = flags & !MSG_WAITFORONE;
            let bytes = receive_message(thread, how, place, flags, None).await?;
            thread.mm().write(Va(place.0.wrapping_add(size_of::<MsgHdr>() as u64)), &(bytes as u32))
        };
        match one.await {
            Ok(()) => received += 1,
            Err(error) if received == 0 => return Err(error),
            Err(_) => break,
        }
        if flags & MSG_WAITFORONE != 0 {
            flags |= MSG_DONTWAIT;
        }
        // As on Linux, the timeout is looked at only after each message.
        if deadline.is_some_and(|deadline| time::monotonic_ns() >= deadline) {
            break;
        }
    }
    Ok(received)
}
