//! The zygote: a tiny process that makes stubs on request. It owns nothing but what its stubs need;
//! see [`super::isolate`].

use std::arch::asm;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags};

use super::Test;
use super::isolate::{STUB_ID, Surroundings, isolate};
use super::layout::*;
use super::steps::{Failure, Missing};
use super::stub::{StubAddresses, code_page};
use crate::sandbox::platform::Leave;
use crate::sys;
use crate::sys::ordered::{Condvar, Mutex, place};

/// How long the host may take to make a process.
const PATIENCE: Duration = Duration::from_secs(10);

/// The control page, in the sandbox process.
struct Control(*mut u8);

// SAFETY: all access is atomic.
unsafe impl Send for Control {}
// SAFETY: all access is atomic.
unsafe impl Sync for Control {}

impl Control {
    fn word(&self, offset: u64) -> &AtomicU64 {
        // SAFETY: offsets are constants inside the page, 8-aligned; the page lives as long as this
        // value.
        unsafe { &*self.0.add(offset as usize).cast() }
    }

    fn futex(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: as above, 4-aligned.
        unsafe { &*self.0.add(offset as usize).cast() }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// The running zygote.
pub struct Zygote {
    control: Arc<Control>,
    socket: OwnedFd,
    id_mapper: Mutex<Option<IdMapper>, place::ZygoteIds>,
    /// The process that prepares its surroundings, until that is done.
    copy: Mutex<Option<u32>, place::ZygoteFinish>,
    up: OnceLock<Up>,
    turns: Turns,
    /// How many descriptors it was told to close.
    closes: Mutex<u64, place::StubCloses>,
    /// Where its code and that of its stubs lies.
    pub addresses: StubAddresses,
    /// Where the vDSO is in every stub.
    pub vdso: u64,
    /// Its bytes.
    pub vdso_image: &'static [u8],
}

/// One stub is made at a time.
#[derive(Debug, Default)]
struct Turns {
    state: Mutex<TurnState, place::ZygoteTurns>,
    next: Condvar,
    next_urgent: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    taken: bool,
    /// How many urgent ones wait.
    urgent: usize,
    /// How many turns there were: the sequence number of the last request.
    number: u32,
}

/// Somebody's turn, as long as this lives.
struct Turn<'a> {
    turns: &'a Turns,
    number: u32,
}

impl Turns {
    fn take(&self, urgent: bool) -> Turn<'_> {
        let mut state = self.state.lock();
        if urgent {
            state.urgent += 1;
            state = self.next_urgent.wait_while(state, |s| s.taken);
            state.urgent -= 1;
        } else {
            state = self.next.wait_while(state, |s| s.taken || s.urgent > 0);
        }
        state.taken = true;
        state.number = state.number.wrapping_add(1);
        Turn { turns: self, number: state.number }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        state.taken = false;
        if state.urgent > 0 {
            self.turns.next_urgent.notify_one()
        } else {
            self.turns.next.notify_one()
        }
    }
}

/// What is known when it serves.
#[derive(Clone, Copy, Debug)]
pub struct Up {
    /// Its process id.
    pub pid: u32,
    /// The init process of its PID namespace.
    pub init: Option<u32>,
    /// What it has not got.
    pub missing: Missing,
}

/// Maps the first `bytes` of `fd` (at any address when `at` is 0).
fn map_page(fd: &OwnedFd, at: u64, bytes: u64, prot: i32) -> io::Result<*mut u8> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    // SAFETY: NOREPLACE never touches an existing mapping.
    let p = unsafe {
        libc::mmap(at as *mut _, bytes as usize, prot, libc::MAP_SHARED | fixed, fd.as_raw_fd(), 0)
    };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if at != 0 && p as u64 != at {
        // SAFETY: the mapping just made, at the wrong place.
        unsafe { libc::munmap(p, bytes as usize) };
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok(p.cast())
}

/// True if `[base, base + REGION_BYTES)` is free here.
fn region_is_free(base: u64) -> bool {
    // SAFETY: NOREPLACE never touches an existing mapping.
    unsafe {
        let p = libc::mmap(
            base as *mut _,
            REGION_BYTES as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_NORESERVE
                | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        );
        if p == libc::MAP_FAILED {
            return false;
        }
        libc::munmap(p, REGION_BYTES as usize);
        p as u64 == base
    }
}

/// Makes a copy of this process that runs [`isolate`], as a child of this one, by way of a child
/// that shares memory with this process: what was made by that has no area for restartable
/// sequences, which would be looked for when all memory is gone. The copy's process id.
fn clone_copy(surroundings: &Surroundings) -> io::Result<u32> {
    let mut all = 0u64;
    // SAFETY: signals stay blocked in the parent only as long as the first child runs on our memory
    // and stack, of which it uses nothing. It makes the copy, stores its id in the control page and
    // ends. The copy has its own memory, continues below what this function uses of its own copy of
    // the stack, and never comes back.
    unsafe {
        let block = u64::MAX;
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const block,
            &raw mut all,
            8,
        );
        let result: i64;
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov eax, {clone}",
            "mov edi, {parent}",
            "xor esi, esi",
            "xor edx, edx",
            "xor r10d, r10d",
            "xor r8d, r8d",
            "syscall",
            "test rax, rax",
            "jz 3f",
            "mov [r14], rax",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "3:",
            "mov rdi, r12",
            "sub rsp, 512",
            "and rsp, -16",
            "call r13",
            "ud2",
            "2:",
            clone = const libc::SYS_clone,
            exit = const libc::SYS_exit,
            parent = const libc::CLONE_PARENT,
            inlateout("rax") libc::SYS_clone => result,
            inlateout("rdi") (libc::CLONE_VM | libc::CLONE_FILES) as u64 => _,
            inlateout("rsi") 0u64 => _,
            inlateout("rdx") 0u64 => _,
            inlateout("r10") 0u64 => _,
            inlateout("r8") 0u64 => _,
            in("r12") surroundings,
            in("r13") isolate as extern "C" fn(&Surroundings) -> !,
            in("r14") surroundings.control.add(CTL_FIRST as usize),
            out("rcx") _,
            out("r11") _,
        );
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            ptr::null_mut::<u64>(),
            8,
        );
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result as i32));
        }
        sys::reap(result as u32);
        let copy = (*surroundings.control.add(CTL_FIRST as usize).cast::<AtomicU64>())
            .load(Ordering::SeqCst) as i64;
        if copy <= 0 { Err(io::Error::from_raw_os_error(-copy as i32)) } else { Ok(copy as u32) }
    }
}

/// A thread that maps the ids of the zygote's user namespace when the copy asks for it. Another
/// than the one that makes the copy: that may be in a Landlock domain by then
/// ([`Leave::enter_domain`]), and has other things to do.
struct IdMapper {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl IdMapper {
    const STACK_BYTES: usize = 64 << 10;

    /// `proc`: /proc.
    fn start(control: &Arc<Control>, proc: OwnedFd) -> io::Result<Self> {
        let theirs = control.clone();
        let run = move || Self::run(&theirs, &proc);
        let thread = sys::spawn_thread("quark-ids", Self::STACK_BYTES, run)?;
        Ok(Self { control: control.clone(), thread: Some(thread) })
    }

    fn run(control: &Control, proc: &OwnedFd) {
        let (ready, mapped) = (control.futex(CTL_READY), control.futex(CTL_MAPPED));
        while mapped.load(Ordering::SeqCst) == 0 {
            match ready.load(Ordering::SeqCst) {
                0 => sys::futex_wait(ready, 0, Duration::from_millis(50)),
                WANTS_MAP => match control.word(CTL_FIRST).load(Ordering::SeqCst) {
                    // It is faster than the one that tells its id.
                    0 => std::thread::sleep(Duration::from_micros(20)),
                    copy => {
                        let done = map_ids(proc, copy);
                        if let Err(e) = &done {
                            tracing::debug!("map the ids of stubs: {e}");
                        }
                        sys::futex_store_wake(mapped, if done.is_ok() { 1 } else { 2 });
                    }
                },
                _ => return,
            }
        }
    }
}

impl Drop for IdMapper {
    fn drop(&mut self) {
        let _ = self.control.futex(CTL_MAPPED).compare_exchange(
            0,
            2,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        sys::futex_wake(self.control.futex(CTL_READY));
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Maps the ids of the user namespace of child `pid` to [`STUB_ID`], or where that is not allowed,
/// to this process' own.
fn map_ids(proc: &OwnedFd, pid: u64) -> io::Result<()> {
    let write = |file: &str, text: String| -> io::Result<()> {
        let file = rustix::fs::openat(
            proc,
            format!("{pid}/{file}"),
            OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        io::Write::write_all(&mut std::fs::File::from(file), text.as_bytes())
    };
    for (file, own) in [
        ("gid_map", rustix::process::getegid().as_raw()),
        ("uid_map", rustix::process::geteuid().as_raw()),
    ] {
        if write(file, format!("{STUB_ID} {STUB_ID} 1")).is_err() {
            // Before Linux 3.19 there is no such file, and no such rule.
            let _ = write("setgroups", "deny".into());
            write(file, format!("{STUB_ID} {own} 1"))?;
        }
    }
    Ok(())
}

impl Zygote {
    /// Begins to make it, with `ram` for its stubs; [`Self::finish`] is the rest, and there is time
    /// in between. The calling thread must live as long as the process: the host kills the zygote
    /// and all stubs when the thread that called this ends, which is how not even a SIGKILL of the
    /// sandbox process leaves one behind. What this thread leaves they leave too.
    pub fn start(
        filter_flags: u64,
        fp_bytes: u64,
        ram: &OwnedFd,
        test: Test,
        leave: Option<&dyn Leave>,
    ) -> Result<Self> {
        // For a moment the region exists in this process.
        static ONE_AT_A_TIME: Mutex<(), place::ZygoteStart> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock();
        let base = (0..REGION_TRIES)
            .map(|i| REGION_TOP - i * REGION_STEP)
            .find(|b| region_is_free(*b))
            .context("no free address range for the stub region")?;
        let (page, addresses) = code_page(base, filter_flags, fp_bytes, test);
        let code = sys::memfd(c"quark-stub", CODE_BYTES, true).context("memfd for stub code")?;
        let mut file = std::fs::File::from(code.try_clone()?);
        io::Write::write_all(&mut file, &page).context("write stub code")?;
        let seals =
            libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain numbers.
        if unsafe { libc::fcntl(code.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error()).context("seal stub code");
        }
        let ctl = sys::memfd(c"quark-zygote", 4096, false).context("memfd for the zygote")?;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let control =
            Arc::new(Control(map_page(&ctl, 0, 4096, both).context("map the zygote's page")?));
        let (vdso, vdso_image) = plan_moves(&control, base)?;
        control.word(CTL_PARENT).store(u64::from(std::process::id()), Ordering::SeqCst);
        prepare_messages(&control, base + CTL_OFFSET);
        let (socket, theirs) = sys::message_sockets().context("make the zygote's socket")?;

        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open("/proc", flags, Mode::empty()).context("open /proc")?;
        let root_is_empty = leave.is_some();
        leave.map_or(Ok(()), Leave::leave_host)?;
        let id_mapper =
            IdMapper::start(&control, proc).context("start the thread that maps ids")?;
        leave.map_or(Ok(()), Leave::enter_domain)?;
        // For the moment of the clone, the region's first pages exist here too.
        let code_at = map_page(&code, base, CODE_BYTES, libc::PROT_READ | libc::PROT_EXEC)
            .context("map stub code")?;
        let copy = map_page(&ctl, base + CTL_OFFSET, 4096, both)
            .context("map the zygote's page")
            .and_then(|control| {
                let (socket, ram) = (theirs.as_raw_fd(), ram.as_raw_fd());
                let fail_step = test.fail_step.map_or(0, |step| step as u32);
                let surroundings = Surroundings {
                    control,
                    socket,
                    ram,
                    entry: addresses.zygote,
                    root_is_empty,
                    fail_step,
                };
                clone_copy(&surroundings).context("clone the zygote")
            });
        // SAFETY: the pages mapped above; the last may be missing.
        unsafe { libc::munmap(code_at.cast(), (CODE_BYTES + 4096) as usize) };
        let copy = copy?;
        drop(theirs);
        let (turns, closes) = (Turns::default(), Mutex::new(0));
        let (copy, id_mapper) = (Mutex::new(Some(copy)), Mutex::new(Some(id_mapper)));
        Ok(Self {
            control,
            socket,
            id_mapper,
            copy,
            up: OnceLock::new(),
            turns,
            closes,
            addresses,
            vdso,
            vdso_image,
        })
    }

    /// Waits until it serves, and does what it needs for that.
    ///
    /// # Errors
    /// With the step of its set-up that failed.
    pub fn finish(&self) -> Result<&Up> {
        let mut copy = self.copy.lock();
        if let Some(pid) = *copy {
            let ready = wait_until_ready(&self.control, pid);
            drop(self.id_mapper.lock().take());
            let (zygote, init) = self.end_copy(pid, ready.is_err());
            *copy = None;
            match (ready, zygote) {
                (Ok(()), Some(pid)) => {
                    let missing = Missing(self.control.word(CTL_MISSING).load(Ordering::SeqCst));
                    let _ = self.up.set(Up { pid, init, missing });
                }
                (ready, zygote) => {
                    end_all(zygote, init);
                    ready?;
                }
            }
        }
        self.up.get().context("the zygote was not made")
    }

    /// Waits for the end of the process that has prepared it: what that has made.
    fn end_copy(&self, copy: u32, kill: bool) -> (Option<u32>, Option<u32>) {
        if kill {
            sys::kill(copy);
        }
        sys::reap(copy);
        let pid = |offset| {
            let pid = self.control.word(offset).load(Ordering::SeqCst);
            u32::try_from(pid).ok().filter(|pid| *pid != 0)
        };
        (pid(CTL_ZYGOTE), pid(CTL_INIT))
    }

    /// Makes a stub that uses the slots in `area`: its listener; `None` if it is not `wanted` any
    /// more when its turn comes. An `urgent` one's turn is before all others that wait. `born` is
    /// called with its process id as soon as that is known.
    pub fn make_stub(
        &self,
        area: &OwnedFd,
        urgent: bool,
        wanted: impl Fn() -> bool,
        mut born: impl FnMut(u32),
    ) -> Result<Option<OwnedFd>> {
        let zygote = self.finish()?.pid;
        let turn = self.turns.take(urgent);
        if !wanted() {
            return Ok(None);
        }
        let sequence = turn.number;
        let give = [MSG_GIVE, FD_LISTENER as u32, sequence, 0];
        let gone = "the zygote is gone";
        sys::send_message(&self.socket, [MSG_MAKE, 0, sequence, 0], Some(area)).context(gone)?;
        let start = Instant::now();
        let mut pid = None;
        loop {
            if start.elapsed() > PATIENCE {
                bail!("the host does not get it done");
            }
            let Some(message) =
                sys::receive_message(&self.socket, Duration::from_millis(200)).context(gone)?
            else {
                if pid.is_some_and(sys::has_ended) {
                    bail!("the stub ended while it was set up");
                }
                continue;
            };
            let [kind, value, number, _] = message.words;
            if number != sequence {
                continue;
            }
            let of_zygote = message.sender == zygote;
            match kind {
                MSG_HELLO if !of_zygote && pid.is_none() => {
                    pid = Some(message.sender);
                    born(message.sender);
                    // By the time that the zygote hears of it, the stub will have installed its
                    // filter.
                    sys::send_message(&self.socket, give, None).context(gone)?;
                }
                MSG_FAILED => {
                    if !of_zygote {
                        born(message.sender);
                    }
                    return Err(Failure::of(i64::from(value as i32))).context("set up the stub");
                }
                MSG_NOT_YET if of_zygote => {
                    if pid.is_some_and(sys::has_ended) {
                        bail!("the stub ended while it was set up");
                    }
                    sys::send_message(&self.socket, give, None).context(gone)?;
                }
                MSG_GIVEN if of_zygote && pid.is_some() => {
                    return message
                        .file
                        .map(Some)
                        .ok_or_else(|| Failure::of(-i64::from(libc::EMFILE)))
                        .context("take its listener");
                }
                _ => bail!("the zygote says {kind}"),
            }
        }
    }

    /// Has a descriptor of the stubs' closed: done when [`Self::closed`] is what this gives.
    pub fn close(&self, number: i32) -> u64 {
        let mut closes = self.closes.lock();
        *closes += 1;
        if let Err(e) = sys::send_message(&self.socket, [MSG_CLOSE, number as u32, 0, 0], None) {
            // It stays open there, and the number is not used again.
            tracing::debug!("a descriptor of the stubs is not closed: {e}");
            *closes -= 1;
            return u64::MAX;
        }
        *closes
    }

    /// How many descriptors it has closed.
    pub fn closed(&self) -> u64 {
        self.control.word(CTL_CLOSED).load(Ordering::SeqCst)
    }
}

/// For how long it is worth trying again to make a stub, if it could not be made for want of
/// something that may come back.
pub fn patience_with(error: &anyhow::Error) -> Option<Duration> {
    match error.downcast_ref::<Failure>()?.errno {
        libc::EAGAIN | libc::ENOMEM => Some(Duration::from_secs(5)),
        // New processes are refused before the last descriptor is used; see `Shared::space_new`.
        libc::EMFILE | libc::ENFILE => Some(Duration::from_millis(100)),
        _ => None,
    }
}

/// Says where in stubs the host's vDSO goes: its address there, or 0, and its bytes.
fn plan_moves(control: &Control, base: u64) -> Result<(u64, &'static [u8])> {
    // The vDSO parts keep their distances, as its code reaches its data relative to itself.
    let special = sys::procfs::special_mappings().context("read /proc/self/maps")?;
    let low = special.iter().map(|m| m.0).min().unwrap_or(0);
    let high = special.iter().map(|m| m.1).max().unwrap_or(0);
    let mut vdso: (u64, &[u8]) = (0, &[]);
    if special.len() <= MAX_MOVES && high - low <= VDSO_END - VDSO_OFFSET {
        control.word(CTL_MOVES).store(special.len() as u64, Ordering::Relaxed);
        for (i, (start, end, name)) in special.iter().enumerate() {
            let to = base + VDSO_OFFSET + (start - low);
            if name == "[vdso]" {
                // SAFETY: the kernel's own mapping, readable, which nobody writes to, and which
                // this process never unmaps.
                let image =
                    unsafe { slice::from_raw_parts(*start as *const u8, (end - start) as usize) };
                vdso = (to, image);
            }
            for (j, value) in [*start, end - start, to].into_iter().enumerate() {
                control
                    .word(CTL_MOVE_TABLE + 24 * i as u64 + 8 * j as u64)
                    .store(value, Ordering::Relaxed);
            }
        }
    }
    Ok(vdso)
}

/// Fills in what stub code passes to recvmsg(2), sendmsg(2) and poll(2). `at`: where the zygote has
/// its page.
fn prepare_messages(control: &Control, at: u64) {
    let put = |offset: u64, value: u64| control.word(offset).store(value, Ordering::Relaxed);
    for (header, iov, data, controls) in [
        (CTL_IN_HEADER, CTL_IN_IOV, CTL_IN, CTL_IN_CONTROL),
        (CTL_OUT_HEADER, CTL_OUT_IOV, CTL_OUT, CTL_OUT_CONTROL),
    ] {
        put(iov, at + data);
        put(iov + 8, MSG_BYTES);
        put(header + 16, at + iov);
        put(header + 24, 1);
        put(header + 32, at + controls);
        put(header + MSGHDR_CONTROLLEN, CONTROL_BYTES);
    }
    // CMSG_LEN of one descriptor.
    put(CTL_OUT_CONTROL, CMSG_HEADER + 4);
    put(CTL_OUT_CONTROL + 8, libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32);
    // Only its end is waited for, which is always told.
    put(CTL_POLL, FD_SOCKET as u64);
}

/// Waits until the zygote serves. `copy`: the process that prepares it.
fn wait_until_ready(control: &Control, copy: u32) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let ready = control.word(CTL_READY).load(Ordering::SeqCst) as i64;
        if ready < 0 {
            return Err(Failure::of(ready)).context("set up the zygote");
        }
        let word = control.futex(CTL_READY);
        match ready as u32 {
            READY => return Ok(()),
            _ if Instant::now() > end => bail!("set up the zygote: the host does not get it done"),
            now => {
                if sys::has_ended(copy)
                    && control.word(CTL_ZYGOTE).load(Ordering::SeqCst) == 0
                    && word.load(Ordering::SeqCst) == now
                {
                    bail!("the zygote ended while it was set up");
                }
                sys::futex_wait(word, now, Duration::from_millis(50));
            }
        }
    }
}

/// Ends zygote and init process.
fn end_all(zygote: Option<u32>, init: Option<u32>) {
    for pid in [zygote, init].into_iter().flatten() {
        sys::kill(pid);
    }
    for pid in [zygote, init].into_iter().flatten() {
        sys::reap(pid);
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        let copy = self.copy.get_mut().take();
        let (zygote, init) = match (copy, self.up.get()) {
            (Some(copy), _) => self.end_copy(copy, true),
            (None, up) => (up.map(|up| up.pid), up.and_then(|up| up.init)),
        };
        end_all(zygote, init);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// What is told to the zygote while a stub is on its way must not become what that stub goes
    /// by.
    #[test]
    fn stubs_are_made_while_descriptors_are_closed() {
        let ram = sys::memfd(c"quark-test-ram", 1 << 20, false).unwrap();
        let fp = super::super::fpstate::detect().unwrap();
        let zygote = Zygote::start(
            sys::FILTER_NEW_LISTENER,
            fp.frame_bytes() as u64,
            &ram,
            Test::default(),
            None,
        )
        .unwrap();
        zygote.finish().unwrap();
        let done = AtomicBool::new(false);
        let slowest = std::thread::scope(|s| {
            s.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    // A number that is not in use there.
                    zygote.close(60_000);
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            let mut slowest = Duration::ZERO;
            for _ in 0..300 {
                let begin = Instant::now();
                let area = sys::memfd(c"quark-test-area", AREA_BYTES, false).unwrap();
                let mut born = 0;
                let made = zygote.make_stub(&area, false, || true, |pid| born = pid);
                slowest = slowest.max(begin.elapsed());
                if born != 0 {
                    sys::kill(born);
                    sys::reap(born);
                }
                if made.is_err() {
                    break;
                }
            }
            done.store(true, Ordering::SeqCst);
            slowest
        });
        assert!(slowest < PATIENCE, "a stub was not made in {slowest:?}");
    }

    #[test]
    fn an_urgent_stub_is_next() {
        let turns = Turns::default();
        let order = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|s| {
            let first = turns.take(false);
            let (turns, order) = (&turns, &order);
            let waits = move |urgent: bool| {
                let turn = turns.take(urgent);
                order.lock().unwrap().push(urgent);
                std::thread::sleep(Duration::from_millis(5));
                drop(turn);
            };
            for _ in 0..5 {
                s.spawn(move || waits(false));
            }
            std::thread::sleep(Duration::from_millis(50));
            s.spawn(move || waits(true));
            while turns.state.lock().urgent == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), [true, false, false, false, false, false]);
    }
}
