//! The notes of a core dump: the threads with their registers, the signal, the mapped files.

use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::{PAGE_SIZE, Va};
use zerocopy::IntoBytes;

use super::Stopped;
use crate::abi::{TimeVal, abi_struct};
use crate::fs::file::file_of;
use crate::mm::AddressSpace;
use crate::task::Thread;
use crate::task::signal::{self, FXSAVE_BYTES, SigInfo, USER_CS, USER_SS};
use crate::task::trace::registers;

abi_struct! {
    /// struct elf_prstatus: a thread.
    pub struct Status {
        pub si_signo: i32, pub si_code: i32, pub si_errno: i32, pub cursig: i16, pub pad: u16,
        pub sigpend: u64, pub sighold: u64, pub pid: i32, pub ppid: i32, pub pgrp: i32,
        pub sid: i32, pub utime: TimeVal, pub stime: TimeVal, pub cutime: TimeVal,
        pub cstime: TimeVal, pub regs: [u64; 27], pub fpvalid: i32, pub pad2: u32,
    }
}
abi_struct! {
    /// struct elf_prpsinfo: a process. `args` are 80 bytes.
    pub struct Info {
        pub state: u8, pub sname: u8, pub zomb: u8, pub nice: i8, pub pad: u32, pub flag: u64,
        pub uid: u32, pub gid: u32, pub pid: i32, pub ppid: i32, pub pgrp: i32, pub sid: i32,
        pub fname: [u8; 16], pub args: [[u8; 16]; 5],
    }
}

const NT_PRSTATUS: u32 = 1;
const NT_FPREGSET: u32 = 2;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_X86_XSTATE: u32 = registers::NT_X86_XSTATE as u32;
const NT_SIGINFO: u32 = 0x5349_4749;
const NT_FILE: u32 = 0x4649_4c45;
/// The most mapped files that are told of.
const MOST_FILES: usize = 65_000;

/// All notes, in the order that Linux has them in: the thread that took the signal first.
pub(super) fn all(threads: &[Stopped], info: &SigInfo, mm: &Arc<AddressSpace>) -> Vec<u8> {
    let mut out = Vec::new();
    for (index, stopped) in threads.iter().enumerate() {
        note(&mut out, NT_PRSTATUS, status(stopped, info).as_bytes());
        if index == 0 {
            note(&mut out, NT_PRPSINFO, process_info(&stopped.thread, mm).as_bytes());
            note(&mut out, NT_SIGINFO, info.as_bytes());
            note(&mut out, NT_AUXV, &stopped.thread.process.image.lock().auxv.clone());
            note(&mut out, NT_FILE, &files(&stopped.thread, mm));
        }
        if let Some(fxsave) = stopped.fpstate.get(..FXSAVE_BYTES) {
            note(&mut out, NT_FPREGSET, fxsave);
        }
        if let Some(state) = registers::xstate_of(stopped.fpstate.clone()) {
            note_of(&mut out, b"LINUX\0", NT_X86_XSTATE, &state);
        }
    }
    out
}

fn note(out: &mut Vec<u8>, kind: u32, content: &[u8]) {
    note_of(out, b"CORE\0", kind, content);
}

/// A note of this name.
fn note_of(out: &mut Vec<u8>, name: &[u8], kind: u32, content: &[u8]) {
    for word in [name.len() as u32, content.len() as u32, kind] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(name);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn status(stopped: &Stopped, info: &SigInfo) -> Status {
    let Stopped { thread, regs, call, fpstate } = stopped;
    let process = &thread.process;
    let number = |pid| process.pid_namespace.number_of(pid) as i32;
    let (used, children) = (thread.usage(), process.traits.lock().children_usage);
    Status {
        si_signo: info.signo,
        si_code: info.code,
        si_errno: info.errno,
        cursig: info.signo as i16,
        sigpend: signal::pending(thread).0,
        sighold: thread.signals.lock().mask.0,
        pid: number(thread.tid()),
        ppid: number(process.ppid()),
        pgrp: number(process.pgid()),
        sid: number(process.sid()),
        utime: TimeVal::from_ns(used.user_ns),
        stime: TimeVal::from_ns(used.system_ns),
        cutime: TimeVal::from_ns(children.user_ns),
        cstime: TimeVal::from_ns(children.system_ns),
        regs: [
            regs.r15,
            regs.r14,
            regs.r13,
            regs.r12,
            regs.rbp,
            regs.rbx,
            regs.r11,
            regs.r10,
            regs.r9,
            regs.r8,
            regs.rax,
            regs.rcx,
            regs.rdx,
            regs.rsi,
            regs.rdi,
            *call as u64,
            regs.rip,
            USER_CS.into(),
            regs.rflags,
            regs.rsp,
            USER_SS.into(),
            regs.fs_base,
            regs.gs_base,
            0,
            0,
            0,
            0,
        ],
        fpvalid: i32::from(fpstate.len() >= FXSAVE_BYTES),
        ..Status::default()
    }
}

fn process_info(thread: &Arc<Thread>, mm: &AddressSpace) -> Info {
    let process = &thread.process;
    let number = |pid| process.pid_namespace.number_of(pid) as i32;
    let creds = thread.creds();
    let (mut fname, mut args) = ([0; 16], [[0; 16]; 5]);
    let name = thread.name();
    let len = name.len().min(fname.len() - 1);
    fname[..len].copy_from_slice(&name.as_bytes()[..len]);
    let image = process.image.lock().clone();
    let words = image.arguments(mm);
    let flat = args.as_flattened_mut();
    let most = flat.len() - 1;
    for (to, from) in flat[..most].iter_mut().zip(words.strip_suffix(b"\0").unwrap_or(&words)) {
        *to = if *from == 0 { b' ' } else { *from };
    }
    Info {
        sname: b'R',
        nice: thread.attrs.lock().nice as i8,
        uid: creds.uid_shown(creds.uid),
        gid: creds.gid_shown(creds.gid),
        pid: number(process.pid),
        ppid: number(process.ppid()),
        pgrp: number(process.pgid()),
        sid: number(process.sid()),
        fname,
        args,
        ..Info::default()
    }
}

/// NT_FILE: which files lie where, by pages.
fn files(thread: &Thread, mm: &Arc<AddressSpace>) -> Vec<u8> {
    let root = thread.fs().root;
    let (mut words, mut names): (Vec<u64>, Vec<u8>) = (Vec::new(), Vec::new());
    let mut at = Va(0);
    let mut count = 0;
    while let Some(vma) = mm.range_after(at).filter(|_| count < MOST_FILES) {
        at = vma.end;
        let Some(backing) = &vma.backing else { continue };
        let Some(place) = file_of(backing).and_then(|file| file.path.clone()) else { continue };
        count += 1;
        words.extend([vma.start.0, vma.end.0, backing.first_page]);
        names.extend_from_slice(&place.path_from(&root));
        names.push(0);
    }
    let mut out = Vec::new();
    for word in [count as u64, PAGE_SIZE].iter().chain(&words) {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&names);
    out
}

// As <linux/elfcore.h> has them.
const _: () = assert!(size_of::<Status>() == 336 && size_of::<Info>() == 136);
