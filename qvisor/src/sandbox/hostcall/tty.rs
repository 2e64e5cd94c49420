//! Terminals given as standard streams, and the readiness of any handle.

use qlib::sockopt::CAP_NET_ADMIN;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::table::Kind;
use super::{Call, Outcome};
use crate::sys::{self, Direction, IOCTLS};

/// True if an ioctl of the list finds its device by name: the host may load a module of that name.
fn names_device(command: u64) -> bool {
    command >> 8 == 0x89 && !matches!(command, libc::SIOCGIFNAME | sys::SIOCATMARK)
}

/// True if an ioctl of the list changes an interface.
fn changes_interface(command: u64, direction: Direction) -> bool {
    command >> 8 == 0x89 && direction == Direction::In
}

impl Call<'_> {
    pub(super) fn tty_ioctl(&mut self) -> Outcome {
        let object = self.object()?;
        if !matches!(object.kind(), Kind::Stream { .. }) {
            return Err(Errno::NOTTY);
        }
        // SIOC* commands (0x89xx) are for sockets.
        if self.args[0] >> 8 == 0x89 {
            return Err(Errno::NOTTY);
        }
        self.plain_ioctl(&object)
    }

    /// An ioctl of the known list, with seg0 as its argument.
    pub(super) fn plain_ioctl(&self, object: &super::Object) -> Outcome {
        let command = self.args[0];
        let (_, size, direction) =
            IOCTLS.iter().find(|(c, ..)| *c == command).ok_or(Errno::NOTTY)?;
        let range = self.range(0)?;
        if range.len() < *size {
            return Err(Errno::INVAL);
        }
        let mut argument = vec![0; *size];
        if *direction != Direction::Out {
            range.read(&mut argument)?;
        }
        if changes_interface(command, *direction) && self.host.granted() & CAP_NET_ADMIN == 0 {
            return Err(Errno::PERM);
        }
        if names_device(command) {
            super::sockopt::check_device(&argument)?;
        }
        let ret = sys::ioctl(object.as_fd(), command, &mut argument)?;
        if *direction != Direction::In {
            range.write(&argument)?;
        }
        Ok(ret as u64)
    }

    pub(super) fn watch(&mut self) -> Outcome {
        let object = self.object()?;
        let token = self.args[0];
        match object.kind() {
            // Always ready, and epoll(7) does not take them.
            Kind::File
            | Kind::NetFile
            | Kind::Dir { .. }
            | Kind::Path
            | Kind::StdioFile
            | Kind::StdioDir => {
                self.host.poller.post_ready(token, (libc::EPOLLIN | libc::EPOLLOUT) as u32)?;
            }
            _ => match self.host.poller.watch(object.as_fd(), token) {
                // A device that does not poll, such as /dev/null.
                Err(Errno::PERM) => {
                    self.host.poller.post_ready(token, (libc::EPOLLIN | libc::EPOLLOUT) as u32)?;
                }
                other => {
                    other?;
                    object.set_watched(token);
                }
            },
        }
        Ok(0)
    }

    pub(super) fn poll(&mut self) -> Outcome {
        let object = self.object()?;
        if object.kind() == Kind::Path {
            return Err(Errno::BADF);
        }
        // POLL* and EPOLL* have the same values.
        let wanted = PollFlags::IN | PollFlags::OUT | PollFlags::PRI | PollFlags::RDHUP;
        sys::poll_now(&*object, wanted).map(|f| u64::from(f.bits()))
    }

    pub(super) fn take_ready(&mut self) -> Outcome {
        const PAIR: usize = size_of::<[u64; 2]>();
        // Where events tell all, threads that serve the kernel need no such call of the host.
        if !self.host.poller.is_asked() {
            return Err(Errno::NOSYS);
        }
        let out = self.range(0)?;
        let mut pairs = Vec::new();
        self.host.poller.take(out.len() / PAIR, |token, mask| {
            pairs.extend_from_slice(&token.to_ne_bytes());
            pairs.extend_from_slice(&u64::from(mask).to_ne_bytes());
        });
        out.write(&pairs)?;
        Ok((pairs.len() / PAIR) as u64)
    }
}
