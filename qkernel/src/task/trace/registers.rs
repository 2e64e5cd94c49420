//! The registers of a tracee that has stopped, as its tracer sees and sets them.

use alloc::vec::Vec;

use qlib::fpstate::{FpFormat, MIN_XSAVE};
use qlib::platform::UserRegs;

use super::stops;
use crate::arch;
use crate::errno::{Errno, Result};
use crate::task::Thread;
use crate::task::signal::frame::{RESTORABLE_FLAGS, SOFTWARE_BYTES};
use crate::task::signal::{FXSAVE_BYTES, USER_CS, USER_SS};

/// Size of struct user_regs_struct of x86-64, in bytes.
pub const GENERAL_BYTES: usize = 27 * 8;
/// Sets of registers (PTRACE_GETREGSET): those of struct user_regs_struct.
pub const NT_PRSTATUS: u64 = 1;
/// The floating-point registers as FXSAVE has them.
pub const NT_PRFPREG: u64 = 2;
/// All extended state as XSAVE has it.
pub const NT_X86_XSTATE: u64 = 0x202;
/// Where the state that XSAVE stores says of itself which parts of it are not as they were first.
const XSTATE_BV: usize = 512;
/// The parts that FXSAVE has.
const LEGACY: u64 = 3;
/// The end of user addresses (TASK_SIZE_MAX).
const TASK_BYTES: u64 = 0x7fff_ffff_f000;
/// The control words of a program that begins.
const FCW: u16 = 0x37f;
const MXCSR: u32 = 0x1f80;
const MXCSR_MASK: u32 = 0xffff;
/// What a CPU means that gives no mask of MXCSR's bits.
const MXCSR_OF_OLD: u64 = 0xffbf;
/// Where MXCSR is, and the mask of its bits behind it.
const MXCSR_AT: usize = 24;

/// The tracee's struct user_regs_struct. ESRCH if it is in no stop.
pub fn general(tracee: &Thread) -> Result<[u8; GENERAL_BYTES]> {
    let call = stops::with(tracee, |stop| stop.call)?;
    let r = tracee.user.known_registers();
    let rax = call.map_or(r.rax, |call| call.value as u64);
    let orig_rax = call.map_or(u64::MAX, |call| call.nr);
    let (cs, ss) = (u64::from(USER_CS), u64::from(USER_SS));
    let words = [
        r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, rax, r.rcx, r.rdx,
        r.rsi, r.rdi, orig_rax, r.rip, cs, r.rflags, r.rsp, ss, r.fs_base, r.gs_base, 0, 0, 0, 0,
    ];
    let mut bytes = [0; GENERAL_BYTES];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    Ok(bytes)
}

/// Sets them. EIO for segments that a program cannot have.
pub fn set_general(tracee: &Thread, bytes: &[u8; GENERAL_BYTES]) -> Result {
    let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
    let mut next = || words.next().unwrap_or(0);
    let mut regs = UserRegs {
        r15: next(),
        r14: next(),
        r13: next(),
        r12: next(),
        rbp: next(),
        rbx: next(),
        r11: next(),
        r10: next(),
        r9: next(),
        r8: next(),
        rax: next(),
        rcx: next(),
        rdx: next(),
        rsi: next(),
        rdi: next(),
        ..UserRegs::default()
    };
    let orig_rax = next();
    regs.rip = next();
    let cs = next();
    let flags = next();
    regs.rsp = next();
    let ss = next();
    (regs.fs_base, regs.gs_base) = (next(), next());
    let is_user = |base: u64| base < TASK_BYTES;
    if cs != u64::from(USER_CS)
        || ss != u64::from(USER_SS)
        || !is_user(regs.fs_base)
        || !is_user(regs.gs_base)
    {
        return Err(Errno::EIO);
    }
    let rax = regs.rax;
    stops::with(tracee, |stop| {
        if let Some(call) = &mut stop.call {
            // What is no call any more is not made again.
            (call.nr, call.value) = (orig_rax, rax as i64);
        }
    })?;
    tracee.user.change_registers(|now| {
        regs.rflags = now.rflags & !RESTORABLE_FLAGS | flags & RESTORABLE_FLAGS;
        *now = regs;
    });
    stops::changed(tracee);
    Ok(())
}

/// A set of registers. EINVAL for one that there is not.
pub fn of_set(tracee: &Thread, set: u64) -> Result<Vec<u8>> {
    if set == NT_PRSTATUS {
        return general(tracee).map(|bytes| bytes.to_vec());
    }
    let mut state = state_of(tracee)?;
    match set {
        NT_PRFPREG => {
            state.truncate(FXSAVE_BYTES);
            state[SOFTWARE_BYTES..].fill(0);
            Ok(state)
        }
        NT_X86_XSTATE => xstate_of(state).ok_or(Errno::EINVAL),
        _ => Err(Errno::EINVAL),
    }
}

/// [`NT_X86_XSTATE`] of the floating-point state as a signal frame has it; `None` if that is what
/// FXSAVE stores, or nothing.
pub fn xstate_of(mut state: Vec<u8>) -> Option<Vec<u8>> {
    if state.len() <= XSTATE_BV {
        return None;
    }
    state.truncate(xstate_bytes(&state));
    // Signal frames say here how long the rest is; this says which parts there may be.
    let parts: [u8; 8] = *state[SOFTWARE_BYTES + 8..].first_chunk()?;
    state[SOFTWARE_BYTES..FXSAVE_BYTES].fill(0);
    state[SOFTWARE_BYTES..SOFTWARE_BYTES + 8].copy_from_slice(&parts);
    Some(state)
}

/// The floating-point state as a signal frame has it.
fn state_of(tracee: &Thread) -> Result<Vec<u8>> {
    let state = tracee.user.fpstate()?;
    if state.len() >= FXSAVE_BYTES {
        return Ok(state);
    }
    // As it is first.
    let bytes = (arch::boot().fpstate_bytes as usize).max(FXSAVE_BYTES);
    let mut state = alloc::vec![0; bytes];
    state[..2].copy_from_slice(&FCW.to_le_bytes());
    state[24..28].copy_from_slice(&MXCSR.to_le_bytes());
    state[28..32].copy_from_slice(&MXCSR_MASK.to_le_bytes());
    if bytes > MIN_XSAVE {
        let features = arch::xstate::parts();
        let xsave_bytes = bytes - size_of::<u32>();
        FpFormat { xsave_bytes, features, mxcsr_mask: MXCSR_MASK }.mark(&mut state);
    }
    Ok(state)
}

/// The length of the state that XSAVE has stored, without what ends it in a signal frame.
fn xstate_bytes(state: &[u8]) -> usize {
    let length = state[SOFTWARE_BYTES + 16..].first_chunk().map_or(0, |n| u32::from_le_bytes(*n));
    (length as usize).clamp(FXSAVE_BYTES, state.len())
}

/// EINVAL for what the CPU would not take: bits of MXCSR that it does not have, parts that there
/// are not, a header of another format.
fn check_state(set: u64, bytes: &[u8], state: &[u8]) -> Result {
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
        word.map_or(0, |word| u64::from_le_bytes(*word))
    };
    let is_extended = set == NT_X86_XSTATE;
    let parts = if is_extended { word(bytes, XSTATE_BV) } else { LEGACY };
    let there = word(state, SOFTWARE_BYTES + 8);
    let header = bytes.get(XSTATE_BV + 8..XSTATE_BV + 64).filter(|_| is_extended);
    let is_plain = header.is_none_or(|rest| rest.iter().all(|byte| *byte == 0));
    let mask = match word(state, MXCSR_AT) >> 32 {
        0 => MXCSR_OF_OLD,
        mask => mask,
    };
    let mxcsr = word(bytes, MXCSR_AT) & u64::from(u32::MAX);
    let is_known = !is_extended || parts & !there == 0;
    let is_valid = parts & LEGACY == 0 || mxcsr & !mask == 0;
    (is_plain && is_known && is_valid).then_some(()).ok_or(Errno::EINVAL)
}

/// Sets a set of registers, or the first bytes of it. EINVAL as [`of_set`], and for half a
/// register.
pub fn set_of_set(tracee: &Thread, set: u64, bytes: &[u8]) -> Result {
    if set == NT_PRSTATUS {
        let mut all = general(tracee)?;
        all.get_mut(..bytes.len()).ok_or(Errno::EINVAL)?.copy_from_slice(bytes);
        return set_general(tracee, &all);
    }
    let known = of_set(tracee, set)?.len();
    if bytes.len() != known {
        // As Linux has it: the extended state is set as a whole.
        return Err(if set == NT_X86_XSTATE { Errno::EFAULT } else { Errno::EINVAL });
    }
    let mut state = state_of(tracee)?;
    check_state(set, bytes, &state)?;
    let software: Vec<u8> = state[SOFTWARE_BYTES..FXSAVE_BYTES].to_vec();
    let parts: Option<[u8; 8]> =
        state.get(XSTATE_BV..).and_then(|rest| rest.first_chunk().copied());
    state[..bytes.len()].copy_from_slice(bytes);
    state[SOFTWARE_BYTES..FXSAVE_BYTES].copy_from_slice(&software);
    if let Some(parts) = parts
        && set == NT_PRFPREG
    {
        let parts = u64::from_le_bytes(parts) | LEGACY;
        state[XSTATE_BV..XSTATE_BV + 8].copy_from_slice(&parts.to_le_bytes());
    }
    tracee.user.set_fpstate(&state)
}
