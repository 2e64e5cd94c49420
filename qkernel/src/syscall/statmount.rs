//! statmount(2), listmount(2): what /proc/PID/mountinfo shows, by number.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{
    CAP_SYS_ADMIN, MS_PRIVATE, MS_RDONLY, MS_SHARED, MS_SLAVE, MS_UNBINDABLE, STATMOUNT_FS_TYPE,
    STATMOUNT_MNT_BASIC, STATMOUNT_MNT_NS_ID, STATMOUNT_MNT_OPTS, STATMOUNT_MNT_POINT,
    STATMOUNT_MNT_ROOT, STATMOUNT_PROPAGATE_FROM, STATMOUNT_SB_BASIC, STATMOUNT_SB_SOURCE,
    STATMOUNT_SUPPORTED_MASK,
};
use qlib::Va;

use crate::abi::abi_struct;
use crate::account;
use crate::errno::{Errno, Result};
use crate::fs::Location;
use crate::fs::attr::device_parts;
use crate::fs::mount::namespace::MountNamespace;
use crate::fs::mount::{self, Mount, UNIQUE_OFFSET, peers, unique_id};
use crate::fs::proc::mounts;
use crate::task::Thread;

/// LSMT_ROOT: from the root of the caller on.
const ROOT: u64 = u64::MAX;
/// LISTMOUNT_REVERSE.
const REVERSE: u32 = 1;
/// The most numbers that listmount(2) may be asked for.
const MOST: usize = 1_000_000;
/// struct mnt_id_req as it was first, in bytes.
const FIRST_BYTES: usize = 24;

/// What of statmount(2) there is.
const SUPPORTED: u32 = STATMOUNT_SB_BASIC
    | STATMOUNT_MNT_BASIC
    | STATMOUNT_PROPAGATE_FROM
    | STATMOUNT_MNT_ROOT
    | STATMOUNT_MNT_POINT
    | STATMOUNT_FS_TYPE
    | STATMOUNT_MNT_NS_ID
    | STATMOUNT_MNT_OPTS
    | STATMOUNT_SB_SOURCE
    | STATMOUNT_SUPPORTED_MASK;

abi_struct! {
    /// struct mnt_id_req.
    pub struct MntIdReq {
        pub size: u32, pub spare: u32, pub mnt_id: u64, pub param: u64, pub mnt_ns_id: u64,
    }
}

abi_struct! {
    /// struct statmount, without the room for later fields and the texts at its end.
    pub struct StatMount {
        pub size: u32, pub mnt_opts: u32, pub mask: u64, pub sb_dev_major: u32,
        pub sb_dev_minor: u32, pub sb_magic: u64, pub sb_flags: u32, pub fs_type: u32,
        pub mnt_id: u64, pub mnt_parent_id: u64, pub mnt_id_old: u32, pub mnt_parent_id_old: u32,
        pub mnt_attr: u64, pub mnt_propagation: u64, pub mnt_peer_group: u64, pub mnt_master: u64,
        pub propagate_from: u64, pub mnt_root: u32, pub mnt_point: u32, pub mnt_ns_id: u64,
        pub fs_subtype: u32, pub sb_source: u32, pub opt_num: u32, pub opt_array: u32,
        pub opt_sec_num: u32, pub opt_sec_array: u32, pub supported_mask: u64,
    }
}

/// Where the texts begin, in bytes.
const TEXTS: usize = 512;

/// What is asked for, the mount namespace that it is about, and from where that is looked at: the
/// caller's own from the caller's root, another one of its container, for who has all rights in it,
/// from its own.
fn request(thread: &Thread, req: Va) -> Result<(MntIdReq, Arc<MountNamespace>, Location)> {
    let mm = thread.mm();
    let size: u32 = mm.read(req)?;
    let req: MntIdReq = mm.read_sized(req, size as usize, FIRST_BYTES)?;
    if req.spare != 0 || req.mnt_id <= UNIQUE_OFFSET {
        return Err(Errno::EINVAL);
    }
    let own = thread.namespaces().mnt.clone();
    if req.mnt_ns_id == 0 || req.mnt_ns_id == own.number {
        return Ok((req, own, thread.fs().root));
    }
    let creds = thread.creds();
    let other = own.relative(req.mnt_ns_id);
    let other = other.filter(|other| creds.capable_in(&other.user, CAP_SYS_ADMIN));
    let other = other.ok_or(Errno::ENOENT)?;
    let root = other.root().ok_or(Errno::ENOENT)?;
    Ok((req, other, root))
}

/// EPERM if a mount cannot be reached from `root`, for who has no rights over all of them.
fn check_seen(
    thread: &Thread,
    own: &MountNamespace,
    mount: &Arc<Mount>,
    root: &Location,
) -> Result {
    let is_seen = mount.location().is_below(root);
    let may = || thread.creds().capable_in(&own.user, CAP_SYS_ADMIN);
    if is_seen || may() { Ok(()) } else { Err(Errno::EPERM) }
}

/// listmount(2).
pub fn listmount(
    thread: &Arc<Thread>,
    req: Va,
    ids: Va,
    count: usize,
    flags: u32,
) -> Result<usize> {
    if flags & !REVERSE != 0 {
        return Err(Errno::EINVAL);
    }
    if count > MOST {
        return Err(Errno::EOVERFLOW);
    }
    let (req, own, root) = request(thread, req)?;
    let last = req.param;
    if last != 0 && last <= UNIQUE_OFFSET {
        return Err(Errno::EINVAL);
    }
    let above = match req.mnt_id {
        ROOT => root,
        id => {
            let mount = mount::by_unique_id(own.number, id).ok_or(Errno::ENOENT)?;
            check_seen(thread, &own, &mount, &root)?;
            mount.location()
        }
    };
    let mut listed = below(&above, req.mnt_id)?;
    listed.sort_unstable();
    if flags & REVERSE != 0 {
        listed.reverse();
    }
    let is_later = |id: &u64| match flags & REVERSE {
        _ if last == 0 => true,
        0 => *id > last,
        _ => *id < last,
    };
    listed.retain(is_later);
    listed.truncate(count);
    for (index, id) in listed.iter().enumerate() {
        thread.mm().write(Va(ids.0.wrapping_add(index as u64 * 8)), id)?;
    }
    Ok(listed.len())
}

/// The numbers of the mounts at `above` and below it, without `own`. Each is looked at once,
/// however deep they lie in each other.
fn below(above: &Location, own: u64) -> Result<Vec<u64>> {
    let mut all = account::vec_for(above.mount.tree().count())?;
    let mut is_below = above.is_mount_root();
    for mount in above.mount.tree() {
        // After one that lies on the first mount come those that lie on it.
        if let Some(point) = mount.point()
            && Arc::ptr_eq(&point.mount, &above.mount)
        {
            is_below = above.dentry.is_above(&point.dentry);
        }
        if is_below && unique_id(mount.id) != own {
            all.push(unique_id(mount.id));
        }
    }
    Ok(all)
}

/// The texts at the end of struct statmount.
#[derive(Default)]
struct Texts(Vec<u8>);

impl Texts {
    /// Adds one: where it begins.
    fn add(&mut self, text: &[u8]) -> u32 {
        let start = self.0.len() as u32;
        self.0.extend_from_slice(text);
        self.0.push(0);
        start
    }
}

/// statmount(2).
pub fn statmount(
    thread: &Arc<Thread>,
    req: Va,
    buf: Va,
    bufsize: usize,
    flags: u32,
) -> Result<usize> {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (req, own, root) = request(thread, req)?;
    let mount = mount::by_unique_id(own.number, req.mnt_id).ok_or(Errno::ENOENT)?;
    check_seen(thread, &own, &mount, &root)?;
    let (mut out, mut texts) = (StatMount::default(), Texts::default());
    for bit in (0..32).map(|shift| SUPPORTED & 1 << shift).filter(|bit| *bit != 0) {
        if req.param & u64::from(bit) != 0 && fill(&mut out, &mut texts, bit, &mount, &root)? {
            out.mask |= u64::from(bit);
        }
    }
    let Texts(texts) = texts;
    out.size = (TEXTS + texts.len()) as u32;
    if !texts.is_empty() && bufsize < out.size as usize {
        return Err(Errno::EOVERFLOW);
    }
    let mut bytes = zerocopy::IntoBytes::as_bytes(&out).to_vec();
    bytes.resize(TEXTS, 0);
    bytes.extend(texts);
    bytes.truncate(bufsize);
    thread.mm().write_bytes(buf, &bytes)?;
    Ok(0)
}

/// Fills in what one bit of the mask asks for; false if there is no such thing.
fn fill(
    out: &mut StatMount,
    texts: &mut Texts,
    bit: u32,
    mount: &Arc<Mount>,
    root: &Location,
) -> Result<bool> {
    match bit {
        STATMOUNT_SB_BASIC => {
            let number = mount.root.inode.permissions().map_or(0, |a| a.dev);
            (out.sb_dev_major, out.sb_dev_minor) = device_parts(number);
            out.sb_magic = mount.fs.statfs()?.kind as u64;
            out.sb_flags = if mount.is_fs_readonly() { MS_RDONLY } else { 0 };
        }
        STATMOUNT_MNT_BASIC => {
            let parent = mount.point().map_or(mount.id, |point| point.mount.id);
            (out.mnt_id_old, out.mnt_parent_id_old) = (mount.id, parent);
            (out.mnt_id, out.mnt_parent_id) = (unique_id(mount.id), unique_id(parent));
            out.mnt_attr = mount.flags().to_attributes();
            let (group, master) = (mount.peer_group(), peers::master_of(&**mount));
            out.mnt_propagation = u64::from(match (&group, &master) {
                (None, None) if mount.is_unbindable() => MS_UNBINDABLE,
                (None, None) => MS_PRIVATE,
                (group, master) => {
                    (if group.is_some() { MS_SHARED } else { 0 })
                        | if master.is_some() { MS_SLAVE } else { 0 }
                }
            });
            out.mnt_peer_group = group.map_or(0, |group| u64::from(group.id));
            out.mnt_master = master.map_or(0, |master| u64::from(master.id));
        }
        STATMOUNT_PROPAGATE_FROM => {
            let from = mounts::propagates_from(mount, root);
            out.propagate_from = from.map_or(0, u64::from);
        }
        STATMOUNT_MNT_ROOT => out.mnt_root = texts.add(&mounts::inner_root(mount)),
        STATMOUNT_MNT_POINT => {
            let (path, is_reached) = mount.location().path_and_reach(root);
            // As Linux shows what lies elsewhere.
            out.mnt_point = texts.add(if is_reached { &path } else { b"" });
        }
        STATMOUNT_FS_TYPE => out.fs_type = texts.add(mount.fs.type_name().as_bytes()),
        STATMOUNT_MNT_NS_ID => out.mnt_ns_id = mount.namespace(),
        STATMOUNT_MNT_OPTS => match mount.fs.options().split_first() {
            Some((_, options)) => out.mnt_opts = texts.add(options),
            None => return Ok(false),
        },
        STATMOUNT_SB_SOURCE => out.sb_source = texts.add(mounts::source(mount)),
        _ => out.supported_mask = u64::from(SUPPORTED),
    }
    Ok(true)
}
