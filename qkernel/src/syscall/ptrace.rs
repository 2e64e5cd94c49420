//! ptrace(2): what a tracer asks of its tracees. What tracing is lies in [`crate::task::trace`].

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::SIGKILL;
use linux_raw_sys::ptrace::{
    PTRACE_ATTACH, PTRACE_CONT, PTRACE_DETACH, PTRACE_GET_SYSCALL_INFO,
    PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, PTRACE_GETEVENTMSG, PTRACE_GETFPREGS, PTRACE_GETREGS,
    PTRACE_GETREGSET, PTRACE_GETSIGINFO, PTRACE_GETSIGMASK, PTRACE_INTERRUPT, PTRACE_KILL,
    PTRACE_LISTEN, PTRACE_PEEKDATA, PTRACE_PEEKTEXT, PTRACE_PEEKUSR, PTRACE_POKEDATA,
    PTRACE_POKETEXT, PTRACE_POKEUSR, PTRACE_SEIZE, PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG,
    PTRACE_SETFPREGS, PTRACE_SETOPTIONS, PTRACE_SETREGS, PTRACE_SETREGSET, PTRACE_SETSIGINFO,
    PTRACE_SETSIGMASK, PTRACE_SINGLESTEP, PTRACE_SYSCALL, PTRACE_SYSCALL_INFO_ENTRY,
    PTRACE_SYSCALL_INFO_EXIT, PTRACE_SYSCALL_INFO_NONE, PTRACE_SYSCALL_INFO_SECCOMP, PTRACE_SYSEMU,
    PTRACE_SYSEMU_SINGLESTEP, PTRACE_TRACEME,
};
use qlib::Va;

use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::mm::freeze::EVERYTHING;
use crate::task::dispatch::Range;
use crate::task::signal::{self, SIGNALS, SigInfo, SigSet, Signo};
use crate::task::trace::{self, registers, stops};
use crate::task::tracee::{Kind, Next};
use crate::task::{Thread, access, run};

/// Size of struct user of x86-64, as the kernel has it, in bytes.
const USER_BYTES: u64 = 928;
/// Where that has the debug registers, which nobody can set here.
const DEBUG_REGISTERS: core::ops::Range<u64> = 848..912;
/// AUDIT_ARCH_X86_64.
const ARCH: u32 = 0xc000_003e;

/// ptrace(2).
pub async fn ptrace(
    thread: &Arc<Thread>,
    request: u32,
    pid: i32,
    addr: u64,
    data: u64,
) -> Result<usize> {
    match request {
        PTRACE_TRACEME => {
            trace::trace_me(thread)?;
            show_all_instructions(thread, thread).await;
            return Ok(0);
        }
        PTRACE_ATTACH | PTRACE_SEIZE => {
            let other = to_attach(thread, pid)?;
            let seized_with = match request {
                PTRACE_SEIZE if addr != 0 => return Err(Errno::EIO),
                PTRACE_SEIZE => Some(options(data)?),
                _ => None,
            };
            trace::take(thread, &other, seized_with)?;
            show_all_instructions(thread, &other).await;
            return trace::taken(thread, &other).map(|()| 0);
        }
        PTRACE_INTERRUPT => {
            trace::ask_to_stop(&trace::tracee(thread, pid, false)?)?;
            return Ok(0);
        }
        PTRACE_KILL => {
            let tracee = trace::tracee(thread, pid, false)?;
            signal::send_to_thread(&tracee, SigInfo::kernel(SIGKILL))?;
            return Ok(0);
        }
        _ => {}
    }
    let tracee = trace::tracee(thread, pid, true)?;
    let mm = thread.mm();
    match request {
        PTRACE_PEEKTEXT | PTRACE_PEEKDATA => {
            trace::may_look_into(&tracee)?;
            let word: u64 = tracee.mm().read(Va(addr)).map_err(|_| Errno::EIO)?;
            mm.write(Va(data), &word)?;
        }
        PTRACE_POKETEXT | PTRACE_POKEDATA => {
            poke(thread, pid, &tracee, Va(addr), &data.to_le_bytes()).await?;
        }
        PTRACE_PEEKUSR => mm.write(Va(data), &peek_user(&tracee, addr)?)?,
        PTRACE_POKEUSR => poke_user(&tracee, addr, data)?,
        PTRACE_GETREGS => mm.write_bytes(Va(data), &registers::general(&tracee)?)?,
        PTRACE_SETREGS => {
            let mut bytes = [0; registers::GENERAL_BYTES];
            mm.read_bytes(Va(data), &mut bytes)?;
            registers::set_general(&tracee, &bytes)?;
        }
        PTRACE_GETFPREGS => {
            let state = registers::of_set(&tracee, registers::NT_PRFPREG)?;
            mm.write_bytes(Va(data), &state)?;
        }
        PTRACE_SETFPREGS => {
            let mut bytes = [0; signal::FXSAVE_BYTES];
            mm.read_bytes(Va(data), &mut bytes)?;
            registers::set_of_set(&tracee, registers::NT_PRFPREG, &bytes)?;
        }
        PTRACE_GETREGSET => {
            let (base, room) = vector(thread, data)?;
            let state = registers::of_set(&tracee, addr)?;
            whole_words(room)?;
            let told = state.len().min(room);
            mm.write_bytes(base, &state[..told])?;
            mm.write(Va(data + 8), &(told as u64))?;
        }
        PTRACE_SETREGSET => {
            let (base, given) = vector(thread, data)?;
            let known = registers::of_set(&tracee, addr)?.len();
            whole_words(given)?;
            let mut bytes = alloc::vec![0; given.min(known)];
            mm.read_bytes(base, &mut bytes)?;
            registers::set_of_set(&tracee, addr, &bytes)?;
            mm.write(Va(data + 8), &(bytes.len() as u64))?;
        }
        PTRACE_GETSIGINFO => {
            let info = stops::with(&tracee, |stop| stop.info)?.ok_or(Errno::EINVAL)?;
            mm.write(Va(data), &info)?;
        }
        PTRACE_SETSIGINFO => {
            let info: SigInfo = mm.read(Va(data))?;
            stops::with(&tracee, |stop| {
                let own = stop.info.as_mut().ok_or(Errno::EINVAL)?;
                *own = info;
                Ok::<(), Errno>(())
            })??;
        }
        PTRACE_GETSIGMASK if addr == 8 => {
            let mask = tracee.signals.lock().mask;
            mm.write(Va(data), &mask.0)?;
        }
        PTRACE_SETSIGMASK if addr == 8 => {
            let mask: u64 = mm.read(Va(data))?;
            signal::set_mask(&tracee, SigSet(mask));
        }
        PTRACE_GETEVENTMSG => mm.write(Va(data), &tracee.trace.message())?,
        PTRACE_SETOPTIONS => tracee.trace.set_options(options(data)?),
        PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG | PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG => {
            if addr != size_of::<[u64; 4]>() as u64 {
                return Err(Errno::EINVAL);
            }
            if request == PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG {
                let (mode, range) = tracee.dispatch.get();
                mm.write(Va(data), &[mode, range.selector.0, range.start, range.len])?;
            } else {
                let [mode, selector, start, len]: [u64; 4] = mm.read(Va(data))?;
                tracee.dispatch.set(mode, Range { start, len, selector: Va(selector) })?;
            }
        }
        PTRACE_GET_SYSCALL_INFO => {
            let info = call_info(&tracee)?;
            let told = info.len().min(usize::try_from(addr).unwrap_or(usize::MAX));
            mm.write_bytes(Va(data), &info[..told])?;
            return Ok(info.len());
        }
        PTRACE_LISTEN => stops::listen(&tracee)?,
        PTRACE_CONT => stops::end(&tracee, Next::Continue, signo(data)?),
        PTRACE_SYSCALL => stops::end(&tracee, Next::Calls, signo(data)?),
        PTRACE_SINGLESTEP => stops::end(&tracee, Next::Step, signo(data)?),
        PTRACE_SYSEMU => stops::end(&tracee, Next::Emulated, signo(data)?),
        PTRACE_SYSEMU_SINGLESTEP => stops::end(&tracee, Next::EmulatedStep, signo(data)?),
        PTRACE_DETACH => trace::detach(&tracee, signo(data)?),
        PTRACE_GETSIGMASK | PTRACE_SETSIGMASK => return Err(Errno::EINVAL),
        _ => return Err(Errno::EIO),
    }
    Ok(0)
}

/// Takes the patches of call sites back in the space of a tracee: its tracer sees it take each
/// instruction of its own program, and none else.
async fn show_all_instructions(thread: &Arc<Thread>, tracee: &Thread) {
    let mm = tracee.mm();
    if !mm.is_patched() {
        return;
    }
    if Arc::ptr_eq(&mm, &thread.mm()) {
        let frozen = mm.freeze(&thread.user, EVERYTHING).await;
        mm.undo_patches();
        drop(frozen);
        return;
    }
    let halted = run::halt_to_sync(thread, &mm).await;
    mm.undo_patches();
    mm.carry_out_ops().await;
    drop(halted);
}

/// Whom to attach to: ESRCH, EPERM.
fn to_attach(thread: &Arc<Thread>, pid: i32) -> Result<Arc<Thread>> {
    let number = u32::try_from(pid).map_err(|_| Errno::ESRCH)?;
    let Ok(other) = thread.find_thread(number) else {
        // Nobody traces a zombie.
        return Err(thread.find_process(number).map_or(Errno::ESRCH, |_| Errno::EPERM));
    };
    if Arc::ptr_eq(&other.process, &thread.process) {
        return Err(Errno::EPERM);
    }
    if other.with_fs(|fs| fs.executing > 0) {
        // Nobody comes to trace a program with the rights of the one before it.
        return Err(Errno::EAGAIN);
    }
    access::check(thread, &other, AccessMode::Real)?;
    Ok(other)
}

fn options(data: u64) -> Result<u32> {
    u32::try_from(data).ok().filter(|options| options & !trace::OPTIONS == 0).ok_or(Errno::EINVAL)
}

fn signo(data: u64) -> Result<Signo> {
    u32::try_from(data).ok().filter(|signo| *signo <= SIGNALS).ok_or(Errno::EIO)
}

/// The buffer that a struct iovec names.
fn vector(thread: &Arc<Thread>, at: u64) -> Result<(Va, usize)> {
    let mm = thread.mm();
    let (base, len): (u64, u64) = (mm.read(Va(at))?, mm.read(Va(at + 8))?);
    Ok((Va(base), usize::try_from(len).map_err(|_| Errno::EINVAL)?))
}

/// Nobody gets or sets a part of a register: EINVAL.
fn whole_words(bytes: usize) -> Result {
    bytes.is_multiple_of(8).then_some(()).ok_or(Errno::EINVAL)
}

/// Writes to a tracee's memory, also where it may not write itself: that is how breakpoints come to
/// be. EIO where there is none.
async fn poke(
    thread: &Arc<Thread>,
    pid: i32,
    tracee: &Arc<Thread>,
    va: Va,
    bytes: &[u8],
) -> Result {
    trace::may_look_into(tracee)?;
    let mm = tracee.mm();
    if Arc::ptr_eq(&mm, &thread.mm()) {
        return mm.write_bytes(va, bytes).map_err(|_| Errno::EIO);
    }
    let halted = mm.halt(&thread.user).await;
    // Meanwhile it may have been killed.
    let tracee = trace::tracee(thread, pid, true)?;
    if !Arc::ptr_eq(&mm, &tracee.mm()) {
        return Err(Errno::ESRCH);
    }
    let written = mm.force_bytes(va, bytes).map_err(|_| Errno::EIO);
    // Nothing is shown to anybody while the container sleeps.
    run::may_sync(thread).await;
    mm.carry_out_ops().await;
    drop(halted);
    written
}

fn peek_user(tracee: &Thread, at: u64) -> Result<u64> {
    if !at.is_multiple_of(8) || at >= USER_BYTES {
        return Err(Errno::EIO);
    }
    let general = registers::general(tracee)?;
    let word = general.get(at as usize..).and_then(|rest| rest.first_chunk());
    Ok(word.map_or(0, |word| u64::from_le_bytes(*word)))
}

fn poke_user(tracee: &Thread, at: u64, value: u64) -> Result {
    if !at.is_multiple_of(8) || at >= USER_BYTES {
        return Err(Errno::EIO);
    }
    let mut general = registers::general(tracee)?;
    match general.get_mut(at as usize..).and_then(|rest| rest.first_chunk_mut()) {
        Some(word) => *word = value.to_le_bytes(),
        None if DEBUG_REGISTERS.contains(&at) && value == 0 => return Ok(()),
        None if DEBUG_REGISTERS.contains(&at) => return Err(Errno::EINVAL),
        None => return Err(Errno::EIO),
    }
    registers::set_general(tracee, &general)
}

/// struct ptrace_syscall_info.
fn call_info(tracee: &Thread) -> Result<Vec<u8>> {
    let (kind, call) = stops::with(tracee, |stop| (stop.kind, stop.call))?;
    let regs = tracee.user.known_registers();
    let (op, rest) = match (kind, call) {
        (Kind::Entry, Some(call)) => {
            let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
            let words = core::iter::once(call.nr).chain(args);
            (PTRACE_SYSCALL_INFO_ENTRY, words.flat_map(u64::to_le_bytes).collect())
        }
        (Kind::Filter, Some(call)) => {
            let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
            let words = core::iter::once(call.nr).chain(args);
            let mut rest: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            rest.extend((tracee.trace.message() as u32).to_le_bytes());
            (PTRACE_SYSCALL_INFO_SECCOMP, rest)
        }
        (Kind::Exit, Some(call)) => {
            let mut rest = call.value.to_le_bytes().to_vec();
            rest.push(u8::from((-4095..0).contains(&call.value)));
            (PTRACE_SYSCALL_INFO_EXIT, rest)
        }
        _ => (PTRACE_SYSCALL_INFO_NONE, Vec::new()),
    };
    let mut info = op.to_le_bytes().to_vec();
    info.extend(ARCH.to_le_bytes());
    info.extend([regs.rip, regs.rsp].into_iter().flat_map(u64::to_le_bytes));
    info.extend(rest);
    Ok(info)
}
