//! The signal frame: what a handler finds on its stack, and what rt_sigreturn(2) takes back. Laid
//! out as Linux's `struct rt_sigframe` of x86-64.

use qlib::Va;
use qlib::platform::UserRegs;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{SigInfo, SigSet};
use crate::abi::abi_struct;
use crate::arch::kvm::cpu;

abi_struct! {
    /// stack_t.
    pub struct SigStack { pub sp: u64, pub flags: u32, pub pad: u32, pub size: u64, }
}

abi_struct! {
    /// struct sigcontext (mcontext_t).
    pub struct SigContext {
        pub r8: u64, pub r9: u64, pub r10: u64, pub r11: u64, pub r12: u64, pub r13: u64,
        pub r14: u64, pub r15: u64, pub rdi: u64, pub rsi: u64, pub rbp: u64, pub rbx: u64,
        pub rdx: u64, pub rax: u64, pub rcx: u64, pub rsp: u64, pub rip: u64, pub rflags: u64,
        pub cs: u16, pub gs: u16, pub fs: u16, pub ss: u16, pub err: u64, pub trapno: u64,
        pub oldmask: u64, pub cr2: u64, pub fpstate: u64, pub reserved: [u64; 8],
    }
}

abi_struct! {
    /// struct ucontext.
    pub struct UContext {
        pub flags: u64, pub link: u64, pub stack: SigStack, pub mcontext: SigContext,
        pub sigmask: u64,
    }
}

/// struct rt_sigframe.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct RtSigFrame {
    /// Where the handler returns to: SA_RESTORER.
    pub pretcode: u64,
    /// The interrupted context.
    pub uc: UContext,
    /// The signal.
    pub info: SigInfo,
}

/// Bytes below the stack pointer that a leaf function may use (System V ABI).
const RED_ZONE_BYTES: u64 = 128;
/// Bytes of the fixed part of a frame.
pub const FRAME_BYTES: u64 = size_of::<RtSigFrame>() as u64;
/// uc_flags: the floating-point state has the extended (XSAVE) format.
const UC_FP_XSTATE: u64 = 1;
/// uc_flags: the stack segment is saved, and restored strictly.
const UC_SIGCONTEXT_SS: u64 = 2 | 4;
/// Selectors of 64-bit programs: those that ring 0 gives them on `kvm`, and Linux, as host of the
/// other platform.
pub const USER_CS: u16 = cpu::USER_CODE;
/// See [`USER_CS`].
pub const USER_SS: u16 = cpu::USER_DATA;
/// Bytes of the legacy FXSAVE area, and where in it the software's words begin.
pub const FXSAVE_BYTES: usize = 512;
/// Where that has bytes that no register is stored to, for software.
pub const SOFTWARE_BYTES: usize = 464;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
/// Flags a handler's return may change: AC OF DF TF SF ZF AF PF CF RF.
pub const RESTORABLE_FLAGS: u64 = 0x50dd5;
const FLAG_DF: u64 = 0x400;
const FLAG_TF: u64 = 0x100;
const FLAG_RF: u64 = 0x10000;

/// Where the parts of a frame lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The frame itself; also the handler's stack pointer.
    pub frame: Va,
    /// The floating-point state, 64-byte aligned.
    pub fpstate: Va,
}

/// Places a frame on the stack that begins at `top` (`red_zone`: it is the interrupted stack).
/// `None` when it would wrap around.
pub fn place(top: u64, red_zone: bool, fpstate_bytes: u64) -> Option<Placement> {
    let top = if red_zone { top.checked_sub(RED_ZONE_BYTES)? } else { top };
    let fpstate = top.checked_sub(fpstate_bytes)? & !63;
    let frame = (fpstate.checked_sub(FRAME_BYTES)? & !15).checked_sub(8)?;
    Some(Placement { frame: Va(frame), fpstate: Va(fpstate) })
}

/// What was behind an exception, for the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// x86 error code.
    pub err: u64,
    /// x86 exception number.
    pub trapno: u64,
    /// The address that faulted.
    pub cr2: u64,
}

/// The saved form of `regs`.
pub fn save(regs: &UserRegs, mask: SigSet, fault: Fault, fpstate: Va) -> SigContext {
    SigContext {
        r8: regs.r8,
        r9: regs.r9,
        r10: regs.r10,
        r11: regs.r11,
        r12: regs.r12,
        r13: regs.r13,
        r14: regs.r14,
        r15: regs.r15,
        rdi: regs.rdi,
        rsi: regs.rsi,
        rbp: regs.rbp,
        rbx: regs.rbx,
        rdx: regs.rdx,
        rax: regs.rax,
        rcx: regs.rcx,
        rsp: regs.rsp,
        rip: regs.rip,
        rflags: regs.rflags,
        cs: USER_CS,
        gs: 0,
        fs: 0,
        ss: USER_SS,
        err: fault.err,
        trapno: fault.trapno,
        oldmask: mask.0,
        cr2: fault.cr2,
        fpstate: fpstate.0,
        reserved: [0; 8],
    }
}

/// `regs` with what `saved` says; segment bases stay, and so do the flags that a program may not
/// set.
pub fn restore(regs: &UserRegs, saved: &SigContext) -> UserRegs {
    UserRegs {
        r8: saved.r8,
        r9: saved.r9,
        r10: saved.r10,
        r11: saved.r11,
        r12: saved.r12,
        r13: saved.r13,
        r14: saved.r14,
        r15: saved.r15,
        rdi: saved.rdi,
        rsi: saved.rsi,
        rbp: saved.rbp,
        rbx: saved.rbx,
        rdx: saved.rdx,
        rax: saved.rax,
        rcx: saved.rcx,
        rsp: saved.rsp,
        rip: saved.rip,
        rflags: regs.rflags & !RESTORABLE_FLAGS | saved.rflags & RESTORABLE_FLAGS,
        fs_base: regs.fs_base,
        gs_base: regs.gs_base,
    }
}

/// The user context of a frame.
pub fn context(saved: SigContext, stack: SigStack, mask: SigSet, fpstate: &[u8]) -> UContext {
    let extended = if xstate_bytes(fpstate).is_some() { UC_FP_XSTATE } else { 0 };
    UContext {
        flags: UC_SIGCONTEXT_SS | extended,
        link: 0,
        stack,
        mcontext: saved,
        sigmask: mask.0,
    }
}

/// The registers with which a handler begins.
pub fn enter(regs: &UserRegs, handler: u64, signo: u32, at: Placement) -> UserRegs {
    UserRegs {
        rax: 0,
        rdi: u64::from(signo),
        rsi: at.frame.0 + core::mem::offset_of!(RtSigFrame, info) as u64,
        rdx: at.frame.0 + core::mem::offset_of!(RtSigFrame, uc) as u64,
        rip: handler,
        rsp: at.frame.0,
        rflags: regs.rflags & !(FLAG_DF | FLAG_TF | FLAG_RF),
        ..*regs
    }
}

/// The length of the whole floating-point state whose first [`FXSAVE_BYTES`] are `head`, if it has
/// the extended format.
pub fn xstate_bytes(head: &[u8]) -> Option<usize> {
    let word =
        |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    (word(SOFTWARE_BYTES)? == FP_XSTATE_MAGIC1)
        .then(|| word(SOFTWARE_BYTES + 4))
        .flatten()
        .map(|n| n as usize)
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn offsets_are_those_of_linux() {
        assert_eq!(FRAME_BYTES, 440);
        assert_eq!(offset_of!(RtSigFrame, uc), 8);
        assert_eq!(offset_of!(RtSigFrame, info), 312);
        assert_eq!(offset_of!(UContext, stack), 16);
        assert_eq!(offset_of!(UContext, mcontext), 40);
        assert_eq!(offset_of!(UContext, sigmask), 296);
        assert_eq!(size_of::<UContext>(), 304);
        assert_eq!(size_of::<SigContext>(), 256);
        assert_eq!(offset_of!(SigContext, rdi), 64);
        assert_eq!(offset_of!(SigContext, rip), 128);
        assert_eq!(offset_of!(SigContext, cs), 144);
        assert_eq!(offset_of!(SigContext, err), 152);
        assert_eq!(offset_of!(SigContext, cr2), 176);
        assert_eq!(offset_of!(SigContext, fpstate), 184);
    }

    #[test]
    fn frames_are_aligned_and_spare_the_red_zone() {
        for top in 0x7fff_0000u64..0x7fff_0100 {
            let at = place(top, true, 2700).expect("there is room");
            assert_eq!(at.fpstate.0 % 64, 0);
            // At a function's entry the stack pointer is 8 below a multiple of 16.
            assert_eq!(at.frame.0 % 16, 8);
            assert!(at.fpstate.0 + 2700 <= top - 128);
            assert!(at.frame.0 + FRAME_BYTES <= at.fpstate.0);
        }
        assert_eq!(place(100, true, 512), None);
        assert_eq!(place(1000, false, 900), None);
    }

    #[test]
    fn what_is_saved_comes_back() {
        let regs = UserRegs {
            r8: 1,
            rax: 2,
            rip: 3,
            rsp: 4,
            rflags: 0x246,
            fs_base: 5,
            gs_base: 6,
            rcx: 7,
            r15: 8,
            ..UserRegs::default()
        };
        let saved = save(&regs, SigSet(9), Fault::default(), Va(64));
        let now = UserRegs { fs_base: 5, gs_base: 6, rflags: 0x202, ..UserRegs::default() };
        assert_eq!(restore(&now, &saved), regs);
        // A program cannot give itself I/O rights or switch interrupts off.
        let forged = SigContext { rflags: 0x3000 | 0x1, ..saved };
        assert_eq!(restore(&now, &forged).rflags, 0x203);
    }

    #[test]
    fn extended_state_is_known_by_its_magic() {
        let mut head = [0u8; FXSAVE_BYTES];
        assert_eq!(xstate_bytes(&head), None);
        head[464..468].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
        head[468..472].copy_from_slice(&2700u32.to_le_bytes());
        assert_eq!(xstate_bytes(&head), Some(2700));
        assert_eq!(xstate_bytes(&head[..300]), None);
    }
}
