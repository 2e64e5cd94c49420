//! A user thread as the platform sees it, and the plans by which it goes on.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use qlib::Gpa;
use qlib::platform::*;

use super::answers::Answer;
use super::files::{Files, StubFile};
use super::frame::FrameAt;
use super::layout::USER_MIN;
use super::room::Room;
use crate::sandbox::memory::GuestPhys;

/// A host system call that a stub thread is ordered to make: number and six plain arguments.
#[derive(Clone, Debug)]
pub struct HostOp {
    /// Number, then arguments.
    pub words: [u64; 7],
    /// The number in stubs of the file that a mapping refers to, kept until the call has been made.
    pub place: Option<Arc<StubFile>>,
    /// The file, if it is not there yet.
    pub file: Option<Arc<OwnedFd>>,
    /// The place of the thread that it makes, kept until right before the call.
    pub room: Option<Arc<Room>>,
    /// The name that it is about.
    pub name: Option<[u8; THREAD_NAME_BYTES]>,
}

impl HostOp {
    /// An operation without a file.
    pub fn plain(nr: i64, args: [u64; 6]) -> Self {
        let [a, b, c, d, e, f] = args;
        Self {
            words: [nr as u64, a, b, c, d, e, f],
            place: None,
            file: None,
            room: None,
            name: None,
        }
    }

    /// True if it may be carried out twice: it changes mappings or the name, and nothing else.
    pub fn may_be_repeated(&self) -> bool {
        [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_prctl]
            .iter()
            .any(|nr| *nr as u64 == self.words[0])
    }

    /// Names the thread; `address` is where the stub has [`super::layout::SLOT_NAME`] of its slot.
    pub fn set_name(name: [u8; THREAD_NAME_BYTES], address: u64) -> Self {
        let args = [libc::PR_SET_NAME as u64, address, 0, 0, 0, 0];
        Self { name: Some(name), ..Self::plain(libc::SYS_prctl, args) }
    }

    /// How many mappings more it can leave behind: what lies there is split at both ends, and a new
    /// one comes.
    pub fn new_mappings(&self) -> u64 {
        match self.words[0] as i64 {
            libc::SYS_mmap | libc::SYS_mprotect => 2,
            libc::SYS_munmap => 1,
            _ => 0,
        }
    }

    /// Ends the thread.
    pub fn exit() -> Self {
        Self::plain(libc::SYS_exit, [0; 6])
    }

    /// True if it is [`Self::exit`].
    pub fn is_exit(&self) -> bool {
        self.words[0] == libc::SYS_exit as u64
    }

    /// True if it is [`Self::clone_thread`].
    pub fn is_clone(&self) -> bool {
        self.words[0] == libc::SYS_clone as u64
    }

    /// Makes a thread that starts on the stack of its own slot.
    pub fn clone_thread(stack: u64, room: Option<Arc<Room>>) -> Self {
        const FLAGS: i32 = libc::CLONE_VM
            | libc::CLONE_FS
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SYSVSEM;
        Self { room, ..Self::plain(libc::SYS_clone, [FLAGS as u64, stack, 0, 0, 0, 0]) }
    }
}

/// A guest's name for a thread as the host may show it on terminals: control characters, and what
/// is not UTF-8, become question marks.
fn shown(name: [u8; THREAD_NAME_BYTES]) -> [u8; THREAD_NAME_BYTES] {
    let mut out = [0; THREAD_NAME_BYTES];
    let end = name.iter().position(|b| *b == 0).unwrap_or(THREAD_NAME_BYTES - 1);
    let mut at = 0;
    for chunk in name[..end.min(THREAD_NAME_BYTES - 1)].utf8_chunks() {
        let valid = chunk.valid().chars().map(|c| if c.is_control() { '?' } else { c });
        for c in valid.chain(chunk.invalid().iter().map(|_| '?')) {
            at += c.encode_utf8(&mut out[at..]).len();
        }
    }
    out
}

/// What lies behind guest memory, here and in stubs.
pub struct Backing<'a> {
    /// Here.
    pub phys: &'a dyn GuestPhys,
    /// There.
    pub files: &'a Files,
}

/// A [`Resume`] with its operations copied, checked and translated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// RESUME_*.
    pub kind: u32,
    /// For RESUME_RETURN.
    pub value: i64,
    /// For RESUME_REGS.
    pub regs: UserRegs,
    /// Host calls to make first.
    pub ops: Vec<HostOp>,
    /// New FS base.
    pub fs: Option<u64>,
    /// New GS base.
    pub gs: Option<u64>,
    /// New name, as the host may show it.
    pub name: Option<[u8; THREAD_NAME_BYTES]>,
}

impl Plan {
    /// Goes on as it is.
    pub fn go() -> Self {
        Self {
            kind: RESUME_GO,
            value: 0,
            regs: UserRegs::default(),
            ops: Vec::new(),
            fs: None,
            gs: None,
            name: None,
        }
    }

    /// Ends the thread.
    pub fn exit() -> Self {
        Self { kind: RESUME_EXIT, ..Self::go() }
    }

    /// True if it is the answer to a system call and nothing else.
    pub fn is_plain_answer(&self) -> bool {
        let changes = !self.ops.is_empty() || self.name.is_some();
        self.kind == RESUME_RETURN && !changes && self.fs.is_none() && self.gs.is_none()
    }

    /// Translates what the kernel asks for. An error tells which operation is not valid; the kernel
    /// has a bug then.
    pub fn new(
        resume: &Resume,
        ops: &[DeferredOp],
        user_max: u64,
        host: &Backing,
    ) -> Result<Self, String> {
        let mut plan =
            Self { kind: resume.kind, value: resume.value, regs: resume.regs, ..Self::go() };
        if !(RESUME_RETURN..=RESUME_EXIT).contains(&resume.kind) {
            return Err(format!("unknown resume kind {}", resume.kind));
        }
        for op in ops {
            match op.kind {
                OP_SET_FS => plan.fs = Some(op.va.0),
                OP_SET_GS => plan.gs = Some(op.va.0),
                OP_SET_NAME => plan.name = Some(shown(op.name())),
                OP_MAP | OP_UNMAP | OP_PROTECT => plan.push_range(op, user_max, host)?,
                _ => return Err(format!("unknown operation {op:?}")),
            }
        }
        Ok(plan)
    }

    fn push_range(&mut self, op: &DeferredOp, user_max: u64, host: &Backing) -> Result<(), String> {
        let (va, len) = (op.va.0, op.len);
        let end = va.checked_add(len).filter(|e| *e <= user_max);
        if len == 0
            || (va | len) & 0xfff != 0
            || va < USER_MIN
            || end.is_none()
            || op.prot & !7 != 0
        {
            return Err(format!("invalid operation {op:?}"));
        }
        match op.kind {
            OP_UNMAP => self.ops.push(HostOp::plain(libc::SYS_munmap, [va, len, 0, 0, 0, 0])),
            OP_PROTECT => {
                self.ops
                    .push(HostOp::plain(libc::SYS_mprotect, [va, len, op.prot.into(), 0, 0, 0]));
            }
            // Page tables lie in guest memory. Whatever stands there, the kernel's own frames are
            // shown to nobody.
            _ if !host.phys.is_for_users(op.gpa, len) => {
                return Err(format!("an operation would map memory of the guest kernel: {op:?}"));
            }
            _ => return self.push_map(va, len, op.gpa, op.prot.into(), host),
        }
        Ok(())
    }

    fn push_map(
        &mut self,
        va: u64,
        len: u64,
        gpa: Gpa,
        prot: u64,
        host: &Backing,
    ) -> Result<(), String> {
        if gpa.0 & 0xfff != 0 {
            return Err(format!("unaligned {gpa:?}"));
        }
        let Some((file, offset)) = host.phys.host_backing(gpa, len) else {
            // Perhaps it is contiguous for the guest but not for the host.
            if len <= 0x1000 {
                return Err(format!("nothing behind {gpa:?}"));
            }
            let half = (len / 2) & !0xfff;
            let Some(middle) = gpa.checked_add(half) else {
                return Err(format!("nothing behind {gpa:?}"));
            };
            self.push_map(va, half, gpa, prot, host)?;
            return self.push_map(va + half, len - half, middle, prot, host);
        };
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        let mut op = HostOp::plain(libc::SYS_mmap, [va, len, prot, flags, 0, offset]);
        op.words[5] = match host.files.ram(&file) {
            Some(number) => number as u64,
            None => {
                let place = host.files.place(&file).ok_or("no descriptor is left for stubs")?;
                op.file = (!place.is_there()).then_some(file);
                let number = place.number as u64;
                op.place = Some(place);
                number
            }
        };
        self.ops.push(op);
        Ok(())
    }
}

/// Where the host thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not made yet, or not arrived in stub code.
    Unborn,
    /// In guest code, or on its way there.
    User,
    /// Waits in a guest's system call: the notification's id.
    Call(u64),
    /// Has made a fast call (see [`super::fast`]) and looks for the answer, or does what it likes.
    Fast,
    /// Waits in a frame call.
    Parked(u64),
    /// Its system call was given up for a kick: a frame call comes next.
    Kicked,
    /// Carries out operations: how many of the batch are left.
    Ops(usize),
    /// Carries out its last operation again, as nothing says that it has (see [`super::proof`]).
    /// Then it reports.
    Repeating {
        /// The host has been told to.
        begun: bool,
    },
    /// Told to sleep (see [`super::asleep`]), in a system call that has no answer yet.
    Asleep,
    /// Ended.
    Gone,
}

/// A guest's system call that has no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestCall {
    /// Number.
    pub nr: u64,
    /// Arguments.
    pub args: [u64; 6],
    /// The address after the instruction.
    pub ip: u64,
    /// It came by the slot, and its answer goes there.
    pub fast: bool,
}

/// What to do when the thread arrives in a frame call.
#[derive(Clone, Debug)]
pub enum Pending {
    /// Let it go on.
    Resume(Box<Plan>),
    /// Notify the kernel.
    ReportStopped,
    /// Have it sleep, until there is something else to do.
    Sleep,
}

/// What follows the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Guest code.
    Go,
    /// Stay parked, TRAP_SYNCED.
    Hold,
    /// Stay parked, TRAP_STOPPED. If the kernel lets the thread go on first, nothing is reported.
    Stop,
    /// Nothing.
    Exit,
}

/// A user thread.
#[derive(Debug)]
pub struct Thread {
    /// The kernel's name for it.
    pub token: u64,
    /// Its slot.
    pub slot: u32,
    /// Its host thread; 0 while unborn.
    pub tid: u32,
    /// How often the kernel has let it go on.
    pub resumes: u64,
    /// Where it is.
    pub phase: Phase,
    /// Its signal frame; valid while parked, unborn or carrying out operations.
    pub frame: FrameAt,
    /// The unanswered system call.
    pub call: Option<GuestCall>,
    /// It was parked in its system call without the kernel's doing, so the kernel does not know its
    /// registers.
    pub parked_unasked: bool,
    /// See [`Pending`].
    pub pending: Option<Pending>,
    /// Operations not yet carried out.
    pub ops: VecDeque<HostOp>,
    /// See [`After`].
    pub after: After,
    /// This batch ends with a report.
    pub batch_reports: bool,
    /// The segment bases must be loaded before guest code.
    pub bases: bool,
    /// The kernel wants it stopped.
    pub stop_wanted: bool,
    /// A kick was sent and has not arrived.
    pub kick_out: bool,
    /// The watch has it on its list.
    pub watched: bool,
    /// Processor time of its host thread when the watch first looked after the kick, or after its
    /// last operation, in clock ticks, and how often the watch has looked since.
    pub since_kick: Option<(u64, u32)>,
    /// Threads that it makes at its next resume.
    pub clones: Vec<u32>,
    /// Its place at the host, until it is made.
    pub room: Option<Arc<Room>>,
    /// The last change of mappings that the host was told to carry out, while nothing proves that
    /// it has. See [`super::proof`].
    pub unproven: Option<HostOp>,
    /// Its last call was answered by the receiver of another process of the guest, for which it had
    /// waited.
    pub answered_inside: bool,
    /// The answer by which it runs since its last notification; it may not have been sent yet (see
    /// [`super::answers`]).
    pub answer: Option<Answer>,
    /// How often it yields by itself, if it may.
    pub yields: Option<super::fast::Yields>,
    /// The kernel has forgotten it.
    pub dropped: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_a_terminal() {
        let name = |bytes: &[u8]| {
            let shown = shown(DeferredOp::set_name(bytes).name());
            let end = shown.iter().position(|b| *b == 0).unwrap();
            String::from_utf8(shown[..end].to_vec()).unwrap()
        };
        assert_eq!(name(b"nginx"), "nginx");
        assert_eq!(name(b"0123456789abcdefgh"), "0123456789abcde");
        assert_eq!(name(b"a\nb\x1b[2J\x7f"), "a?b?[2J?");
        assert_eq!(name("gr\u{fc}n \u{9b}31m".as_bytes()), "gr\u{fc}n ?31m");
        assert_eq!(name(b"\xff\xfe"), "??");
        // A character cut in half by the length.
        assert_eq!(name("0123456789abcd\u{fc}".as_bytes()), "0123456789abcd?");
        assert_eq!(name(&[0xff; 40]), "?".repeat(15));
        assert_eq!(name(b""), "");
        assert_eq!(shown([b'x'; 16])[15], 0, "whatever the kernel says");
    }
}
