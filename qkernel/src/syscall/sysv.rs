//! System V IPC: shared memory, semaphores, message queues (sysvipc(7)).

use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::Va;

use crate::abi::TimeSpec;
use crate::account;
use crate::errno::{Errno, Result};
use crate::ipc::sysv::sem::SemBuf;
use crate::ipc::sysv::{msg, sem, shm};
use crate::task::Thread;
use crate::time;

/// Set in commands by programs that know 64-bit structures; they are the only ones here.
const IPC_64: u32 = 0x100;

/// shmget(2).
pub fn shmget(thread: &Arc<Thread>, key: i32, size: u64, shmflg: u32) -> Result<usize> {
    shm::get(thread, key, size, shmflg).map(|id| id as usize)
}

/// shmat(2).
pub fn shmat(thread: &Arc<Thread>, shmid: i32, shmaddr: Va, shmflg: u32) -> Result<usize> {
    shm::attach(thread, shmid, shmaddr, shmflg).map(|at| at.0 as usize)
}

/// shmdt(2).
pub fn shmdt(thread: &Arc<Thread>, shmaddr: Va) -> Result<usize> {
    shm::detach(thread, shmaddr).map(|()| 0)
}

/// shmctl(2).
pub fn shmctl(thread: &Arc<Thread>, shmid: i32, op: u32, buf: Va) -> Result<usize> {
    shm::control(thread, shmid, op & !IPC_64, buf)
}

/// semget(2).
pub fn semget(thread: &Arc<Thread>, key: i32, nsems: i32, semflg: u32) -> Result<usize> {
    sem::get(thread, key, nsems, semflg).map(|id| id as usize)
}

/// semctl(2).
pub fn semctl(thread: &Arc<Thread>, semid: i32, semnum: i32, op: u32, arg: u64) -> Result<usize> {
    sem::control(thread, semid, semnum, op & !IPC_64, arg)
}

/// semop(2).
pub async fn semop(thread: &Arc<Thread>, semid: i32, sops: Va, nsops: u64) -> Result<usize> {
    semtimedop(thread, semid, sops, nsops, Va(0)).await
}

/// semtimedop(2).
pub async fn semtimedop(
    thread: &Arc<Thread>,
    semid: i32,
    sops: Va,
    nsops: u64,
    timeout: Va,
) -> Result<usize> {
    if nsops == 0 {
        return Err(Errno::EINVAL);
    }
    if nsops > sem::max_operations() {
        return Err(Errno::E2BIG);
    }
    let operations: Vec<SemBuf> = thread.mm().read_array(sops, nsops as usize)?;
    let deadline = match timeout.0 {
        0 => None,
        _ => Some(time::deadline_after(thread.mm().read::<TimeSpec>(timeout)?.to_ns()?)),
    };
    sem::operate(thread, semid, &operations, deadline).await.map(|()| 0)
}

/// msgget(2).
pub fn msgget(thread: &Arc<Thread>, key: i32, msgflg: u32) -> Result<usize> {
    msg::get(thread, key, msgflg).map(|id| id as usize)
}

/// msgsnd(2).
pub async fn msgsnd(
    thread: &Arc<Thread>,
    msqid: i32,
    msgp: Va,
    msgsz: u64,
    msgflg: u32,
) -> Result<usize> {
    let mm = thread.mm();
    let kind: i64 = mm.read(msgp)?;
    if msgsz > msg::max_message() || kind < 1 {
        return Err(Errno::EINVAL);
    }
    account::ask_for::<u8>(msgsz as usize)?;
    let mut bytes = alloc::vec![0; msgsz as usize];
    mm.read_bytes(msgp.checked_add(8).ok_or(Errno::EFAULT)?, &mut bytes)?;
    msg::send(thread, msqid, kind, bytes, msgflg).await.map(|()| 0)
}

/// msgrcv(2).
pub async fn msgrcv(
    thread: &Arc<Thread>,
    msqid: i32,
    msgp: Va,
    msgsz: i64,
    msgtyp: i64,
    msgflg: u32,
) -> Result<usize> {
    let room = usize::try_from(msgsz).map_err(|_| Errno::EINVAL)?;
    let (kind, bytes) = msg::receive(thread, msqid, room, msgtyp, msgflg).await?;
    let mm = thread.mm();
    mm.write(msgp, &kind)?;
    mm.write_bytes(msgp.checked_add(8).ok_or(Errno::EFAULT)?, &bytes)?;
    Ok(bytes.len())
}

/// msgctl(2).
pub fn msgctl(thread: &Arc<Thread>, msqid: i32, op: u32, buf: Va) -> Result<usize> {
    msg::control(thread, msqid, op & !IPC_64, buf)
}
