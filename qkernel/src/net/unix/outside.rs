//! AF_UNIX sockets of the host in volumes: such a socket is a [`HostSocket`] from the moment on at
//! which it is bound or connected there. It keeps its own queue, for those who wait already.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{AT_FDCWD, S_IFSOCK};
use linux_raw_sys::net::AF_UNIX;

use super::UnixSocket;
use super::names::{self, Name};
use crate::errno::{Errno, Result};
use crate::fs::hostfs::HostNode;
use crate::fs::{self, perm};
use crate::host::Handle;
use crate::net::HostSocket;
use crate::net::message::Credentials;
use crate::task::Thread;

impl UnixSocket {
    /// The host's socket that it has become.
    pub fn outside(&self) -> Option<Arc<HostSocket>> {
        self.state.lock().outside.clone()
    }

    /// Becomes the host's socket of this handle.
    pub(super) fn becomes(&self, handle: Handle) -> Result<Arc<HostSocket>> {
        let host = HostSocket::of_queue(handle, AF_UNIX, self.kind, self.queue.clone());
        // Somebody may wait for it already.
        host.begin_to_watch()?;
        self.state.lock().outside = Some(host.clone());
        Ok(host)
    }

    /// connect(2) to a socket in a volume, which nobody in this sandbox has made: ECONNREFUSED if
    /// there is none, or it must not be reached; EAGAIN while its backlog is full.
    pub fn connect_outside(&self, thread: &Arc<Thread>, address: &[u8]) -> Result {
        const WRITE: u32 = 2;
        {
            let state = self.state.lock();
            if state.outside.is_some() || state.is_connected {
                return Err(Errno::EISCONN);
            }
            if state.backlog.is_some() {
                return Err(Errno::EINVAL);
            }
        }
        let path: Vec<u8> = names::path_of(address)?.ok_or(Errno::ECONNREFUSED)?;
        let place = fs::lookup(thread, AT_FDCWD, &path, 0)?;
        let attributes = place.attributes()?;
        perm::check(&thread.creds(), &attributes, WRITE)?;
        if attributes.kind() != S_IFSOCK {
            return Err(Errno::ECONNREFUSED);
        }
        let node = place.inode().downcast::<HostNode>().ok_or(Errno::ECONNREFUSED)?;
        self.becomes(node.connect_socket(self.kind)?)?;
        let mut state = self.state.lock();
        state.is_connected = true;
        // What it is called where it was made is not for here.
        state.peer_name = Some(Name::Path(path, attributes.id()));
        state.credentials = Some(Credentials::of(thread));
        Ok(())
    }
}
