//! Signal frames (`struct rt_sigframe` of x86-64 Linux, see sigreturn(2)) in a thread slot:
//! registers out and in.

use qlib::platform::UserRegs;

use super::area::Area;
use super::layout::*;

/// Bytes of `struct rt_sigframe`.
pub const FRAME_BYTES: u64 = 440;
const UC: usize = 8;
const UC_FLAGS: usize = UC;
const SS_SP: usize = UC + 16;
const SS_FLAGS: usize = UC + 24;
const SS_SIZE: usize = UC + 32;
const MC: usize = UC + 40;
/// Offsets of the registers in `mcontext`, in the order of [`UserRegs`] up to %rsp.
const R8: usize = MC;
const RDI: usize = MC + 64;
const RIP: usize = MC + 128;
const CS: usize = MC + 144;
const ERR: usize = MC + 152;
const TRAPNO: usize = MC + 160;
const CR2: usize = MC + 176;
const FPSTATE: usize = MC + 184;
const SIGMASK: usize = MC + 256;
const INFO: usize = UC + 304;
const UC_SIGCONTEXT_SS: u64 = 2;
const UC_STRICT_RESTORE_SS: u64 = 4;
/// `cs`, `gs`, `fs`, `ss` of a 64-bit user program.
const SELECTORS: u64 = 0x33 | 0x2b << 48;

/// Where a frame is: a slot, and an offset that has been checked to leave room for it on the slot's
/// signal stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameAt {
    /// The slot.
    pub slot: u32,
    /// Offset of the frame in it.
    pub offset: u64,
}

/// A copy of a frame.
pub struct Frame([u8; FRAME_BYTES as usize]);

/// What a frame says about why it was made.
#[derive(Clone, Copy, Debug)]
pub struct Cause {
    /// x86 exception number of the thread's last exception.
    pub trapno: u64,
    /// Its error code.
    pub err: u64,
    /// The address of its last page fault.
    pub cr2: u64,
    /// `si_code`.
    pub si_code: i32,
    /// `si_addr`.
    pub si_addr: u64,
}

impl FrameAt {
    /// Checks a frame address reported by the thread of `slot`, whose slots begin at `area` in the
    /// stub.
    pub fn check(area: u64, slot: u32, address: u64) -> Option<Self> {
        let offset = address.checked_sub(area + u64::from(slot) * SLOT_BYTES)?;
        ((STACK_OFFSET..=SLOT_BYTES - FRAME_BYTES).contains(&offset) && offset.is_multiple_of(8))
            .then_some(Self { slot, offset })
    }

    fn word(self, area: &Area, at: usize) -> u64 {
        area.read_u64(self.slot, self.offset + at as u64)
    }

    fn put(self, area: &Area, at: usize, value: u64) {
        area.write_u64(self.slot, self.offset + at as u64, value);
    }

    /// Copies the frame.
    pub fn load(self, area: &Area) -> Frame {
        let mut f = Frame([0; FRAME_BYTES as usize]);
        area.read(self.slot, self.offset, &mut f.0);
        f
    }

    /// The registers of the interrupted code; the segment bases come from the slot's control page.
    pub fn regs(self, area: &Area) -> UserRegs {
        self.regs_of(area, &self.load(area))
    }

    /// As [`Self::regs`], with the frame copied already.
    pub fn regs_of(self, area: &Area, frame: &Frame) -> UserRegs {
        let gs = area.read_u64(self.slot, SLOT_GS);
        let shown = if gs == area.gs_base(self.slot) { 0 } else { gs };
        frame.regs(area.read_u64(self.slot, SLOT_FS), shown)
    }

    /// Sets the GS base of the program. One that uses none has the slot's address there, for the
    /// fast call.
    pub fn set_gs(self, area: &Area, gs_base: u64) {
        let base = if gs_base == 0 { area.gs_base(self.slot) } else { canonical(gs_base) };
        area.write_u64(self.slot, SLOT_GS, base);
    }

    /// Changes what the fast call had changed of the program's registers.
    pub fn set_interrupted(self, area: &Area, regs: &UserRegs) {
        self.set_rax(area, regs.rax);
        self.set_rip(area, regs.rip);
        self.put(area, RIP + 8, regs.rflags);
    }

    /// Sets %rax.
    pub fn set_rax(self, area: &Area, value: u64) {
        self.put(area, RIP - 24, value);
    }

    /// Sets %rip.
    pub fn set_rip(self, area: &Area, value: u64) {
        self.put(area, RIP, value);
    }

    /// Writes a frame that enters 64-bit code with `regs`, no signal blocked, and the signal stack
    /// of this slot. The vector state stays what it is.
    pub fn set_regs(self, area: &Area, stub_area: u64, regs: &UserRegs) {
        let r = [
            regs.r8,
            regs.r9,
            regs.r10,
            regs.r11,
            regs.r12,
            regs.r13,
            regs.r14,
            regs.r15,
            regs.rdi,
            regs.rsi,
            regs.rbp,
            regs.rbx,
            regs.rdx,
            regs.rax,
            regs.rcx,
            regs.rsp,
            regs.rip,
            regs.rflags,
        ];
        for (i, value) in r.into_iter().enumerate() {
            self.put(area, R8 + 8 * i, value);
        }
        let flags = self.word(area, UC_FLAGS) & 1;
        self.put(area, UC_FLAGS, flags | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS);
        self.put(area, CS, SELECTORS);
        self.put(area, SS_SP, stub_area + u64::from(self.slot) * SLOT_BYTES + STACK_OFFSET);
        self.put(area, SS_FLAGS, 0);
        self.put(area, SS_SIZE, STACK_BYTES);
        self.put(area, SIGMASK, 0);
        area.write_u64(self.slot, SLOT_FS, canonical(regs.fs_base));
        self.set_gs(area, regs.gs_base);
    }

    /// The frame's pointer to the vector state, as an offset in the slot; `None` when it has none,
    /// `Some(Err)` when it points elsewhere.
    pub fn fpstate(self, area: &Area, stub_area: u64) -> Option<Result<u64, ()>> {
        let p = self.word(area, FPSTATE);
        if p == 0 {
            return None;
        }
        let offset = p.wrapping_sub(stub_area + u64::from(self.slot) * SLOT_BYTES);
        Some(if offset.is_multiple_of(64) && (STACK_OFFSET..SLOT_BYTES).contains(&offset) {
            Ok(offset)
        } else {
            Err(())
        })
    }

    /// Points the frame at a vector state at `offset` in the slot, or at none (which means the
    /// initial state).
    pub fn set_fpstate(self, area: &Area, stub_area: u64, offset: Option<u64>) {
        let p = offset.map_or(0, |o| stub_area + u64::from(self.slot) * SLOT_BYTES + o);
        self.put(area, FPSTATE, p);
        let flags = self.word(area, UC_FLAGS) & !1;
        self.put(area, UC_FLAGS, flags | u64::from(p != 0));
    }
}

impl Frame {
    fn word(&self, at: usize) -> u64 {
        let mut b = [0; 8];
        b.copy_from_slice(&self.0[at..at + 8]);
        u64::from_le_bytes(b)
    }

    /// The registers in it.
    pub fn regs(&self, fs_base: u64, gs_base: u64) -> UserRegs {
        let r = |i: usize| self.word(R8 + 8 * i);
        UserRegs {
            r8: r(0),
            r9: r(1),
            r10: r(2),
            r11: r(3),
            r12: r(4),
            r13: r(5),
            r14: r(6),
            r15: r(7),
            rdi: r(8),
            rsi: r(9),
            rbp: r(10),
            rbx: r(11),
            rdx: r(12),
            rax: r(13),
            rcx: r(14),
            rsp: r(15),
            rip: r(16),
            rflags: r(17),
            fs_base,
            gs_base,
        }
    }

    /// Why it was made.
    pub fn cause(&self) -> Cause {
        Cause {
            trapno: self.word(TRAPNO),
            err: self.word(ERR),
            cr2: self.word(CR2),
            si_code: (self.word(INFO + 8) & 0xffff_ffff) as i32,
            si_addr: self.word(INFO + 16),
        }
    }
}

const _: () = assert!(RDI == R8 + 64 && RIP == R8 + 128);

/// Makes an address that WRFSBASE accepts out of any.
pub fn canonical(address: u64) -> u64 {
    ((address << 16) as i64 >> 16) as u64
}
