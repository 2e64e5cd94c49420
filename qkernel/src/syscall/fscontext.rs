//! fsopen(2), fspick(2), fsconfig(2), fsmount(2): a file system is put together by its options, one
//! after the other, behind a descriptor.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::{mem, slice};

use linux_raw_sys::general::{
    AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, FSMOUNT_CLOEXEC, FSOPEN_CLOEXEC, FSPICK_CLOEXEC,
    FSPICK_EMPTY_PATH, FSPICK_NO_AUTOMOUNT, FSPICK_SYMLINK_NOFOLLOW, O_RDWR, fsconfig_command,
};
use qlib::{PAGE_SIZE, Va};

use super::install;
use super::mount::{Made, check_admin, make_fs, reconfigure, whole_mount};
use super::open::path_at;
use crate::errno::{Errno, Result};
use crate::fs::mount::{Mount, MountFlags, check_room, detached};
use crate::fs::options::{Options, TYPE_NAMES};
use crate::fs::{self, Fd, FileOps, OpenFile, tmpfs};
use crate::io::IoBuffer;
use crate::sync::Mutex;
use crate::task::Thread;

/// The longest name of an option, and value of one, in bytes.
const MAX_TEXT: usize = 256;
/// The longest value of the kind that no file system here takes.
const MAX_BINARY: i32 = 1 << 20;
/// So many different options may be set.
const MOST_OPTIONS: usize = 64;
/// So many messages are kept.
const MESSAGES: usize = 8;

/// Options that are about the superblock, and whether they make it read-only.
const SUPERBLOCK: [(&str, Option<bool>); 10] = [
    ("ro", Some(true)),
    ("rw", Some(false)),
    ("sync", None),
    ("async", None),
    ("dirsync", None),
    ("lazytime", None),
    ("nolazytime", None),
    ("mand", None),
    ("nomand", None),
    ("silent", None),
];

/// Behind a descriptor of fsopen(2) or fspick(2).
struct Context(Mutex<State>);

struct State {
    kind: &'static str,
    phase: Phase,
    source: Option<String>,
    /// "NAME" and "NAME=VALUE", each name once.
    options: Vec<String>,
    is_readonly: Option<bool>,
    /// What read(2) gives, oldest first.
    messages: VecDeque<String>,
}

/// How far it is.
enum Phase {
    /// Options are taken, then the file system is made.
    Making,
    /// It can be mounted.
    Made(Made),
    /// Options are taken, then it gets them.
    Mounted(Weak<Mount>),
    /// It could not be made.
    Failed,
}

impl Context {
    fn make(kind: &'static str, phase: Phase) -> Arc<Self> {
        let (source, options, messages) = (None, Vec::new(), VecDeque::new());
        let state = State { kind, phase, source, options, is_readonly: None, messages };
        Arc::new(Context(Mutex::new(state)))
    }
}

impl State {
    /// EINVAL, with a message of an error.
    fn wrong(&mut self, what: &str) -> Errno {
        if self.messages.len() == MESSAGES {
            self.messages.pop_front();
        }
        self.messages.push_back(alloc::format!("e {}: {what}\n", self.kind));
        Errno::EINVAL
    }

    /// FSCONFIG_SET_FLAG and FSCONFIG_SET_STRING.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result {
        if let Some((_, is_readonly)) = SUPERBLOCK.into_iter().find(|(known, _)| *known == name) {
            self.is_readonly = is_readonly.or(self.is_readonly);
            return Ok(());
        }
        if name == "source" {
            let Some(value) = value else { return Err(self.wrong("Non-string source")) };
            if self.source.is_some() {
                return Err(self.wrong("Multiple sources"));
            }
            self.source = Some(value.into());
            return Ok(());
        }
        let option = match value {
            Some(value) => alloc::format!("{name}={value}"),
            None => name.into(),
        };
        if !takes(self.kind, name) {
            return Err(self.wrong(&alloc::format!("Unknown parameter '{name}'")));
        }
        let alone = as_options(slice::from_ref(&option));
        // Commas separate options where they are given as one text.
        let is_bad = self.kind == "tmpfs" && tmpfs::check_values(&alone).is_err();
        if is_bad || option.contains(',') {
            return Err(self.wrong(&alloc::format!("Bad value for '{name}'")));
        }
        self.options.retain(|old| old.split('=').next() != Some(name));
        if self.options.len() == MOST_OPTIONS {
            return Err(self.wrong("Too many parameters"));
        }
        self.options.push(option);
        Ok(())
    }
}

/// True if file systems of a type have an option of this name.
fn takes(kind: &str, name: &str) -> bool {
    match kind {
        "tmpfs" | "devtmpfs" => tmpfs::OPTIONS.contains(&name),
        "proc" => ["hidepid", "gid", "subset"].contains(&name),
        "devpts" => ["uid", "gid", "mode", "ptmxmode", "newinstance", "max"].contains(&name),
        // Controllers, which have any names.
        "cgroup" | "cgroup2" => true,
        _ => false,
    }
}

impl FileOps for Context {
    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[fscontext]".to_vec()
    }

    /// One message. EMSGSIZE for less room, ENODATA when there is none.
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        let message = self.0.lock().messages.front().cloned().ok_or(Errno::ENODATA)?;
        if buffer.remaining() < message.len() {
            return Err(Errno::EMSGSIZE);
        }
        self.0.lock().messages.pop_front();
        buffer.put(message.as_bytes())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// fsopen(2).
pub fn fsopen(thread: &Arc<Thread>, fsname: Va, flags: u32) -> Result<usize> {
    check_admin(thread)?;
    if flags & !FSOPEN_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let name = text(thread, fsname, PAGE_SIZE as usize)?;
    let kind = TYPE_NAMES.into_iter().find(|known| *known == name).ok_or(Errno::ENODEV)?;
    let context = Context::make(kind, Phase::Making);
    install::one(thread, OpenFile::new(context, O_RDWR), flags != 0)
}

/// fspick(2).
pub fn fspick(thread: &Arc<Thread>, dirfd: Fd, path: Va, flags: u32) -> Result<usize> {
    check_admin(thread)?;
    let known = FSPICK_CLOEXEC | FSPICK_SYMLINK_NOFOLLOW | FSPICK_NO_AUTOMOUNT | FSPICK_EMPTY_PATH;
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let mut at_flags = 0;
    for (flag, at) in
        [(FSPICK_SYMLINK_NOFOLLOW, AT_SYMLINK_NOFOLLOW), (FSPICK_EMPTY_PATH, AT_EMPTY_PATH)]
    {
        at_flags |= if flags & flag != 0 { at } else { 0 };
    }
    let place = fs::lookup(thread, dirfd, &path_at(thread, path)?, at_flags)?;
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    let kind = place.mount.fs.type_name();
    let context = Context::make(kind, Phase::Mounted(Arc::downgrade(&place.mount)));
    install::one(thread, OpenFile::new(context, O_RDWR), flags & FSPICK_CLOEXEC != 0)
}

/// A text of less than `most` bytes. EINVAL for a longer one.
fn text(thread: &Thread, va: Va, most: usize) -> Result<String> {
    let bytes = thread.mm().read_short_cstr(va, most)?;
    String::from_utf8(bytes).map_err(|_| Errno::EINVAL)
}

/// fsconfig(2).
pub fn fsconfig(
    thread: &Arc<Thread>,
    fd: Fd,
    cmd: u32,
    key: Va,
    value: Va,
    aux: i32,
) -> Result<usize> {
    const FLAG: u32 = fsconfig_command::FSCONFIG_SET_FLAG as u32;
    const STRING: u32 = fsconfig_command::FSCONFIG_SET_STRING as u32;
    const BINARY: u32 = fsconfig_command::FSCONFIG_SET_BINARY as u32;
    const PATH: u32 = fsconfig_command::FSCONFIG_SET_PATH as u32;
    const PATH_EMPTY: u32 = fsconfig_command::FSCONFIG_SET_PATH_EMPTY as u32;
    const FD: u32 = fsconfig_command::FSCONFIG_SET_FD as u32;
    const CREATE: u32 = fsconfig_command::FSCONFIG_CMD_CREATE as u32;
    const CREATE_EXCL: u32 = fsconfig_command::FSCONFIG_CMD_CREATE_EXCL as u32;
    const RECONFIGURE: u32 = fsconfig_command::FSCONFIG_CMD_RECONFIGURE as u32;
    if fd < 0 {
        return Err(Errno::EINVAL);
    }
    let (has_key, has_value) = (key.0 != 0, value.0 != 0);
    let makes_sense = match cmd {
        FLAG => has_key && !has_value && aux == 0,
        STRING => has_key && has_value && aux == 0,
        BINARY => has_key && has_value && aux > 0 && aux <= MAX_BINARY,
        PATH | PATH_EMPTY => has_key && has_value && (aux == AT_FDCWD || aux >= 0),
        FD => has_key && !has_value && aux >= 0,
        CREATE | CREATE_EXCL | RECONFIGURE => !has_key && !has_value && aux == 0,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    if !makes_sense {
        return Err(Errno::EINVAL);
    }
    let file = thread.files().opened(fd)?;
    let Context(state) = file.downcast().ok_or(Errno::EINVAL)?;
    match cmd {
        CREATE | CREATE_EXCL => return create(thread, state),
        RECONFIGURE => return change(thread, state),
        _ => {}
    }
    let name = text(thread, key, MAX_TEXT)?;
    let value = if cmd == STRING { Some(text(thread, value, MAX_TEXT)?) } else { None };
    let mut state = state.lock();
    if !matches!(state.phase, Phase::Making | Phase::Mounted(_)) {
        return Err(Errno::EBUSY);
    }
    match cmd {
        FLAG | STRING => state.set(&name, value.as_deref())?,
        // None takes a file, or bytes that are no text.
        _ => return Err(state.wrong(&alloc::format!("Unknown parameter '{name}'"))),
    }
    Ok(0)
}

/// What was set, as options of the kind that mount(2) takes.
fn as_options(options: &[String]) -> Options<'_> {
    let rest = options.iter().map(String::as_str).collect();
    Options { flags: MountFlags::empty(), rest }
}

/// FSCONFIG_CMD_CREATE. Each file system here is a new one.
fn create(thread: &Arc<Thread>, state: &Mutex<State>) -> Result<usize> {
    let (kind, options) = {
        let mut state = state.lock();
        if !matches!(state.phase, Phase::Making) {
            return Err(Errno::EBUSY);
        }
        state.phase = Phase::Failed;
        (state.kind, mem::take(&mut state.options))
    };
    let made = make_fs(thread, kind, &as_options(&options));
    let mut state = state.lock();
    match made {
        Ok(made) => state.phase = Phase::Made(made),
        // Who has no right may pass it on to who has.
        Err(Errno::EPERM) => {
            (state.phase, state.options) = (Phase::Making, options);
            return Err(Errno::EPERM);
        }
        Err(error) => {
            state.wrong("It cannot be made with these options");
            return Err(error);
        }
    }
    Ok(0)
}

/// FSCONFIG_CMD_RECONFIGURE.
fn change(thread: &Arc<Thread>, state: &Mutex<State>) -> Result<usize> {
    let (mount, options, is_readonly) = {
        let state = state.lock();
        let Phase::Mounted(mount) = &state.phase else { return Err(Errno::EBUSY) };
        // Where it was mounted it is no more.
        let mount = mount.upgrade().ok_or(Errno::EINVAL)?;
        (mount, state.options.clone(), state.is_readonly)
    };
    reconfigure(thread, &mount, &as_options(&options), is_readonly)?;
    let mut state = state.lock();
    state.options.clear();
    state.is_readonly = None;
    drop(state);
    drop(mount);
    Ok(0)
}

/// fsmount(2).
pub fn fsmount(thread: &Arc<Thread>, fd: Fd, flags: u32, attr_flags: u32) -> Result<usize> {
    check_admin(thread)?;
    if flags & !FSMOUNT_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let mount_flags = MountFlags::from_attributes(u64::from(attr_flags))?;
    let file = thread.files().opened(fd)?;
    let Context(state) = file.downcast().ok_or(Errno::EINVAL)?;
    let (made, source, is_readonly) = {
        let state = state.lock();
        match &state.phase {
            Phase::Made(made) => (made.clone(), state.source.clone(), state.is_readonly),
            Phase::Making | Phase::Failed => return Err(Errno::EINVAL),
            Phase::Mounted(_) => return Err(Errno::EBUSY),
        }
    };
    let user = thread.namespaces().mnt.user.clone();
    check_room(1, user.number)?;
    let source = source.as_deref().unwrap_or("none");
    let is_readonly = is_readonly == Some(true);
    let mount = whole_mount(thread, made, source.as_bytes(), mount_flags, is_readonly)?;
    let mounted = detached::file(&mount, &user);
    let fd = install::one(thread, mounted, flags & FSMOUNT_CLOEXEC != 0)?;
    let before = {
        let mut state = state.lock();
        state.is_readonly = None;
        mem::replace(&mut state.phase, Phase::Mounted(Arc::downgrade(&mount)))
    };
    drop(before);
    Ok(fd)
}
