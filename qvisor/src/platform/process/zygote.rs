//! The zygote: a tiny process without a seccomp filter that makes stubs on request.

use std::arch::asm;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::layout::*;
use super::steps::{Failure, Step};
use super::stub::{StubAddresses, code_page};
use super::sys;

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
        // SAFETY: offsets are constants inside the page, 8-aligned; the page lives as long as this value.
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
    control: Control,
    pid: u32,
    busy: Mutex<u32>,
    /// Where its code and that of its stubs lies.
    pub addresses: StubAddresses,
    /// Where the vDSO is in every stub.
    pub vdso: u64,
}

/// Maps a fresh page of `fd` (or at any address when `at` is 0).
fn map_page(fd: &OwnedFd, at: u64, prot: i32) -> io::Result<*mut u8> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    // SAFETY: NOREPLACE never touches an existing mapping.
    let p = unsafe { libc::mmap(at as *mut _, 4096, prot, libc::MAP_SHARED | fixed, fd.as_raw_fd(), 0) };
    if p == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if at != 0 && p as u64 != at {
        // SAFETY: the mapping just made, at the wrong place.
        unsafe { libc::munmap(p, 4096) };
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok(p.cast())
}

/// A mapping of this process: start, end, name.
fn special_mappings() -> Result<Vec<(u64, u64, String)>> {
    let maps = std::fs::read_to_string("/proc/self/maps").context("read /proc/self/maps")?;
    let mut out = Vec::new();
    for line in maps.lines() {
        let Some(name) = line.split_whitespace().nth(5).filter(|n| n.starts_with("[v") && *n != "[vsyscall]") else {
            continue;
        };
        let Some((start, end)) = line.split(' ').next().and_then(|r| r.split_once('-')) else { continue };
        out.push((u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?, name.to_owned()));
    }
    Ok(out)
}

/// Whether `[base, base + REGION_BYTES)` is free here.
fn region_is_free(base: u64) -> bool {
    // SAFETY: NOREPLACE never touches an existing mapping.
    unsafe {
        let p = libc::mmap(
            base as *mut _,
            REGION_BYTES as usize,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE,
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

/// clone(2) into stub code: the child shares memory and descriptors, and runs at `entry` with %rdi = `argument` and no stack.
fn clone_first(entry: u64, argument: u64) -> io::Result<u32> {
    let mut all = 0u64;
    // SAFETY: signals stay blocked in the parent only as long as the child runs on our memory, as it has no stack for a
    // handler. The child branch leaves for stub code at once and never comes back.
    unsafe {
        let block = u64::MAX;
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const block, &raw mut all, 8);
        let result: i64;
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, r12",
            "jmp r13",
            "2:",
            inlateout("rax") libc::SYS_clone => result,
            inlateout("rdi") (libc::CLONE_VM | libc::CLONE_FILES) as u64 => _,
            inlateout("rsi") 0u64 => _,
            inlateout("rdx") 0u64 => _,
            inlateout("r10") 0u64 => _,
            inlateout("r8") 0u64 => _,
            in("r12") argument,
            in("r13") entry,
            out("rcx") _,
            out("r11") _,
        );
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, ptr::null_mut::<u64>(), 8);
        if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as u32) }
    }
}

impl Zygote {
    /// Starts it. The calling thread must live as long as the process: the host kills the zygote and all stubs when the
    /// thread that called this ends, which is how not even a SIGKILL of the sandbox process leaves one behind.
    pub fn start(filter_flags: u64, fp_bytes: u64, fail_step: Option<Step>) -> Result<Self> {
        // For a moment the region exists in this process.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
        let base = (0..REGION_TRIES)
            .map(|i| REGION_TOP - i * REGION_STEP)
            .find(|b| region_is_free(*b))
            .context("no free address range for the stub region")?;
        let (page, addresses) = code_page(base, filter_flags, fp_bytes, fail_step);
        let code = sys::memfd(c"quark-stub", CODE_BYTES, true).context("memfd for stub code")?;
        let mut file = std::fs::File::from(code.try_clone()?);
        io::Write::write_all(&mut file, &page).context("write stub code")?;
        let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: plain numbers.
        if unsafe { libc::fcntl(code.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error()).context("seal stub code");
        }
        let ctl = sys::memfd(c"quark-zygote", 4096, false).context("memfd for the zygote")?;
        let control = Control(map_page(&ctl, 0, libc::PROT_READ | libc::PROT_WRITE).context("map the zygote's page")?);

        // The vDSO parts keep their distances, as its code reaches its data relative to itself.
        let special = special_mappings()?;
        let low = special.iter().map(|m| m.0).min().unwrap_or(0);
        let high = special.iter().map(|m| m.1).max().unwrap_or(0);
        let mut vdso = 0;
        if special.len() <= MAX_MOVES && high - low <= VDSO_END - VDSO_OFFSET {
            control.word(CTL_MOVES).store(special.len() as u64, Ordering::Relaxed);
            for (i, (start, end, name)) in special.iter().enumerate() {
                let to = base + VDSO_OFFSET + (start - low);
                if name == "[vdso]" {
                    vdso = to;
                }
                for (j, value) in [*start, end - start, to].into_iter().enumerate() {
                    control.word(CTL_MOVE_TABLE + 24 * i as u64 + 8 * j as u64).store(value, Ordering::Relaxed);
                }
            }
        }
        control.word(CTL_PARENT).store(u64::from(std::process::id()), Ordering::SeqCst);

        // For the moment of the clone, the region's first pages exist here too.
        let code_at = map_page(&code, base, libc::PROT_READ | libc::PROT_EXEC).context("map stub code")?;
        let first = map_page(&ctl, base + CTL_OFFSET, libc::PROT_READ | libc::PROT_WRITE)
            .context("map the zygote's page")
            .and_then(|_| clone_first(addresses.first, base + CTL_OFFSET).context("clone the zygote"));
        if let Ok(pid) = first {
            sys::reap(pid);
        }
        // SAFETY: the two pages mapped above; the second may be missing.
        unsafe { libc::munmap(code_at.cast(), 8192) };
        first?;
        let pid = control.word(CTL_ZYGOTE).load(Ordering::SeqCst) as i64;
        if pid <= 0 {
            bail!("clone the zygote: {}", io::Error::from_raw_os_error(-pid as i32));
        }
        let zygote = Self { control, pid: pid as u32, busy: Mutex::new(0), addresses, vdso };
        let end = Instant::now() + PATIENCE;
        loop {
            let ready = zygote.control.word(CTL_READY).load(Ordering::SeqCst) as i64;
            match ready {
                1 => return Ok(zygote),
                0 if Instant::now() < end && !sys::has_ended(zygote.pid) => {
                    sys::futex_wait(zygote.control.futex(CTL_READY), 0, Duration::from_millis(50));
                }
                0 => bail!("the zygote ended while it was set up"),
                _ => return Err(Failure::of(ready)).context("set up the zygote"),
            }
        }
    }

    /// What the stub that was made last could not do in its set-up before it had its slots.
    pub fn failed(&self) -> Option<Failure> {
        match self.control.word(CTL_FAILED).load(Ordering::SeqCst) as i64 {
            0 => None,
            report => Some(Failure::of(report)),
        }
    }

    /// Makes a stub that uses `area`; its process id.
    pub fn make_stub(&self, area: &OwnedFd) -> Result<u32> {
        let mut sequence = self.busy.lock().unwrap_or_else(|e| e.into_inner());
        let last = *sequence;
        *sequence = last.wrapping_add(1);
        self.control.word(CTL_FAILED).store(0, Ordering::SeqCst);
        self.control.word(CTL_AREA_FD).store(area.as_raw_fd() as u64, Ordering::SeqCst);
        sys::futex_store_wake(self.control.futex(CTL_REQUEST), *sequence);
        let end = Instant::now() + PATIENCE;
        while self.control.futex(CTL_ANSWER).load(Ordering::SeqCst) != *sequence {
            if Instant::now() > end || sys::has_ended(self.pid) {
                bail!("the zygote is gone");
            }
            sys::futex_wait(self.control.futex(CTL_ANSWER), last, Duration::from_secs(1));
        }
        let pid = self.control.word(CTL_PID).load(Ordering::SeqCst) as i64;
        if pid <= 0 {
            bail!("make a stub: {}", io::Error::from_raw_os_error(-pid as i32));
        }
        Ok(pid as u32)
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        sys::kill(self.pid);
        sys::reap(self.pid);
    }
}
