//! Loading a program: execve(2), and the first program of a container.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::auxvec::{
    AT_BASE, AT_CLKTCK, AT_EGID, AT_ENTRY, AT_EUID, AT_EXECFN, AT_FLAGS, AT_GID, AT_HWCAP,
    AT_HWCAP2, AT_MINSIGSTKSZ, AT_NULL, AT_PAGESZ, AT_PHDR, AT_PHENT, AT_PHNUM, AT_PLATFORM,
    AT_RANDOM, AT_SECURE, AT_SYSINFO_EHDR, AT_UID,
};
use linux_raw_sys::general::{IN_ACCESS, RLIMIT_STACK, SIGCHLD};
use qlib::platform::UserRegs;
use qlib::{PAGE_SHIFT, PAGE_SIZE, Va};

use super::elf::{Elf, Head};
use super::outcome::RegistersReplaced;
use super::process::Image;
use super::{Thread, errands, exit, rseq, signal, table, trace, vdso};
use crate::account;
use crate::creds::Creds;
use crate::errno::{Errno, Result};
use crate::fs::ask::Inquiry;
use crate::fs::busy::Claim;
use crate::fs::open::ExecCreds;
use crate::fs::{self, Fd, FsContext, OpenFile, ask, lease, notify};
use crate::mm::map::Placement;
use crate::mm::thread::shed;
use crate::mm::{AddressSpace, Prot, UserThread, Vma, VmaFlags};
use crate::sync::Mutex;
use crate::user_namespace::UserNs;
use crate::wait::{PollMask, Sleeper, block_until_killed};
use crate::{arch, executor, random};

/// Linux's limits: one string, and all of them together (a quarter of an 8 MiB stack).
const MAX_STRING_BYTES: usize = 128 << 10;
const MAX_STRINGS_BYTES: usize = 2 << 20;
/// What a string takes besides its bytes while it is copied to the new program, in bytes.
const STRING_BYTES: u64 = 96;
/// How many strings are read before memory is looked at again.
const ASK_STRINGS: usize = 512;
/// How often a script may name another script.
const MAX_SCRIPTS: usize = 5;
/// How far a script's first line is looked at (BINPRM_BUF_SIZE).
const LINE_BYTES: usize = 256;
/// The stack's size at the start; it grows down to RLIMIT_STACK.
const INITIAL_STACK_BYTES: u64 = 132 << 10;
/// Where relocatable executables are loaded, before randomization.
const EXECUTABLE_BASE: u64 = 0x5555_5555_4000;

/// personality(2): a program's parts lie where they would without randomization.
const ADDR_NO_RANDOMIZE: u32 = 0x004_0000;

/// A program to be loaded.
#[derive(Clone)]
pub struct Program {
    /// The opened executable or script.
    pub file: Arc<OpenFile>,
    /// The path as it was given (AT_EXECFN, and what a script's interpreter gets).
    pub path: Vec<u8>,
    /// argv.
    pub args: Vec<Vec<u8>>,
    /// Environment.
    pub env: Vec<Vec<u8>>,
}

/// A program that was found to be executable, scripts followed to their interpreter.
pub struct Executable {
    program: Program,
    elf: Elf,
    name_source: Vec<u8>,
    is_script: bool,
    unreadable: bool,
    claim: Claim,
    /// What loads it, if it is not loaded by the kernel alone.
    interpreter: Option<Interpreter>,
}

/// What loads a program.
struct Interpreter {
    file: Arc<OpenFile>,
    elf: Elf,
}

impl Executable {
    /// The file that is executed: of a script the interpreter, whose set-user-id bits count, as on
    /// Linux.
    pub fn file(&self) -> &OpenFile {
        &self.program.file
    }
}

/// A program loaded into an address space.
pub struct Loaded {
    /// Registers at its first instruction.
    pub regs: UserRegs,
    /// What /proc reports about it.
    pub image: Image,
    /// Its name (the last part of the executable's path), at most 15 bytes.
    pub name: Vec<u8>,
    /// True if others of the same user may look into it (prctl(2), PR_SET_DUMPABLE).
    dumpable: bool,
    /// The user namespace whose root may look into it even so.
    memory_user: UserNs,
    /// It has rights that who executed it lacks (AT_SECURE).
    is_secure: bool,
}

/// Reads how a program begins, of which those are told who watch it.
fn read_head(file: &OpenFile) -> Result<Head<'_>> {
    let head = Head::read(file)?;
    notify::file_event(file, IN_ACCESS);
    Ok(head)
}

/// What `program` executes on behalf of `thread`: scripts lead to their interpreter.
pub fn find(thread: &Arc<Thread>, program: Program) -> Result<Executable> {
    let mut program = program;
    let name_source = program.path.clone();
    let mut unreadable = false;
    let mut scripts = 0;
    let (elf, claim) = loop {
        let claim = fs::open::executes(&program.file)?;
        unreadable |= !fs::open::is_readable(&thread.creds(), &program.file)?;
        let head = read_head(&program.file)?;
        let Some(text) = head.bytes().strip_prefix(b"#!") else {
            break (Elf::read(&head)?, claim);
        };
        let line = script_line(text)?.to_vec();
        scripts += 1;
        if scripts > MAX_SCRIPTS {
            return Err(Errno::ELOOP);
        }
        follow_script(thread, &mut program, &line)?;
    };
    let is_script = scripts > 0;
    let mut interpreter = None;
    if let Some(path) = &elf.interpreter {
        let file = fs::open::open_exec_now(thread, path)?;
        // Once it is loaded it may be written to, as on Linux.
        let _claim = fs::open::executes(&file)?;
        unreadable |= !fs::open::is_readable(&thread.creds(), &file)?;
        let elf = Elf::read(&read_head(&file)?)?;
        interpreter = Some(Interpreter { file, elf });
    }
    Ok(Executable { program, elf, name_source, is_script, unreadable, claim, interpreter })
}

/// Loads a program into `mm`, which is empty, on behalf of `thread`; it is going to have `new`
/// credentials.
pub fn load(
    thread: &Arc<Thread>,
    new: &ExecCreds,
    mm: &AddressSpace,
    executable: Executable,
) -> Result<Loaded> {
    let Executable { program, elf, name_source, unreadable, claim, interpreter, .. } = executable;
    let creds = &new.creds;
    let is_fixed = !new.is_secure
        && thread.process.traits.lock().personality & ADDR_NO_RANDOMIZE == ADDR_NO_RANDOMIZE;
    // A distance of at most so many pages.
    let random = |pages: u64| match is_fixed {
        true => 0,
        false => (random::next_u64() & pages) * PAGE_SIZE,
    };
    let base = Va(EXECUTABLE_BASE + random(0xfff_ffff));
    let stack_top = arch::boot().user_max - PAGE_SIZE - random(0xffff);
    let stack_limit = thread.process.rlimit(RLIMIT_STACK).clamp(128 << 20, 1 << 40);
    mm.set_stack_floor(stack_top - stack_limit);

    let (bias, end) = elf.load(mm, &program.file, Some(base))?;
    let mut entry = elf.entry.wrapping_add(bias);
    let mut interpreter_base = 0;
    if let Some(Interpreter { file, elf }) = interpreter {
        let (bias, _) = elf.load(mm, &file, None)?;
        entry = elf.entry.wrapping_add(bias);
        interpreter_base = bias;
    }
    let heap = end.page_ceil().ok_or(Errno::ENOEXEC)? + random(0x1fff);
    mm.set_brk(heap);
    let vdso = vdso::for_program(mm, stack_top, random(u64::MAX >> PAGE_SHIFT) >> PAGE_SHIFT)?;

    let mut auxv = alloc::vec![
        (AT_SYSINFO_EHDR, vdso.0),
        (AT_HWCAP, arch::boot().hwcap),
        (AT_PAGESZ, PAGE_SIZE),
        (AT_CLKTCK, 100),
        (AT_PHDR, elf.headers_address(bias)),
        (AT_PHENT, 56),
        (AT_PHNUM, u64::from(elf.header_count)),
        (AT_BASE, interpreter_base),
        (AT_FLAGS, 0),
        (AT_ENTRY, elf.entry.wrapping_add(bias)),
        (AT_UID, u64::from(creds.uid_shown(creds.uid))),
        (AT_EUID, u64::from(creds.uid_shown(creds.euid))),
        (AT_GID, u64::from(creds.gid_shown(creds.gid))),
        (AT_EGID, u64::from(creds.gid_shown(creds.egid))),
        (AT_SECURE, u64::from(new.is_secure)),
        (AT_HWCAP2, arch::boot().hwcap2),
        (AT_MINSIGSTKSZ, arch::boot().fpstate_bytes + 1024),
    ];
    auxv.extend(rseq::auxv());
    let (sp, mut image) = build_stack(mm, stack_top, elf.executable_stack, &program, &auxv)?;
    image.exe = Some(program.file.clone());
    image.claim = Some(Arc::new(claim));
    image.path = program
        .file
        .path
        .as_ref()
        .map_or_else(|| name_source.clone(), |l| l.path_from(&thread.fs().root));
    let mut name: Vec<u8> = name_source.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
    name.truncate(15);
    let regs = UserRegs { rip: entry, rsp: sp.0, rflags: 0x202, ..UserRegs::default() };
    let dumpable = !unreadable && (creds.uid, creds.gid) == (creds.euid, creds.egid);
    // What may not be read in it is not for the root of another namespace than the container's.
    let memory_user = if unreadable { UserNs::default() } else { creds.user.clone() };
    Ok(Loaded { regs, image, name, dumpable, memory_user, is_secure: new.is_secure })
}

/// The first line of a script, of which `text` is what follows `#!`.
fn script_line(text: &[u8]) -> Result<&[u8]> {
    let room = LINE_BYTES - b"#!".len();
    let line = match text.iter().take(room).position(|b| *b == b'\n') {
        Some(end) => &text[..end],
        None if text.len() < room => text,
        None => return Err(Errno::ENOEXEC),
    };
    match line.trim_ascii() {
        [] => Err(Errno::ENOEXEC),
        line => Ok(line),
    }
}

/// `program` is a script with this first line: replaces it by its interpreter, with the script's
/// path as an argument.
fn follow_script(thread: &Arc<Thread>, program: &mut Program, line: &[u8]) -> Result {
    let split = line.iter().position(|b| b" \t".contains(b)).unwrap_or(line.len());
    let (interpreter, argument) = (&line[..split], line[split..].trim_ascii());
    let mut args = alloc::vec![interpreter.to_vec()];
    if !argument.is_empty() {
        args.push(argument.to_vec());
    }
    args.push(core::mem::take(&mut program.path));
    args.extend(program.args.drain(..).skip(1));
    program.args = args;
    program.path = interpreter.to_vec();
    program.file = fs::open::open_exec_now(thread, interpreter)?;
    Ok(())
}

/// Maps the stack and fills it with arguments, environment and auxiliary vector: the stack pointer,
/// and the image's strings.
fn build_stack(
    mm: &AddressSpace,
    top: Va,
    executable: bool,
    program: &Program,
    auxv: &[(u32, u64)],
) -> Result<(Va, Image)> {
    let join = |strings: &[Vec<u8>]| {
        let mut bytes = Vec::new();
        for string in strings {
            bytes.extend_from_slice(string);
            bytes.push(0);
        }
        bytes
    };
    let (cmdline, environ) = (join(&program.args), join(&program.env));
    // From the top: 8 zero bytes, the executable's path, environment, arguments, platform, random
    // bytes; then the vectors.
    let mut strings: Vec<u8> = Vec::new();
    let mut seed = alloc::vec![0; 16];
    random::fill(&mut seed);
    strings.extend_from_slice(&seed);
    let platform_at = strings.len();
    strings.extend_from_slice(b"x86_64\0");
    let args_at = strings.len();
    strings.extend_from_slice(&cmdline);
    let env_at = strings.len();
    strings.extend_from_slice(&environ);
    let path_at = strings.len();
    strings.extend_from_slice(&program.path);
    strings.extend_from_slice(&[0; 9]);
    if strings.len() > MAX_STRINGS_BYTES {
        return Err(Errno::E2BIG);
    }
    let strings_start = Va((top.0 - strings.len() as u64) & !15);
    let address = |offset: usize| strings_start.0 + offset as u64;

    let mut words: Vec<u64> = alloc::vec![program.args.len() as u64];
    for (list, start) in [(&program.args, args_at), (&program.env, env_at)] {
        let mut at = start;
        for string in list {
            words.push(address(at));
            at += string.len() + 1;
        }
        words.push(0);
    }
    let auxv_at = words.len();
    for (key, value) in auxv {
        words.extend([u64::from(*key), *value]);
    }
    words.extend([u64::from(AT_RANDOM), address(0)]);
    words.extend([u64::from(AT_PLATFORM), address(platform_at)]);
    words.extend([u64::from(AT_EXECFN), address(path_at)]);
    words.extend([u64::from(AT_NULL), 0]);

    let sp = Va((strings_start.0 - words.len() as u64 * 8) & !15);
    let prot = if executable { Prot::all() } else { Prot::READ | Prot::WRITE };
    let size = (top - sp).next_multiple_of(PAGE_SIZE) + INITIAL_STACK_BYTES;
    let stack = Vma::anonymous(prot, VmaFlags::GROWS_DOWN | VmaFlags::STACK);
    mm.map(Placement::Fixed(top - size), size, stack, u64::MAX)?;
    mm.write_bytes(strings_start, &strings)?;
    mm.write_bytes(sp, zerocopy::IntoBytes::as_bytes(words.as_slice()))?;
    let auxv = zerocopy::IntoBytes::as_bytes(&words[auxv_at..]).to_vec();
    let args = Va(address(args_at))..Va(address(env_at));
    let env = args.end..Va(address(path_at));
    Ok((sp, Image { cmdline, args, env, auxv, ..Image::default() }))
}

/// Reads a NULL-terminated array of strings. A null array is empty, as on Linux.
async fn read_strings(mm: &AddressSpace, array: Va) -> Result<Vec<Vec<u8>>> {
    let mut strings = Vec::new();
    let mut total = 0;
    if array.0 == 0 {
        return Ok(strings);
    }
    let mut at = array;
    loop {
        let pointer: u64 = mm.read(at)?;
        if pointer == 0 {
            return Ok(strings);
        }
        let string = mm.read_cstr(Va(pointer), MAX_STRING_BYTES).map_err(|e| match e {
            Errno::ENAMETOOLONG => Errno::E2BIG,
            other => other,
        })?;
        total += string.len() + 9;
        if total > MAX_STRINGS_BYTES {
            return Err(Errno::E2BIG);
        }
        if strings.len().is_multiple_of(ASK_STRINGS) {
            executor::give_way().await;
            account::ask(total as u64 + (strings.len() + ASK_STRINGS) as u64 * STRING_BYTES)?;
        }
        strings.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        strings.push(string);
        at = at.checked_add(8).ok_or(Errno::EFAULT)?;
    }
}

/// execve(2) and execveat(2). On success the thread's registers have been replaced.
pub async fn execve(
    thread: &Arc<Thread>,
    dirfd: Fd,
    path: Va,
    argv: Va,
    envp: Va,
    flags: u32,
) -> Result<RegistersReplaced> {
    let mm = thread.mm();
    let path = mm.read_cstr(path, linux_raw_sys::general::PATH_MAX as usize)?;
    let mut args = read_strings(&mm, argv).await?;
    let env = read_strings(&mm, envp).await?;
    drop(mm);
    if args.is_empty() {
        args.push(Vec::new());
    }
    let open = || fs::open_exec(thread, dirfd, &path, flags);
    let inquiry = Inquiry::begin();
    let file = loop {
        match lease::when_broken(thread, false, || inquiry.attempt(open)).await {
            Err(Errno::EASKED) => inquiry.answered(thread).await?,
            opened => break opened?,
        }
    };
    let is_by_descriptor = dirfd >= 0 && !path.starts_with(b"/");
    let path = if is_by_descriptor { name_of(dirfd, path) } else { path };
    let goes_with_exec =
        is_by_descriptor && thread.files().close_on_exec(dirfd).is_ok_and(|closes| closes);
    let program = Program { file, path, args, env };
    let executable = if ask::is_used() {
        inquiry.attempts(thread, || find(thread, program.clone())).await?
    } else {
        find(thread, program)?
    };
    if goes_with_exec && executable.is_script {
        // The interpreter could not open it.
        return Err(Errno::ENOENT);
    }
    let executing = Executing::begin(thread);
    let gets_no_rights = !executing.alone || trace::limits_rights(thread);
    let new = fs::exec_creds(thread, executable.file(), gets_no_rights)?;
    let fresh = AddressSpace::detached()?;
    let loaded = load(thread, &new, &fresh, executable)?;
    let is_alone = |mm: &Arc<AddressSpace>| Arc::strong_count(mm) <= 2;
    // Now, while the old program can still be told that there is none.
    let elsewhere = !trusts_caller(thread, &new.creds, &loaded) || !is_alone(&thread.mm());
    let mut own = if elsewhere { Some(move_out(thread, &fresh)?) } else { None };

    // The other threads end; from here on nothing may fail but by ending the process.
    end_other_threads(thread).await?;
    errands::end(thread).await?;
    thread.user.registers().await?;
    let mm = thread.mm();
    let is_alone = is_alone(&mm);
    // While the old program's memory is there, and under the old thread id, by which the locks are
    // held. (Linux, which changes the id first, leaves the locks of a thread that was not the
    // leader locked for ever.)
    exit::leave_memory(thread, is_alone);
    thread.process.note_resident();
    let old_tid = thread.tid();
    thread.become_leader();
    if own.is_none() && !is_alone {
        // Another thread has shared the memory with a new process meanwhile.
        match move_out(thread, &fresh) {
            Ok(place) => own = Some(place),
            Err(error) => {
                exit::group_exit(&thread.process, linux_raw_sys::general::SIGKILL as i32);
                return Err(error);
            }
        }
    }
    let denied = mm.denied().inherited();
    match own {
        Some((user, own)) => {
            own.set_denied(denied);
            thread.user.adopt(user, &mm);
            mm.leave(&thread.user);
            own.join(&thread.user);
            thread.process.look_at_given();
            thread.process.set_mm(own);
        }
        None => {
            mm.replace_content(&fresh);
            mm.set_denied(denied);
            thread.user.set_fpstate(&[])?;
        }
    }
    drop(mm);
    finish(thread, new.creds, loaded);
    drop(executing);
    trace::stops::for_exec(thread, old_tid).await;
    Ok(RegistersReplaced)
}

/// Where programs that are executed by a descriptor are found.
const BY_DESCRIPTOR: &[u8] = b"/dev/fd/";

/// What a program is told that it was executed as, which is how the interpreter of a script finds
/// that (execveat(2)).
fn name_of(dirfd: Fd, path: Vec<u8>) -> Vec<u8> {
    let mut name = BY_DESCRIPTOR.to_vec();
    name.extend_from_slice(alloc::format!("{dirfd}").as_bytes());
    if !path.is_empty() {
        name.push(b'/');
        name.extend_from_slice(&path);
    }
    name
}

/// True if the old program may go on to know and decide everything about the new one. On platforms
/// where user code carries out changes of mappings itself, what the old program has left with the
/// platform (registers to go on with, for one) outlives the exchange of its memory.
fn trusts_caller(thread: &Thread, creds: &Creds, loaded: &Loaded) -> bool {
    !thread.mm().depends_on_user_code() || loaded.dumpable && *creds == *thread.creds()
}

/// Gives a loaded program an address space of its own on the platform, and a thread there for
/// `thread` to go on as.
fn move_out(thread: &Thread, loaded: &AddressSpace) -> Result<(UserThread, Arc<AddressSpace>)> {
    shed::keep_places();
    let own = AddressSpace::attach(loaded)?;
    Ok((UserThread::new(&own, None, thread.user.token)?, own))
}

/// While a thread executes a program no process may come to share its root, working directory and
/// umask: who shares them must not change them under a program with other rights.
struct Executing {
    context: Arc<Mutex<FsContext>>,
    /// No other process shares them.
    alone: bool,
}

impl Executing {
    fn begin(thread: &Arc<Thread>) -> Self {
        let context = thread.fs.lock().clone();
        let shares = |t: &Arc<Thread>| {
            !Arc::ptr_eq(&t.process, &thread.process) && Arc::ptr_eq(&*t.fs.lock(), &context)
        };
        // All who know of the context are threads of this process, and this function: or they are
        // looked for.
        let own = thread.process.each_thread();
        let own = own.filter(|t| Arc::ptr_eq(&*t.fs.lock(), &context)).count();
        let alone = Arc::strong_count(&context) == own + 1 || !table::threads().any(|t| shares(&t));
        context.lock().executing += 1;
        Executing { context, alone }
    }
}

impl Drop for Executing {
    fn drop(&mut self) {
        let mut context = self.context.lock();
        context.executing = context.executing.saturating_sub(1);
    }
}

/// What else execve(2) changes: signal actions, descriptors, names, credentials.
fn finish(thread: &Arc<Thread>, mut creds: Creds, loaded: Loaded) {
    signal::on_exec(thread);
    rseq::on_exec(thread);
    thread.dispatch.reset();
    thread.process.drop_aio();
    let mut files = thread.files();
    // The thread and this function know of it: then nobody shares it.
    if Arc::strong_count(&files) > 2 {
        files = files.duplicate().unwrap_or_else(|_| {
            exit::group_exit(&thread.process, linux_raw_sys::general::SIGKILL as i32);
            fs::FdTable::new()
        });
    }
    files.drain(0, Fd::MAX, |close_on_exec| close_on_exec, |file| fs::open::closed(thread, &file));
    thread.set_files(files);
    if loaded.is_secure {
        secure(thread);
    }
    apply(thread, loaded);
    creds.rings = creds.rings.inherited(false);
    thread.set_creds(creds);
    let children = {
        let mut links = thread.process.tree.lock();
        links.has_execed = true;
        links.exit_signal = SIGCHLD;
        links.children.values().cloned().collect::<Vec<_>>()
    };
    // The signals that were to notify the old program of its children's ends are not for the new
    // one.
    for child in children {
        child.tree.lock().exit_signal = SIGCHLD;
    }
    let vfork_parent = {
        let mut attrs = thread.attrs.lock();
        attrs.vfork_parent.take()
    };
    if let Some(parent) = vfork_parent {
        parent.set();
    }
}

/// What a program with more rights than its caller's does not take over from it: a stack beyond 8
/// MiB, a signal at the parent's end, settings of personality(2) that make addresses predictable.
fn secure(thread: &Thread) {
    const STACK_BYTES: u64 = 8 << 20;
    /// With READ_IMPLIES_EXEC, ADDR_COMPAT_LAYOUT, MMAP_PAGE_ZERO.
    const PER_CLEAR_ON_SETID: u32 = 0x040_0000 | ADDR_NO_RANDOMIZE | 0x020_0000 | 0x010_0000;
    thread.attrs.lock().parent_death_signal = 0;
    thread.process.traits.lock().personality &= !PER_CLEAR_ON_SETID;
    if let Some(limit) = thread.process.rlimits.lock().0.get_mut(RLIMIT_STACK as usize) {
        limit.0 = limit.0.min(STACK_BYTES);
    }
}

/// Makes a loaded program the thread's own: image, name and registers.
pub fn apply(thread: &Arc<Thread>, loaded: Loaded) {
    let old = core::mem::replace(&mut *thread.process.image.lock(), loaded.image);
    drop(old);
    let before = {
        let mut traits = thread.process.traits.lock();
        traits.dumpable = u32::from(loaded.dumpable);
        core::mem::replace(&mut traits.memory_user, loaded.memory_user)
    };
    drop(before);
    thread.set_name(loaded.name);
    thread.mm().expect_start(Va(loaded.regs.rip), Va(loaded.regs.rsp));
    thread.user.set_registers(&loaded.regs);
}

/// Ends all other threads of the process and waits until they are gone. An error means that this
/// thread is to end itself, for the process ends or another thread executes a program: a mere
/// signal waits until the new program runs.
async fn end_other_threads(thread: &Arc<Thread>) -> Result {
    let process = &thread.process;
    if thread.is_dying() {
        return Err(Errno::EINTR);
    }
    for other in process.each_thread() {
        if !Arc::ptr_eq(&other, thread) {
            other.kill();
        }
    }
    block_until_killed(thread, &[&process.thread_events], PollMask::all(), || {
        if process.thread_count() <= 1 { Ok(()) } else { Err(Errno::EAGAIN) }
    })
    .await
}
