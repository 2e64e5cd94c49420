//! Memory policies and the places of pages, on the one node that there is: get_mempolicy(2),
//! set_mempolicy(2), mbind(2), migrate_pages(2), move_pages(2).

use alloc::sync::Arc;

use linux_raw_sys::general::CAP_SYS_NICE;
use qlib::{PAGE_SIZE, Va};

use crate::creds::AccessMode;
use crate::errno::{Errno, Result};
use crate::mm::policy::{ALL_NODES, Nodes, Policy};
use crate::task::{Thread, access};
use crate::time::Breath;
use crate::wait::Sleeper;

const MPOL_F_NODE: u64 = 1;
const MPOL_F_ADDR: u64 = 2;
const MPOL_F_MEMS_ALLOWED: u64 = 4;
const MPOL_MF_STRICT: u32 = 1;
const MPOL_MF_MOVE: u32 = 2;
const MPOL_MF_MOVE_ALL: u32 = 4;
/// Nodes that there could be (MAX_NUMNODES).
const MAX_NODES: u64 = 64;
/// The most bits of a mask.
const MASK_BITS: u64 = PAGE_SIZE * 8;

/// Reads a mask of nodes, of `maxnode` bits less one. EINVAL for nodes that cannot be.
fn read_nodes(thread: &Thread, mask: Va, maxnode: u64) -> Result<Nodes> {
    let bits = maxnode.wrapping_sub(1);
    if bits == 0 || mask.0 == 0 {
        return Ok(0);
    }
    if bits > MASK_BITS {
        return Err(Errno::EINVAL);
    }
    let words = bits.div_ceil(64) as usize;
    let mut words = thread.mm().read_array::<u64>(mask, words)?;
    if let (Some(last), 1..) = (words.last_mut(), bits % 64) {
        *last &= (1 << (bits % 64)) - 1;
    }
    let (nodes, more) = words.split_first().ok_or(Errno::EINVAL)?;
    if more.iter().any(|word| *word != 0) { Err(Errno::EINVAL) } else { Ok(*nodes) }
}

/// Writes a mask of nodes where there is room for `maxnode` bits less one.
fn write_nodes(thread: &Thread, mask: Va, maxnode: u64, nodes: Nodes) -> Result {
    let bytes = maxnode.wrapping_sub(1).checked_next_multiple_of(64).ok_or(Errno::EINVAL)? / 8;
    if bytes > PAGE_SIZE {
        return Err(Errno::EINVAL);
    }
    let mut out = alloc::vec![0; bytes as usize];
    if let Some(first) = out.first_chunk_mut() {
        *first = nodes.to_le_bytes();
    }
    thread.mm().write_bytes(mask, &out)
}

/// set_mempolicy(2).
pub fn set_mempolicy(thread: &Arc<Thread>, mode: u32, nodemask: Va, maxnode: u64) -> Result<usize> {
    let policy = Policy::new(mode, read_nodes(thread, nodemask, maxnode)?)?;
    thread.attrs.lock().memory_policy = policy;
    Ok(0)
}

/// get_mempolicy(2).
pub fn get_mempolicy(
    thread: &Arc<Thread>,
    mode: Va,
    nodemask: Va,
    maxnode: u64,
    addr: Va,
    flags: u64,
) -> Result<usize> {
    if nodemask.0 != 0 && maxnode < u64::from(ALL_NODES.count_ones()) {
        return Err(Errno::EINVAL);
    }
    let (value, nodes) = policy_at(thread, addr, flags)?;
    if mode.0 != 0 {
        thread.mm().write(mode, &value)?;
    }
    if nodemask.0 != 0 {
        write_nodes(thread, nodemask, maxnode, nodes)?;
    }
    Ok(0)
}

/// What get_mempolicy(2) tells: a mode or a node, and nodes.
fn policy_at(thread: &Thread, addr: Va, flags: u64) -> Result<(u32, Nodes)> {
    let is_known = flags & !(MPOL_F_NODE | MPOL_F_ADDR | MPOL_F_MEMS_ALLOWED) == 0;
    let (wants_node, is_at) = (flags & MPOL_F_NODE != 0, flags & MPOL_F_ADDR != 0);
    if !is_known || flags & MPOL_F_MEMS_ALLOWED != 0 && (wants_node || is_at) {
        return Err(Errno::EINVAL);
    }
    if flags & MPOL_F_MEMS_ALLOWED != 0 {
        return Ok((0, ALL_NODES));
    }
    if !is_at {
        let own = thread.attrs.lock().memory_policy;
        if addr.0 != 0 || wants_node && !own.interleaves() {
            return Err(Errno::EINVAL);
        }
        return Ok((if wants_node { 0 } else { own.mode() }, own.nodes()));
    }
    let mm = thread.mm();
    let range = mm.range_after(addr).filter(|range| range.start <= addr).ok_or(Errno::EFAULT)?;
    if wants_node {
        // The page is made if there is none.
        mm.read::<u8>(addr)?;
        return Ok((0, range.policy.nodes()));
    }
    Ok((range.policy.mode(), range.policy.nodes()))
}

/// `[start, start + len)` with whole pages, of which `None` are none. EINVAL.
fn whole_pages(start: Va, len: u64) -> Result<Option<u64>> {
    if start.page_offset() != 0 {
        return Err(Errno::EINVAL);
    }
    let len = len.wrapping_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
    start.checked_add(len).ok_or(Errno::EINVAL)?;
    Ok(Some(len).filter(|len| *len > 0))
}

/// EPERM unless the thread may move pages that others have too.
fn check_move_all(thread: &Thread, flags: u32) -> Result {
    let may = flags & MPOL_MF_MOVE_ALL == 0 || thread.creds().capable(CAP_SYS_NICE);
    if may { Ok(()) } else { Err(Errno::EPERM) }
}

/// mbind(2).
pub fn mbind(
    thread: &Arc<Thread>,
    addr: Va,
    len: u64,
    mode: u32,
    nodemask: Va,
    maxnode: u64,
    flags: u32,
) -> Result<usize> {
    let nodes = read_nodes(thread, nodemask, maxnode)?;
    if flags & !(MPOL_MF_STRICT | MPOL_MF_MOVE | MPOL_MF_MOVE_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    check_move_all(thread, flags)?;
    let Some(len) = whole_pages(addr, len)? else { return Ok(0) };
    // All pages are where any policy wants them: none is to be moved, none in the way.
    thread.mm().set_policy(addr, len, Policy::new(mode, nodes)?).map(|()| 0)
}

/// set_mempolicy_home_node(2): there is one that it can be.
pub fn set_mempolicy_home_node(
    thread: &Arc<Thread>,
    start: Va,
    len: u64,
    home_node: u64,
    flags: u64,
) -> Result<usize> {
    let pages = whole_pages(start, len)?;
    if flags != 0 || home_node != 0 {
        return Err(Errno::EINVAL);
    }
    let Some(len) = pages else { return Ok(0) };
    let (parts, _) = thread.mm().parts(start, len)?;
    let mut policies = parts.iter().map(|part| part.policy).filter(|policy| policy.is_set());
    let mut is_any = false;
    let can_all = policies.all(|policy| {
        is_any = true;
        policy.may_have_home()
    });
    match (can_all, is_any) {
        (false, _) => Err(Errno::EOPNOTSUPP),
        (true, false) => Err(Errno::ENOENT),
        (true, true) => Ok(0),
    }
}

/// The thread that `pid` names, 0 for the caller, if that may look into it: ESRCH, EPERM.
fn target(thread: &Arc<Thread>, pid: i32) -> Result<Arc<Thread>> {
    if pid == 0 {
        return Ok(thread.clone());
    }
    let found = thread.find_thread(u32::try_from(pid).map_err(|_| Errno::ESRCH)?)?;
    access::check(thread, &found, AccessMode::Real)?;
    Ok(found)
}

/// migrate_pages(2): all pages are on the node that they can be on.
pub fn migrate_pages(
    thread: &Arc<Thread>,
    pid: i32,
    maxnode: u64,
    old_nodes: Va,
    new_nodes: Va,
) -> Result<usize> {
    read_nodes(thread, old_nodes, maxnode)?;
    let new = read_nodes(thread, new_nodes, maxnode)?;
    target(thread, pid)?;
    if new & !ALL_NODES != 0 && !thread.creds().capable(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    if new & ALL_NODES == 0 { Err(Errno::EINVAL) } else { Ok(0) }
}

/// move_pages(2): tells which pages are there.
pub async fn move_pages(
    thread: &Arc<Thread>,
    pid: i32,
    count: u64,
    pages: Va,
    nodes: Va,
    status: Va,
    flags: u32,
) -> Result<usize> {
    if flags & !(MPOL_MF_MOVE | MPOL_MF_MOVE_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    check_move_all(thread, flags)?;
    let mm = target(thread, pid)?.mm();
    let own = thread.mm();
    let at = |array: Va, index: u64, bytes: u64| {
        index.checked_mul(bytes).and_then(|offset| array.checked_add(offset)).ok_or(Errno::EFAULT)
    };
    let mut breath = Breath::new();
    for index in 0..count {
        let page: u64 = own.read(at(pages, index, 8)?)?;
        if nodes.0 != 0 {
            let node: i32 = own.read(at(nodes, index, 4)?)?;
            if !u64::try_from(node).is_ok_and(|node| node < MAX_NODES && ALL_NODES >> node & 1 != 0)
            {
                return Err(Errno::ENODEV);
            }
        }
        let node: i32 = match mm.resident(Va(page).page_floor(), PAGE_SIZE).as_deref() {
            Ok([1]) => 0,
            Ok(_) => -Errno::ENOENT.0,
            Err(_) => -Errno::EFAULT.0,
        };
        own.write(at(status, index, 4)?, &node)?;
        breath.take().await;
        if thread.is_dying() {
            return Err(Errno::EINTR);
        }
    }
    Ok(0)
}
