//! futex(2), futex_waitv(2), futex_wait(2), futex_wake(2), futex_requeue(2), and robust lists.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    FUTEX_32, FUTEX_BITSET_MATCH_ANY, FUTEX_CLOCK_REALTIME, FUTEX_CMD_MASK, FUTEX_CMP_REQUEUE,
    FUTEX_LOCK_PI, FUTEX_LOCK_PI2, FUTEX_OP_ADD, FUTEX_OP_ANDN, FUTEX_OP_CMP_EQ, FUTEX_OP_CMP_GE,
    FUTEX_OP_CMP_GT, FUTEX_OP_CMP_LE, FUTEX_OP_CMP_LT, FUTEX_OP_CMP_NE, FUTEX_OP_OPARG_SHIFT,
    FUTEX_OP_OR, FUTEX_OP_SET, FUTEX_OP_XOR, FUTEX_PRIVATE_FLAG, FUTEX_REQUEUE, FUTEX_TRYLOCK_PI,
    FUTEX_UNLOCK_PI, FUTEX_WAIT, FUTEX_WAIT_BITSET, FUTEX_WAITV_MAX, FUTEX_WAKE, FUTEX_WAKE_BITSET,
    FUTEX_WAKE_OP,
};
use qlib::Va;

use crate::abi::{TimeSpec, abi_struct};
use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::ipc::futex;
use crate::mm::AddressSpace;
use crate::task::{Thread, access, signal};
use crate::time::{self, Clock};

abi_struct! {
    /// struct futex_waitv.
    pub struct FutexWaitV { pub val: u64, pub uaddr: u64, pub flags: u32, pub reserved: u32, }
}

/// futex(2). `timeout` is a number (val2) for the calls that move waiters.
pub async fn futex(
    thread: &Arc<Thread>,
    uaddr: Va,
    op: u32,
    val: u32,
    timeout: u64,
    uaddr2: Va,
    val3: u32,
) -> Result<usize> {
    let private = op & FUTEX_PRIVATE_FLAG != 0;
    let realtime = op & FUTEX_CLOCK_REALTIME != 0;
    let command = op & FUTEX_CMD_MASK as u32;
    // Linux: the flag is for these only.
    if realtime && !matches!(command, FUTEX_WAIT | FUTEX_WAIT_BITSET | FUTEX_LOCK_PI2) {
        return Err(Errno::ENOSYS);
    }
    let clock = if realtime { Clock::Realtime } else { Clock::Monotonic };
    let mm = thread.mm();
    // A negative count wakes as many as there are, like a large one.
    let count = |n: u32| n as usize;
    match command {
        FUTEX_WAIT => {
            let deadline = match timeout {
                0 => None,
                va => {
                    let timeout_ns = mm.read::<TimeSpec>(Va(va))?.to_ns()?;
                    let restarted = signal::take_restart_deadline(thread);
                    Some(restarted.unwrap_or_else(|| time::deadline_after(timeout_ns)))
                }
            };
            wait(thread, uaddr, private, val, FUTEX_BITSET_MATCH_ANY, deadline).await
        }
        FUTEX_WAIT_BITSET => {
            if val3 == 0 {
                return Err(Errno::EINVAL);
            }
            let deadline = absolute(thread, timeout, clock)?;
            wait(thread, uaddr, private, val, val3, deadline).await
        }
        FUTEX_WAKE => Ok(futex::wake(
            futex::plain_key(&mm, uaddr, private)?,
            count(val).max(1),
            FUTEX_BITSET_MATCH_ANY,
        )),
        FUTEX_WAKE_BITSET if val3 == 0 => Err(Errno::EINVAL),
        FUTEX_WAKE_BITSET => {
            Ok(futex::wake(futex::plain_key(&mm, uaddr, private)?, count(val).max(1), val3))
        }
        FUTEX_REQUEUE | FUTEX_CMP_REQUEUE => {
            if (val as i32) < 0 || (timeout as i32) < 0 {
                return Err(Errno::EINVAL);
            }
            let (from, to) =
                (futex::plain_key(&mm, uaddr, private)?, futex::plain_key(&mm, uaddr2, private)?);
            if command == FUTEX_CMP_REQUEUE && mm.read::<u32>(uaddr)? != val3 {
                return Err(Errno::EAGAIN);
            }
            let (woken, moved) = futex::requeue(from, to, count(val), count(timeout as u32));
            Ok(woken + moved)
        }
        FUTEX_WAKE_OP => {
            let (one, two) =
                (futex::plain_key(&mm, uaddr, private)?, futex::plain_key(&mm, uaddr2, private)?);
            let second = wake_op(thread, uaddr2, val3)?;
            let mut woken = futex::wake(one, count(val).max(1), FUTEX_BITSET_MATCH_ANY);
            if second {
                woken += futex::wake(two, count(timeout as u32).max(1), FUTEX_BITSET_MATCH_ANY);
            }
            Ok(woken)
        }
        FUTEX_LOCK_PI | FUTEX_LOCK_PI2 => {
            let clock = if command == FUTEX_LOCK_PI { Clock::Realtime } else { clock };
            let deadline = absolute(thread, timeout, clock)?;
            futex::lock_pi(thread, uaddr, private, deadline, false).await.map(|()| 0)
        }
        FUTEX_TRYLOCK_PI => futex::lock_pi(thread, uaddr, private, None, true).await.map(|()| 0),
        FUTEX_UNLOCK_PI => futex::unlock_pi(thread, uaddr, private).map(|()| 0),
        _ => Err(Errno::ENOSYS),
    }
}

fn absolute(thread: &Thread, timeout: u64, clock: Clock) -> Result<Option<u64>> {
    match timeout {
        0 => Ok(None),
        va => Ok(Some(clock.to_monotonic_ns(thread.mm().read::<TimeSpec>(Va(va))?.to_ns()?))),
    }
}

async fn wait(
    thread: &Arc<Thread>,
    uaddr: Va,
    private: bool,
    expected: u32,
    bitset: u32,
    deadline_ns: Option<u64>,
) -> Result<usize> {
    match futex::wait(thread, uaddr, private, expected, bitset, deadline_ns).await {
        Ok(()) => Ok(0),
        Err(Errno::ERESTARTSYS) => match deadline_ns {
            None => Err(Errno::ERESTARTSYS),
            Some(deadline_ns) => Err(signal::restart_until(thread, deadline_ns)),
        },
        Err(error) => Err(error),
    }
}

/// Carries out the operation that FUTEX_WAKE_OP's `val3` encodes: whether its comparison held.
fn wake_op(thread: &Thread, uaddr: Va, encoded: u32) -> Result<bool> {
    // Twelve bits each, signed.
    let signed = |n: u32| ((n << 20) as i32) >> 20;
    let (mut operand, compare_to) = (signed(encoded >> 12 & 0xfff), signed(encoded & 0xfff));
    let operation = encoded >> 28 & 7;
    if encoded >> 28 & FUTEX_OP_OPARG_SHIFT != 0 {
        operand = 1i32.wrapping_shl(operand as u32);
    }
    let mm = thread.mm();
    let operand = operand as u32;
    let change: fn(u32, u32) -> u32 = match operation {
        FUTEX_OP_SET => |_, operand| operand,
        FUTEX_OP_ADD => u32::wrapping_add,
        FUTEX_OP_OR => |old, operand| old | operand,
        FUTEX_OP_ANDN => |old, operand| old & !operand,
        FUTEX_OP_XOR => |old, operand| old ^ operand,
        _ => return Err(Errno::ENOSYS),
    };
    let old = mm.update_u32(uaddr, |old| change(old, operand))? as i32;
    match encoded >> 24 & 0xf {
        FUTEX_OP_CMP_EQ => Ok(old == compare_to),
        FUTEX_OP_CMP_NE => Ok(old != compare_to),
        FUTEX_OP_CMP_LT => Ok(old < compare_to),
        FUTEX_OP_CMP_GE => Ok(old >= compare_to),
        FUTEX_OP_CMP_LE => Ok(old <= compare_to),
        FUTEX_OP_CMP_GT => Ok(old > compare_to),
        _ => Err(Errno::ENOSYS),
    }
}

/// What the calls that came after futex(2) say of a word (include/uapi/linux/futex.h): whether it
/// is private. EINVAL unless it has 32 bits, and all `values` fit.
fn word_of(flags: u32, values: &[u64]) -> Result<bool> {
    let fits = values.iter().all(|value| u32::try_from(*value).is_ok());
    let known = flags & !(FUTEX_32 | FUTEX_PRIVATE_FLAG) == 0 && flags & FUTEX_32 != 0;
    if known && fits { Ok(flags & FUTEX_PRIVATE_FLAG != 0) } else { Err(Errno::EINVAL) }
}

/// An absolute timeout by `clock`, as they take it.
fn until(thread: &Thread, timeout: Va, clock: u32) -> Result<Option<u64>> {
    if timeout.0 == 0 {
        return Ok(None);
    }
    match Clock::from_id(clock as i32)? {
        Clock::Boottime => Err(Errno::EINVAL),
        clock => absolute(thread, timeout.0, clock),
    }
}

/// futex_wake(2).
pub fn futex_wake(
    thread: &Arc<Thread>,
    uaddr: Va,
    mask: u64,
    nr: i32,
    flags: u32,
) -> Result<usize> {
    let private = word_of(flags, &[mask])?;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    let key = futex::plain_key(&thread.mm(), uaddr, private)?;
    // Linux wakes one before it counts, unless none is asked for.
    let count = if nr == 0 { 0 } else { nr.max(1) as usize };
    Ok(futex::wake(key, count, mask as u32))
}

/// futex_wait(2). The timeout is absolute.
pub async fn futex_wait(
    thread: &Arc<Thread>,
    uaddr: Va,
    val: u64,
    mask: u64,
    flags: u32,
    timeout: Va,
    clock: u32,
) -> Result<usize> {
    let private = word_of(flags, &[val, mask])?;
    if mask == 0 {
        return Err(Errno::EINVAL);
    }
    let deadline_ns = until(thread, timeout, clock)?;
    futex::wait(thread, uaddr, private, val as u32, mask as u32, deadline_ns).await.map(|()| 0)
}

/// One of an array of struct futex_waitv.
fn word_at(mm: &AddressSpace, waiters: Va, index: u64) -> Result<futex::WaitWord> {
    let at = waiters.0.wrapping_add(index * size_of::<FutexWaitV>() as u64);
    let raw = mm.read::<FutexWaitV>(Va(at))?;
    let private = word_of(raw.flags, &[raw.val])?;
    if raw.reserved != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(futex::WaitWord { va: Va(raw.uaddr), private, expected: raw.val as u32 })
}

/// futex_requeue(2): from the first of two words to the second.
pub fn futex_requeue(
    thread: &Arc<Thread>,
    waiters: Va,
    flags: u32,
    nr_wake: i32,
    nr_requeue: i32,
) -> Result<usize> {
    if flags != 0 || waiters.0 == 0 {
        return Err(Errno::EINVAL);
    }
    let mm = thread.mm();
    let (from, to) = (word_at(&mm, waiters, 0)?, word_at(&mm, waiters, 1)?);
    if from.private != to.private {
        return Err(Errno::EINVAL);
    }
    let count = |n: i32| usize::try_from(n).map_err(|_| Errno::EINVAL);
    let (wake, requeue) = (count(nr_wake)?, count(nr_requeue)?);
    let key = |word: &futex::WaitWord| futex::plain_key(&mm, word.va, word.private);
    let (from_key, to_key) = (key(&from)?, key(&to)?);
    if mm.read::<u32>(from.va)? != from.expected {
        return Err(Errno::EAGAIN);
    }
    let (woken, moved) = futex::requeue(from_key, to_key, wake, requeue);
    Ok(woken + moved)
}

/// futex_waitv(2).
pub async fn futex_waitv(
    thread: &Arc<Thread>,
    waiters: Va,
    count: u32,
    flags: u32,
    timeout: Va,
    clock: u32,
) -> Result<usize> {
    if flags != 0 || count == 0 || count > FUTEX_WAITV_MAX {
        return Err(Errno::EINVAL);
    }
    let deadline = until(thread, timeout, clock)?;
    let mm = thread.mm();
    let mut words = Vec::with_capacity(count as usize);
    for index in 0..u64::from(count) {
        words.push(word_at(&mm, waiters, index)?);
    }
    futex::wait_any(thread, &words, deadline).await
}

/// set_robust_list(2).
pub fn set_robust_list(thread: &Arc<Thread>, head: Va, length: usize) -> Result<usize> {
    if length != futex::ROBUST_HEAD_BYTES {
        return Err(Errno::EINVAL);
    }
    thread.attrs.lock().robust_list = (head, length);
    Ok(0)
}

/// get_robust_list(2).
pub fn get_robust_list(thread: &Arc<Thread>, tid: u32, head: Va, length: Va) -> Result<usize> {
    let other = if tid == 0 { thread.clone() } else { thread.find_thread(tid)? };
    access::check(thread, &other, AccessMode::Real)?;
    let (list, _) = other.attrs.lock().robust_list;
    thread.mm().write(length, &(futex::ROBUST_HEAD_BYTES as u64))?;
    thread.mm().write(head, &list.0)?;
    Ok(0)
}
