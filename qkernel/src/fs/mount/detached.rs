//! Mounts that lie nowhere, behind a descriptor (fsmount(2), open_tree(2)): each tree of them is
//! in a namespace of its own that nobody can enter, and ends with it unless somebody has put it
//! into a tree before (move_mount(2)).

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::any::Any;

use linux_raw_sys::general::O_PATH;

use super::Mount;
use super::namespace::MountNamespace;
use crate::errno::{Errno, Result};
use crate::fs::{FileOps, Location, OpenFile};
use crate::sync::{Mutex, mutex};
use crate::user_namespace::UserNs;

/// Their namespaces, by number.
static ALL: Mutex<BTreeMap<u64, Weak<MountNamespace>>> = mutex(BTreeMap::new());

/// What is behind the descriptor, besides a place.
struct Detached {
    namespace: Arc<MountNamespace>,
}

impl FileOps for Detached {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        ALL.lock().remove(&self.namespace.number);
    }
}

/// A file that is `mount`, which lies nowhere, as O_PATH has it, for who is in this user namespace.
pub fn file(mount: &Arc<Mount>, user: &UserNs) -> Arc<OpenFile> {
    let namespace = MountNamespace::empty(user);
    namespace.set_root(mount);
    ALL.lock().insert(namespace.number, Arc::downgrade(&namespace));
    OpenFile::at(Arc::new(Detached { namespace }), O_PATH, Some(mount.location()))
}

/// The namespace of such mounts that this one is the root of.
fn namespace_of(mount: &Mount) -> Option<Arc<MountNamespace>> {
    let found = ALL.lock().get(&mount.namespace()).and_then(Weak::upgrade);
    found.filter(|_| mount.point().is_none())
}

impl Mount {
    /// True if it is the root of such a tree.
    pub fn is_detached(&self) -> bool {
        namespace_of(self).is_some()
    }

    /// move_mount(2): the root of such a tree is mounted on `place`, and what lies on it too.
    ///
    /// # Errors
    /// EINVAL if it is none; as [`Mount::check_moves_to`] and [`Mount::graft`] have it.
    pub fn put_in_tree(self: &Arc<Self>, place: Location) -> Result {
        let namespace = namespace_of(self).ok_or(Errno::EINVAL)?;
        let place = place.through_mounts();
        self.check_moves_to(&place)?;
        self.graft(place)?;
        drop(namespace.give_up());
        Ok(())
    }
}
