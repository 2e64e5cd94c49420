//! A mock kernel for tests of the process platform: guest memory in a memfd, and events handed to
//! the test one by one.
#![allow(dead_code)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use qlib::platform::*;
use qlib::{Gpa, Va};
use qvisor::platform::process::{FastCalls, ProcessConfig, ProcessPlatform, Test};
use qvisor::sandbox::memory::GuestPhys;

pub const RAM_BYTES: u64 = 64 << 20;
pub const CODE: u64 = 0x40_0000;
pub const DATA: u64 = 0x50_0000;
pub const STACK_TOP: u64 = 0x61_0000;

/// What a host with Linux 5.15 offers.
pub const OLDEST: ProcessConfig = ProcessConfig {
    sync_wake_up: false,
    wait_killable: false,
    receive_ends: false,
    stack_bytes: 256 << 10,
    fast_calls: FastCalls::Off,
    memory_limit_bytes: 0,
    tasks_limit: 0,
    test: Test { fail_step: None, bare_stubs: false },
    max_map_count: None,
};

/// Guest RAM.
pub struct Ram(pub Arc<OwnedFd>);

impl GuestPhys for Ram {
    fn host_backing(&self, gpa: Gpa, len: u64) -> Option<(Arc<OwnedFd>, u64)> {
        (gpa.0.checked_add(len)? <= RAM_BYTES).then(|| (self.0.clone(), gpa.0))
    }

    fn is_for_users(&self, _gpa: Gpa, _len: u64) -> bool {
        true
    }
}

pub fn ram() -> File {
    // SAFETY: a NUL-terminated name; the descriptor is checked and owned by the File.
    let file = unsafe {
        let fd = libc::memfd_create(c"test-ram".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    file.set_len(RAM_BYTES).expect("size RAM");
    file
}

/// The mock kernel.
pub struct Mock {
    pub platform: ProcessPlatform,
    pub ram: File,
    events: Receiver<Event>,
    next_frame: AtomicU64,
    next_token: AtomicU64,
}

/// A running program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub space: u64,
    pub thread: u64,
    pub token: u64,
}

pub fn map(va: u64, len: u64, gpa: u64, prot: u32) -> DeferredOp {
    DeferredOp { kind: OP_MAP, prot, va: Va(va), len, gpa: Gpa(gpa) }
}

pub fn unmap(va: u64, len: u64) -> DeferredOp {
    DeferredOp { kind: OP_UNMAP, va: Va(va), len, ..DeferredOp::default() }
}

pub fn protect(va: u64, len: u64, prot: u32) -> DeferredOp {
    DeferredOp { kind: OP_PROTECT, prot, va: Va(va), len, ..DeferredOp::default() }
}

pub const R: u32 = 1;
pub const RW: u32 = 3;
pub const RX: u32 = 5;
pub const RWX: u32 = 7;

pub fn resume(kind: u32) -> Resume {
    Resume {
        kind,
        op_count: 0,
        value: 0,
        ops: std::ptr::null(),
        root: Gpa(0),
        regs: UserRegs::default(),
    }
}

impl Mock {
    pub fn new() -> Self {
        Self::with(ProcessConfig::default())
    }

    pub fn with(config: ProcessConfig) -> Self {
        let ram = ram();
        let fd: OwnedFd = ram.try_clone().expect("clone RAM").into();
        Self::on(Arc::new(Ram(Arc::new(fd))), ram, 0x10_0000, config)
    }

    /// On RAM of the test's own, with frames from `first_frame` on.
    pub fn on(
        phys: Arc<dyn GuestPhys>,
        ram: File,
        first_frame: u64,
        config: ProcessConfig,
    ) -> Self {
        let _ = tracing_subscriber::fmt().with_test_writer().try_init();
        let platform = ProcessPlatform::new(phys, config).expect("platform");
        let (sender, events) = channel();
        platform.set_dispatch(Box::new(move |event| sender.send(*event).unwrap_or(())));
        Self {
            platform,
            ram,
            events,
            next_frame: AtomicU64::new(first_frame),
            next_token: AtomicU64::new(1),
        }
    }

    /// Fresh frames.
    pub fn frames(&self, bytes: u64) -> u64 {
        self.next_frame.fetch_add(bytes.next_multiple_of(0x1000), Ordering::Relaxed)
    }

    /// Frames that hold `bytes`.
    pub fn frames_with(&self, bytes: &[u8]) -> u64 {
        let gpa = self.frames(bytes.len() as u64);
        self.ram.write_all_at(bytes, gpa).expect("write RAM");
        gpa
    }

    pub fn read_u64(&self, gpa: u64) -> u64 {
        let mut b = [0; 8];
        self.ram.read_exact_at(&mut b, gpa).expect("read RAM");
        u64::from_le_bytes(b)
    }

    pub fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    pub fn event(&self) -> Event {
        self.events.recv_timeout(Duration::from_secs(10)).expect("an event")
    }

    /// The next event of a program that does what it likes with stub code, and may run in circles
    /// there: after a while it is stopped, which comes as an event, or ends it.
    pub fn event_or_stop(&self, thread: u64) -> Event {
        if let Ok(event) = self.events.recv_timeout(Duration::from_secs(2)) {
            return event;
        }
        self.platform.thread_stop(thread);
        self.events.recv_timeout(Duration::from_secs(30)).expect("a stop, or its end")
    }

    pub fn no_event(&self, within: Duration) {
        match self.events.recv_timeout(within) {
            Err(RecvTimeoutError::Timeout) => {}
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn trap(&self, kind: u32) -> Trap {
        let event = self.event();
        assert_eq!(event.kind, EVENT_TRAP, "{event:?}");
        assert_eq!(event.trap.kind, kind, "{:#x?}", event.trap);
        event.trap
    }

    /// Waits until a thread that makes no calls runs.
    pub fn running(&self, thread: u64) {
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while self.platform.fpstate_read(thread) != Err(libc::EBUSY) {
            assert!(std::time::Instant::now() < end, "thread {thread:#x} does not run");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A page fault of the guest at `addr`.
    pub fn fault(&self, addr: u64) -> Trap {
        let trap = self.trap(TRAP_FAULT);
        assert_eq!(trap.addr, addr, "{trap:#x?}");
        trap
    }

    pub fn syscall(&self, nr: i64) -> Trap {
        let trap = self.trap(TRAP_SYSCALL);
        assert_eq!(trap.nr, nr as u64, "{trap:#x?}");
        trap
    }

    pub fn go(&self, thread: u64, kind: u32, ops: &[DeferredOp]) {
        self.platform.thread_resume(thread, &resume(kind), ops);
    }

    pub fn give(&self, thread: u64, value: i64) {
        self.give_after(thread, value, &[]);
    }

    pub fn give_after(&self, thread: u64, value: i64, ops: &[DeferredOp]) {
        self.platform.thread_resume(thread, &Resume { value, ..resume(RESUME_RETURN) }, ops);
    }

    pub fn set(&self, thread: u64, regs: UserRegs, ops: &[DeferredOp]) {
        self.platform.thread_resume(thread, &Resume { regs, ..resume(RESUME_REGS) }, ops);
    }

    /// Starts machine code with a page of data and a stack.
    pub fn start(&self, code: &[u8]) -> Program {
        self.try_start(code).unwrap_or_else(|(_, e)| panic!("no thread: error {e}"))
    }

    /// As [`Mock::start`]; the space and the error if it gets no thread.
    pub fn try_start(&self, code: &[u8]) -> Result<Program, (u64, i32)> {
        let space = self.platform.space_new().expect("space");
        let token = self.token();
        let thread = self.platform.thread_new(space, 0, token).map_err(|e| (space, e))?;
        let regs = UserRegs { rip: CODE, rsp: STACK_TOP, rflags: 0x202, ..UserRegs::default() };
        let code_len = (code.len() as u64).next_multiple_of(0x1000);
        self.set(
            thread,
            regs,
            &[
                map(CODE, code_len, self.frames_with(code), RX),
                map(DATA, 0x1000, self.frames(0x1000), RW),
                map(STACK_TOP - 0x1_0000, 0x1_0000, self.frames(0x1_0000), RW),
            ],
        );
        Ok(Program { space, thread, token })
    }

    /// Drops the space and waits for its end, passing over traps of its threads.
    pub fn end(&self, space: u64) {
        let pid = self.platform.stub_pid(space);
        self.platform.space_drop(space);
        loop {
            let event = self.event();
            if event.kind == EVENT_SPACE_GONE {
                assert_eq!(event.a, space);
                break;
            }
        }
        if let Some(pid) = pid {
            assert!(
                !std::path::Path::new(&format!("/proc/{pid}")).exists(),
                "stub {pid} is still there"
            );
        }
    }
}

/// Machine code between two labels of a `global_asm!` block.
#[macro_export]
macro_rules! guest_code {
    ($name:ident, $($line:literal),+ $(,)?) => {
        std::arch::global_asm!(
            ".pushsection .rodata.guest,\"a\",@progbits",
            ".balign 16",
            concat!(".globl ", stringify!($name), "_start"),
            concat!(stringify!($name), "_start:"),
            $($line,)+
            concat!(".globl ", stringify!($name), "_end"),
            concat!(stringify!($name), "_end:"),
            ".popsection",
            options(att_syntax),
        );
        fn $name() -> &'static [u8] {
            unsafe extern "C" {
                #[link_name = concat!(stringify!($name), "_start")]
                static START: u8;
                #[link_name = concat!(stringify!($name), "_end")]
                static END: u8;
            }
            // SAFETY: the labels delimit one object in read-only data.
            unsafe {
                let size = &raw const END as usize - &raw const START as usize;
                std::slice::from_raw_parts(&raw const START, size)
            }
        }
    };
}
