//! The sandbox process: guest memory, the kernel image in it, the host calls it makes, and the
//! event loop. [`builder`] shows how all of it is put together.
//!
//! The process that boots a sandbox is already in the container's namespaces and cgroup. It has no
//! other thread when it boots, and becomes the event loop.

pub mod admission;
pub mod backtrace;
mod builder;
mod byte_locks;
pub mod confine;
pub mod control_server;
pub mod ended;
pub mod events;
pub mod hostcall;
pub mod image;
mod limits;
pub mod loader;
pub mod log_limit;
pub mod mailbox;
pub mod memory;
pub mod names;
pub mod panic;
pub mod platform;
pub mod pressure;
pub mod wake_note;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use qlib::control::{ProcessSpec, Reply, Request};
use qlib::platform::Event;
use rustix::time::Timespec;

use builder::refused;
pub use builder::{BootError, SandboxConfig};
use control_server::ControlServer;
use hostcall::HostSide;
use mailbox::Mailbox;
use platform::Running;

use crate::streams::Stream;

/// How long the kernel may take to make a container or load a program.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A booted sandbox.
pub struct Sandbox {
    platform: Arc<dyn Running>,
    host: Arc<HostSide>,
    mailbox: Mailbox,
    server: ControlServer,
}

impl Sandbox {
    /// Boots the kernel and makes the container. Call it while the process has one thread.
    ///
    /// # Errors
    /// With the step that failed.
    pub fn boot(config: SandboxConfig) -> Result<Sandbox, BootError> {
        builder::build(config)
    }

    /// Starts the container's first process, on the streams given at boot; its guest process id.
    pub fn start(&mut self, process: ProcessSpec) -> Result<u32, BootError> {
        match self.request(&Request::Start(process))? {
            Reply::Pid(pid) => Ok(pid),
            other => Err(BootError::Confused(format!("{other:?}"))),
        }
    }

    /// Wakes it, if it was made of an image.
    pub fn wake(&mut self) -> Result<(), BootError> {
        match self.request(&Request::Wake)? {
            Reply::Done => Ok(()),
            other => Err(BootError::Confused(format!("{other:?}"))),
        }
    }

    /// Has its next wake noted in a file.
    ///
    /// # Errors
    /// When it is none.
    pub fn note_wake(&self, file: OwnedFd) -> Result<(), BootError> {
        self.host.wake_note.keep(file).map_err(refused("note the wake"))
    }

    /// Has one that was made of an image, and has not been woken, have other standard streams, the
    /// first of which has this handle.
    ///
    /// # Errors
    /// When they are not of the kind that the image has.
    pub fn change_streams(&self, first: u32, streams: Vec<Stream>) -> Result<(), BootError> {
        Ok(self.host.change_streams(first, streams)?)
    }

    /// Makes a request of the VMM's own and runs the event loop until it is answered.
    fn request(&mut self, request: &Request) -> Result<Reply, BootError> {
        let platform = &self.platform;
        let dispatch = |event: &Event| platform.dispatch(event);
        let reply = self
            .mailbox
            .local(&self.host, request, &dispatch)
            .map_err(refused("ask the guest kernel"))?;
        let end = Instant::now() + START_TIMEOUT;
        loop {
            match reply.try_recv() {
                Ok(Reply::Error { errno, message }) => {
                    return Err(BootError::Refused { errno, message });
                }
                Ok(reply) => return Ok(reply),
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => {
                    return Err(BootError::Confused("it dropped a request".into()));
                }
            }
            if let Some(status) = self.host.poller.exit_status() {
                return Err(BootError::Ended(status));
            }
            if Instant::now() > end {
                return Err(BootError::Confused(format!(
                    "no answer in {} s",
                    START_TIMEOUT.as_secs()
                )));
            }
            // Answers from other threads wake the loop.
            let step = Timespec { tv_sec: 1, tv_nsec: 0 };
            let turned = self.host.poller.clone().turn(Some(step), &dispatch, &mut self.server);
            turned.map_err(refused("wait for events"))?;
        }
    }

    /// Runs until the container's first process has ended; its exit status.
    pub fn run(mut self) -> Result<i32, BootError> {
        let platform = self.platform;
        let dispatch = |event: &Event| platform.dispatch(event);
        let ended = self.host.poller.clone().run(&dispatch, &mut self.server);
        self.server.see_off();
        ended.map_err(refused("wait for events"))
    }
}
