//! Filters of system calls (seccomp(2)): classic BPF programs that look at one call, checked and
//! run as Linux does.
//!
//! A program comes from a guest's user code or from a container's configuration. One that
//! [`Program::new`] accepts ends whatever it is asked: jumps go forward only.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use linux_raw_sys::if_tun::{
    BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_DIV, BPF_IMM, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT,
    BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_LEN, BPF_LSH, BPF_MEM, BPF_MEMWORDS, BPF_MISC,
    BPF_MUL, BPF_NEG, BPF_OR, BPF_RET, BPF_RSH, BPF_ST, BPF_STX, BPF_SUB, BPF_TAX, BPF_TXA, BPF_W,
    BPF_X, BPF_XOR,
};
/// The only architecture that there is in a guest.
pub use linux_raw_sys::ptrace::AUDIT_ARCH_X86_64 as ARCH;

/// The most instructions of a program (BPF_MAXINSNS).
pub const MAX_INSNS: usize = 4096;

/// What a program returns: an action in the upper half, data for it in the lower one.
pub mod ret {
    use linux_raw_sys::ptrace::{SECCOMP_RET_ACTION_FULL, SECCOMP_RET_DATA};
    pub use linux_raw_sys::ptrace::{
        SECCOMP_RET_ALLOW as ALLOW, SECCOMP_RET_ERRNO as ERRNO,
        SECCOMP_RET_KILL_PROCESS as KILL_PROCESS, SECCOMP_RET_KILL_THREAD as KILL_THREAD,
        SECCOMP_RET_LOG as LOG, SECCOMP_RET_TRACE as TRACE, SECCOMP_RET_TRAP as TRAP,
        SECCOMP_RET_USER_NOTIF as USER_NOTIF,
    };

    /// The action of what a program returned.
    pub const fn action(value: u32) -> u32 {
        value & SECCOMP_RET_ACTION_FULL
    }

    /// The data of what a program returned.
    pub const fn data(value: u32) -> u32 {
        value & SECCOMP_RET_DATA
    }

    /// The order of actions: of what several programs return, the least counts.
    pub const fn rank(value: u32) -> i32 {
        action(value) as i32
    }
}

/// One instruction (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// What it does.
    pub code: u16,
    /// Instructions to skip if a comparison holds.
    pub jt: u8,
    /// The same if it does not.
    pub jf: u8,
    /// A constant.
    pub k: u32,
}

impl Insn {
    /// From the bytes of a `struct sock_filter`.
    pub const fn from_bytes([c0, c1, jt, jf, k0, k1, k2, k3]: [u8; 8]) -> Self {
        let (code, k) = (u16::from_le_bytes([c0, c1]), u32::from_le_bytes([k0, k1, k2, k3]));
        Insn { code, jt, jf, k }
    }
}

impl From<(u16, u8, u8, u32)> for Insn {
    fn from((code, jt, jf, k): (u16, u8, u8, u32)) -> Self {
        Insn { code, jt, jf, k }
    }
}

/// One system call, as a program sees it (`struct seccomp_data`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Its number, all of %rax. Programs see the lower half.
    pub nr: u64,
    /// The address after the system-call instruction.
    pub ip: u64,
    /// Its arguments.
    pub args: [u64; 6],
}

/// `sizeof(struct seccomp_data)`.
const CALL_BYTES: u32 = 64;

impl Call {
    /// The 32-bit word at `offset`, a multiple of 4; `None` if there is none.
    pub fn word(&self, offset: u32) -> Option<u32> {
        let half = |value: u64| if offset & 4 == 0 { value as u32 } else { (value >> 32) as u32 };
        match offset {
            0 => Some(self.nr as u32),
            4 => Some(ARCH),
            8 | 12 => Some(half(self.ip)),
            _ => self.args.get(offset.checked_sub(16)? as usize / 8).map(|arg| half(*arg)),
        }
    }
}

const LD_ABS: u16 = (BPF_LD | BPF_W | BPF_ABS) as u16;
const LD_IMM: u16 = (BPF_LD | BPF_IMM) as u16;
const LD_LEN: u16 = (BPF_LD | BPF_W | BPF_LEN) as u16;
const LD_MEM: u16 = (BPF_LD | BPF_MEM) as u16;
const LDX_IMM: u16 = (BPF_LDX | BPF_IMM) as u16;
const LDX_LEN: u16 = (BPF_LDX | BPF_W | BPF_LEN) as u16;
const LDX_MEM: u16 = (BPF_LDX | BPF_MEM) as u16;
const ST: u16 = BPF_ST as u16;
const STX: u16 = BPF_STX as u16;
const TAX: u16 = (BPF_MISC | BPF_TAX) as u16;
const TXA: u16 = (BPF_MISC | BPF_TXA) as u16;
const RET_K: u16 = (BPF_RET | BPF_K) as u16;
const RET_A: u16 = (BPF_RET | BPF_A) as u16;
const JA: u16 = (BPF_JMP | BPF_JA) as u16;
const NEG: u16 = (BPF_ALU | BPF_NEG) as u16;

/// Words of scratch memory.
const WORDS: usize = BPF_MEMWORDS as usize;

/// What an instruction does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Something with the registers and the scratch memory.
    Plain,
    Arithmetic(u32),
    Jump,
    Compare(u32),
    Return,
}

/// The kind of an instruction; `None` if filters may not have it.
fn kind_of(code: u16) -> Option<Kind> {
    let without_source = u32::from(code) & !BPF_X;
    let (class, op) = (without_source & 0x07, without_source & !0x07);
    match code {
        LD_ABS | LD_IMM | LD_LEN | LD_MEM | LDX_IMM | LDX_LEN | LDX_MEM | ST | STX | TAX | TXA => {
            Some(Kind::Plain)
        }
        RET_K | RET_A => Some(Kind::Return),
        JA => Some(Kind::Jump),
        NEG => Some(Kind::Arithmetic(op)),
        _ if class == BPF_ALU => match op {
            BPF_ADD | BPF_SUB | BPF_MUL | BPF_DIV | BPF_OR | BPF_AND | BPF_LSH | BPF_RSH
            | BPF_XOR => Some(Kind::Arithmetic(op)),
            _ => None,
        },
        _ if class == BPF_JMP => match op {
            BPF_JEQ | BPF_JGT | BPF_JGE | BPF_JSET => Some(Kind::Compare(op)),
            _ => None,
        },
        _ => None,
    }
}

/// True if an instruction takes its operand from X, not from the constant.
fn takes_x(code: u16) -> bool {
    u32::from(code) & BPF_X != 0
}

/// A program that has been checked.
#[derive(Debug)]
pub struct Program(Box<[Insn]>);

impl Program {
    /// Checks a program as Linux does (`bpf_check_classic`, `seccomp_check_filter`); `None` if it
    /// is none.
    pub fn new(insns: Vec<Insn>) -> Option<Self> {
        let is_valid = (1..=MAX_INSNS).contains(&insns.len())
            && insns.iter().enumerate().all(|(at, insn)| is_valid(insn, insns.len() - at - 1))
            && insns.last().is_some_and(|last| kind_of(last.code) == Some(Kind::Return))
            && reads_what_was_written(&insns);
        is_valid.then(|| Program(insns.into_boxed_slice()))
    }

    /// How many instructions it has, at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What the program returns if `word` gives the words of the call; `None` as soon as that does.
    pub fn run(&self, word: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; WORDS]);
        // An iterator does not go back.
        let mut rest = self.0.iter();
        while let Some(&Insn { code, jt, jf, k }) = rest.next() {
            let cell = k as usize % WORDS;
            let operand = if takes_x(code) { x } else { k };
            let mut skipped = 0;
            match code {
                LD_ABS => a = word(k)?,
                LD_IMM => a = k,
                LD_LEN => a = CALL_BYTES,
                LD_MEM => a = memory[cell],
                LDX_IMM => x = k,
                LDX_LEN => x = CALL_BYTES,
                LDX_MEM => x = memory[cell],
                ST => memory[cell] = a,
                STX => memory[cell] = x,
                TAX => x = a,
                TXA => a = x,
                RET_K => return Some(k),
                RET_A => return Some(a),
                JA => skipped = k as usize,
                _ => match kind_of(code) {
                    Some(Kind::Compare(op)) => {
                        skipped = usize::from(if compares(op, a, operand) { jt } else { jf });
                    }
                    Some(Kind::Arithmetic(op)) => match calculate(op, a, operand) {
                        Some(result) => a = result,
                        // A division by zero ends the program.
                        None => return Some(ret::KILL_THREAD),
                    },
                    _ => return Some(ret::KILL_PROCESS),
                },
            }
            if skipped > 0 {
                rest.nth(skipped - 1);
            }
        }
        Some(ret::KILL_PROCESS)
    }
}

fn compares(op: u32, a: u32, operand: u32) -> bool {
    match op {
        BPF_JEQ => a == operand,
        BPF_JGT => a > operand,
        BPF_JGE => a >= operand,
        _ => a & operand != 0,
    }
}

fn calculate(op: u32, a: u32, operand: u32) -> Option<u32> {
    match op {
        BPF_ADD => Some(a.wrapping_add(operand)),
        BPF_SUB => Some(a.wrapping_sub(operand)),
        BPF_MUL => Some(a.wrapping_mul(operand)),
        BPF_DIV => a.checked_div(operand),
        BPF_OR => Some(a | operand),
        BPF_AND => Some(a & operand),
        BPF_XOR => Some(a ^ operand),
        BPF_LSH => Some(a.wrapping_shl(operand)),
        BPF_RSH => Some(a.wrapping_shr(operand)),
        _ => Some(a.wrapping_neg()),
    }
}

/// True if an instruction is acceptable with so many behind it.
fn is_valid(insn: &Insn, behind: usize) -> bool {
    let lands = |skipped: usize| skipped < behind;
    match kind_of(insn.code) {
        None => false,
        Some(Kind::Plain) => match insn.code {
            LD_ABS => insn.k < CALL_BYTES && insn.k.is_multiple_of(4),
            LD_MEM | LDX_MEM | ST | STX => (insn.k as usize) < WORDS,
            _ => true,
        },
        Some(Kind::Arithmetic(op)) if !takes_x(insn.code) => match op {
            BPF_DIV => insn.k != 0,
            BPF_LSH | BPF_RSH => insn.k < 32,
            _ => true,
        },
        Some(Kind::Arithmetic(_) | Kind::Return) => true,
        Some(Kind::Jump) => lands(insn.k as usize),
        Some(Kind::Compare(_)) => lands(insn.jt.into()) && lands(insn.jf.into()),
    }
}

/// True if on no way through the program a word of scratch memory is read before it is written.
/// Jumps have been checked.
fn reads_what_was_written(insns: &[Insn]) -> bool {
    // For each instruction the words that are written on every way that jumps to it.
    let mut written_at = vec![u16::MAX; insns.len()];
    let mut written = 0u16;
    for (at, insn) in insns.iter().enumerate() {
        written &= written_at[at];
        let mut jump = |skipped: usize, written: u16| {
            if let Some(there) = written_at.get_mut(at + 1 + skipped) {
                *there &= written;
            }
        };
        match (insn.code, kind_of(insn.code)) {
            (ST | STX, _) => written |= 1 << insn.k,
            (LD_MEM | LDX_MEM, _) if written & 1 << insn.k == 0 => return false,
            (_, Some(Kind::Jump)) => {
                jump(insn.k as usize, written);
                written = u16::MAX;
            }
            (_, Some(Kind::Compare(_))) => {
                jump(insn.jt.into(), written);
                jump(insn.jf.into(), written);
                written = u16::MAX;
            }
            _ => {}
        }
    }
    true
}

#[cfg(test)]
mod tests;
