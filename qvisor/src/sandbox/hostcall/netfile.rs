//! What the host's /proc/net tells of the container's network namespace, which is that of this
//! process.

use qlib::host::NET_FILES;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::table::{Kind, Object};
use super::{Call, Outcome};
use crate::sys::procfs;

impl Call<'_> {
    /// Opens a file of the list. What of it the guest's programs see is for its kernel to say.
    pub(super) fn net_file(&mut self) -> Outcome {
        let path = self.path(0)?;
        let name = NET_FILES.iter().find(|name| name.as_bytes() == path.as_c().to_bytes());
        let name = name.ok_or(Errno::NOENT)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = procfs::path(&format!("self/net/{name}"));
        let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
        self.host.insert(Object::new(file, Kind::NetFile)).map(u64::from)
    }
}
