//! Message queues (msgget(2), msgop(2), msgctl(2)).

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::CAP_SYS_RESOURCE;
use qlib::Va;

use super::{EIDRM, IPC_NOWAIT, Kind, Object, PermAbi, READ, Tables, WRITE, each, find, now};
use crate::abi::abi_struct;
use crate::account::{self, Lasting};
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::proc::sys;
use crate::sync::{Mutex, mutex};
use crate::task::Thread;
use crate::task::pid_namespace::shown;
use crate::wait::{PollMask, WaitQueue, block_on};

const MSG_NOERROR: u32 = 0o10000;
const MSG_EXCEPT: u32 = 0o20000;
const MSG_COPY: u32 = 0o40000;
const MSG_STAT: u32 = 11;
const MSG_INFO: u32 = 12;
const MSG_STAT_ANY: u32 = 13;

abi_struct! {
    /// struct msqid64_ds.
    pub struct MsgIdDs {
        pub perm: PermAbi, pub stime: i64, pub rtime: i64, pub ctime: i64, pub bytes: u64,
        pub count: u64, pub max_bytes: u64, pub lspid: i32, pub lrpid: i32, pub unused: [u64; 2],
    }
}
abi_struct! {
    /// struct msginfo.
    pub struct MsgInfo {
        pub pool: i32, pub map: i32, pub max: i32, pub mnb: i32, pub mni: i32, pub ssz: i32,
        pub tql: i32, pub seg: u16, pub pad: u16,
    }
}

struct Message {
    kind: i64,
    bytes: Vec<u8>,
    _lasting: Lasting,
}

/// What a message takes besides its bytes, and what an empty queue does, about, in bytes.
const MESSAGE_BYTES: u64 = 96;
const QUEUE_BYTES: u64 = 512;

#[derive(Default)]
struct Inner {
    messages: VecDeque<Message>,
    bytes: u64,
    max_bytes: u64,
    is_removed: bool,
    stime: i64,
    rtime: i64,
    ctime: i64,
    last_sender: u32,
    last_receiver: u32,
}

/// A queue.
pub struct Queue {
    inner: Mutex<Inner>,
    events: WaitQueue,
    _lasting: Lasting,
}

static TABLES: Mutex<Tables<Queue>> = mutex(Tables::empty());

/// msgget(2).
pub fn get(thread: &Thread, key: i32, flags: u32) -> Result<i32> {
    let max_bytes = sys::number("kernel/msgmnb", 16384);
    let make = |_| {
        let inner = Inner { max_bytes, ctime: now(), ..Inner::default() };
        let lasting = Lasting::take(QUEUE_BYTES)?;
        Ok(Queue { inner: Mutex::new(inner), events: WaitQueue::new(), _lasting: lasting })
    };
    let most = sys::number("kernel/msgmni", 32000);
    TABLES.lock().own().get(&thread.creds(), key, flags, most, |_| Ok(()), make)
}

/// The longest message.
pub fn max_message() -> u64 {
    sys::number("kernel/msgmax", 8192)
}

async fn wait<T>(
    thread: &Thread,
    queue: &Queue,
    mask: PollMask,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let result = block_on(thread, &[&queue.events], mask, None, &mut attempt).await;
    // Never restarted (signal(7)).
    result.map_err(|e| if e == Errno::ERESTARTSYS { Errno::EINTR } else { e })
}

/// msgsnd(2).
pub async fn send(thread: &Arc<Thread>, id: i32, kind: i64, bytes: Vec<u8>, flags: u32) -> Result {
    let queue = find::<Queue>(id)?;
    queue.perm().check(&thread.creds(), WRITE)?;
    // msgsnd(2): "The system does not have enough memory to make a copy of the message".
    let lasting =
        Lasting::take(account::on_heap(bytes.len()) + MESSAGE_BYTES).map_err(|_| Errno::ENOMEM)?;
    let mut message = Some(Message { kind, bytes, _lasting: lasting });
    let attempt = || {
        let mut inner = queue.inner.lock();
        if inner.is_removed {
            return Err(EIDRM);
        }
        let length = message.as_ref().map_or(0, |m| m.bytes.len() as u64);
        if inner.bytes + length > inner.max_bytes
            || inner.messages.len() as u64 + 1 > inner.max_bytes
        {
            return Err(Errno::EAGAIN);
        }
        account::room_in(&mut inner.messages)?;
        inner.bytes += length;
        inner.messages.extend(message.take());
        (inner.stime, inner.last_sender) = (now(), thread.process.pid);
        Ok(())
    };
    wait_unless(thread, &queue, flags, PollMask::WRITE, attempt).await?;
    queue.events.wake(PollMask::READ);
    Ok(())
}

async fn wait_unless<T>(
    thread: &Thread,
    queue: &Queue,
    flags: u32,
    mask: PollMask,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    if flags & IPC_NOWAIT != 0 { attempt() } else { wait(thread, queue, mask, attempt).await }
}

/// Which message msgrcv(2) takes.
fn choose(messages: &VecDeque<Message>, kind: i64, flags: u32) -> Option<usize> {
    match kind {
        0 if messages.is_empty() => None,
        0 => Some(0),
        1.. => messages.iter().position(|m| (m.kind == kind) != (flags & MSG_EXCEPT != 0)),
        _ => {
            let most = kind.checked_neg().unwrap_or(i64::MAX);
            let fitting = messages.iter().enumerate().filter(|(_, m)| m.kind <= most);
            fitting.min_by_key(|(index, m)| (m.kind, *index)).map(|(index, _)| index)
        }
    }
}

/// msgrcv(2): the message's type and its bytes, at most `room`.
pub async fn receive(
    thread: &Arc<Thread>,
    id: i32,
    room: usize,
    kind: i64,
    flags: u32,
) -> Result<(i64, Vec<u8>)> {
    let queue = find::<Queue>(id)?;
    queue.perm().check(&thread.creds(), READ)?;
    if flags & MSG_COPY != 0 {
        return copy(&queue, room, kind, flags);
    }
    let attempt = || {
        let mut inner = queue.inner.lock();
        if inner.is_removed {
            return Err(EIDRM);
        }
        let index = choose(&inner.messages, kind, flags).ok_or(Errno::EAGAIN)?;
        if inner.messages[index].bytes.len() > room && flags & MSG_NOERROR == 0 {
            return Err(Errno::E2BIG);
        }
        let message = inner.messages.remove(index).ok_or(Errno::EAGAIN)?;
        inner.bytes -= message.bytes.len() as u64;
        (inner.rtime, inner.last_receiver) = (now(), thread.process.pid);
        Ok(message)
    };
    let result = wait_unless(thread, &queue, flags, PollMask::READ, attempt).await;
    let mut message = result.map_err(|e| if e == Errno::EAGAIN { Errno::ENOMSG } else { e })?;
    queue.events.wake(PollMask::WRITE);
    message.bytes.truncate(room);
    Ok((message.kind, message.bytes))
}

/// MSG_COPY of msgrcv(2): the message at place `index`, which stays there. ENOMEM.
fn copy(queue: &Object<Queue>, room: usize, index: i64, flags: u32) -> Result<(i64, Vec<u8>)> {
    if flags & MSG_EXCEPT != 0 || flags & IPC_NOWAIT == 0 {
        return Err(Errno::EINVAL);
    }
    let inner = queue.inner.lock();
    let index = usize::try_from(index).map_err(|_| Errno::ENOMSG)?;
    let message = inner.messages.get(index).ok_or(Errno::ENOMSG)?;
    if message.bytes.len() > room {
        // Copies are never cut.
        return Err(if flags & MSG_NOERROR == 0 { Errno::E2BIG } else { Errno::EINVAL });
    }
    // Nothing of it has been set aside: what is sent is only paid for once.
    let mut bytes = account::vec_for(message.bytes.len())?;
    bytes.extend_from_slice(&message.bytes);
    Ok((message.kind, bytes))
}

impl Kind for Queue {
    const STAT: u32 = MSG_STAT;
    const STAT_ANY: u32 = MSG_STAT_ANY;
    const INFO: u32 = MSG_INFO;
    const HEADER: &'static str = "       key      msqid perms      cbytes       qnum lspid lrpid   \
        uid   gid  cuid  cgid      stime      rtime      ctime\n";
    const LINE_BYTES: usize = 150;
    type Abi = MsgIdDs;

    fn tables() -> &'static Mutex<Tables<Self>> {
        &TABLES
    }

    fn describe(queue: &Object<Self>) -> Result<MsgIdDs> {
        let perm = queue.perm().to_abi();
        let inner = queue.inner.lock();
        Ok(MsgIdDs {
            perm,
            stime: inner.stime,
            rtime: inner.rtime,
            ctime: inner.ctime,
            bytes: inner.bytes,
            count: inner.messages.len() as u64,
            max_bytes: inner.max_bytes,
            lspid: shown(inner.last_sender) as i32,
            lrpid: shown(inner.last_receiver) as i32,
            unused: [0; 2],
        })
    }

    fn perm(described: &MsgIdDs) -> &PermAbi {
        &described.perm
    }

    fn information(thread: &Thread, in_use: bool, buffer: Va) -> Result {
        let limit = |name| i32::try_from(sys::number(name, 0)).unwrap_or(i32::MAX);
        let (max, mnb) = (limit("kernel/msgmax"), limit("kernel/msgmnb"));
        let mni = limit("kernel/msgmni");
        let mut info = MsgInfo { max, mnb, mni, ssz: 16, seg: 0xffff, ..MsgInfo::default() };
        if in_use {
            for queue in each::<Queue>() {
                let inner = queue.inner.lock();
                info.pool += 1;
                info.map = info.map.saturating_add(inner.messages.len() as i32);
                info.tql = info.tql.saturating_add(inner.bytes as i32);
            }
        } else {
            info.pool = mni.saturating_mul(mnb) / 1024;
            (info.map, info.tql) = (mnb, mnb);
        }
        thread.mm().write(buffer, &info)
    }

    fn may_set(creds: &Creds, new: &MsgIdDs) -> Result {
        let most = sys::number("kernel/msgmnb", 16384);
        if new.max_bytes <= most || creds.capable(CAP_SYS_RESOURCE) {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    fn set(queue: &Object<Self>, new: &MsgIdDs) {
        {
            let mut inner = queue.inner.lock();
            (inner.max_bytes, inner.ctime) = (new.max_bytes, now());
        }
        queue.events.wake(PollMask::READ | PollMask::WRITE);
    }

    fn remove(queue: Arc<Object<Self>>) {
        drop(TABLES.lock().own().remove(queue.perm().id));
        queue.inner.lock().is_removed = true;
        queue.events.wake(PollMask::READ | PollMask::WRITE);
    }

    fn line(_: &Object<Self>, it: &MsgIdDs, id: i32, owners: &str) -> String {
        format!(
            "{:10} {id:10}  {:4o}  {:10} {:10} {:5} {:5} {owners} {:10} {:10} {:10}\n",
            it.perm.key,
            it.perm.mode,
            it.bytes,
            it.count,
            it.lspid,
            it.lrpid,
            it.stime,
            it.rtime,
            it.ctime
        )
    }
}

/// msgctl(2).
pub fn control(thread: &Thread, id: i32, command: u32, buffer: Va) -> Result<usize> {
    super::control::<Queue>(thread, id, command, buffer, || Err(Errno::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_chosen_by_type() {
        let messages: VecDeque<Message> = [3, 1, 2, 1]
            .into_iter()
            .map(|kind| Message { kind, bytes: Vec::new(), _lasting: Lasting::default() })
            .collect();
        assert_eq!(choose(&messages, 0, 0), Some(0));
        assert_eq!(choose(&messages, 1, 0), Some(1));
        assert_eq!(choose(&messages, 3, MSG_EXCEPT), Some(1));
        assert_eq!(choose(&messages, -2, 0), Some(1));
        assert_eq!(choose(&messages, i64::MIN, 0), Some(1));
        assert_eq!(choose(&messages, 9, 0), None);
        assert_eq!(choose(&VecDeque::new(), 0, 0), None);
    }
}
