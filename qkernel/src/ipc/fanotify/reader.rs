//! What the reader of a group gets and answers.

use alloc::sync::Arc;

use linux_raw_sys::general::{O_CLOEXEC, RLIMIT_NOFILE};

use super::Group;
use super::abi::*;
use super::event::{Event, NO_FD, NO_PIDFD, What};
use crate::errno::{Errno, Result};
use crate::fs::ask::Question;
use crate::fs::{Fd, OpenFile, open};
use crate::io::IoBuffer;
use crate::task::pidfd::PidFd;
use crate::task::{Thread, current};

/// struct fanotify_response.
const RESPONSE_BYTES: usize = 8;
/// So many events are given at once: a descriptor of each may have to be opened.
const MOST_AT_ONCE: usize = 256;

fn install(reader: &Arc<Thread>, file: Arc<OpenFile>, closes: bool) -> Result<Fd> {
    reader.files().insert(file, closes, 0, reader.process.rlimit(RLIMIT_NOFILE))
}

impl Group {
    /// A descriptor of what an event is of, for its reader.
    fn open(&self, reader: &Arc<Thread>, event: &Event) -> Result<Fd> {
        let What::Open(place, _) = &event.what else { return Ok(NO_FD) };
        let file = open::open_unseen(reader, place, self.event_flags & !O_CLOEXEC)?;
        install(reader, file, self.event_flags & O_CLOEXEC != 0)
    }

    /// A descriptor of who did it.
    fn open_process(&self, reader: &Arc<Thread>, event: &Event) -> Fd {
        if self.flags & FAN_REPORT_PIDFD == 0 {
            return NO_FD;
        }
        let process = event.process.upgrade().filter(|process| !process.is_zombie());
        let process = process.filter(|process| reader.number_of(process.pid) != 0);
        let Some(process) = process else { return NO_FD };
        let file = PidFd::open(process, 0);
        install(reader, file, true).unwrap_or(NO_PIDFD)
    }

    /// Gives one event to its reader: how many bytes.
    fn give(
        &self,
        reader: &Arc<Thread>,
        event: &Event,
        buffer: &mut IoBuffer<'_>,
    ) -> Result<usize> {
        let fd = self.open(reader, event)?;
        let pidfd = self.open_process(reader, event);
        let is_hidden = self.is_unprivileged && event.pid != reader.process.pid;
        let pid = if is_hidden { 0 } else { reader.number_of(event.pid) };
        let bytes = event.bytes(self.flags, pid, fd, pidfd);
        let result = match buffer.put(&bytes) {
            Ok(stored) if stored < bytes.len() => Err(Errno::EFAULT),
            result => result,
        };
        match &event.what {
            _ if result.is_err() => {
                for fd in [fd, pidfd].into_iter().filter(|fd| *fd >= 0) {
                    drop(reader.files().remove(fd));
                }
            }
            What::Open(_, Some(question)) => self.wait_for(fd, question),
            _ => {}
        }
        result
    }

    /// `question` is answered by this descriptor from now on.
    fn wait_for(&self, fd: Fd, question: &Arc<Question>) {
        let is_kept = self.asked.lock().as_mut().map(|asked| {
            let questions = asked.entry(fd).or_default();
            // Those of descriptors that were closed without an answer.
            questions.retain(|other| !other.is_given_up());
            questions.push(question.clone());
        });
        if is_kept.is_none() {
            question.answer(true);
        }
    }

    /// The answer to a question that was read.
    fn respond(&self, fd: Fd, response: u32) -> Result {
        if fd < 0 || !matches!(response, FAN_ALLOW | FAN_DENY) {
            return Err(Errno::EINVAL);
        }
        let question = {
            let mut asked = self.asked.lock();
            let asked = asked.as_mut().ok_or(Errno::ENOENT)?;
            let questions = asked.get_mut(&fd).ok_or(Errno::ENOENT)?;
            let question = questions.remove(0);
            if questions.is_empty() {
                asked.remove(&fd);
            }
            question
        };
        question.answer(response == FAN_ALLOW);
        Ok(())
    }

    /// Gives events to the reader, as many as fit. EAGAIN, EINVAL, and what it is that there is no
    /// descriptor for the first.
    pub(super) fn give_all(&self, buffer: &mut IoBuffer<'_>) -> Result<usize> {
        let reader = current::get().ok_or(Errno::EAGAIN)?;
        let (mut stored, mut count) = (0, 0);
        while count < MOST_AT_ONCE {
            let event = match self.next(buffer.remaining()) {
                Ok(event) => event,
                Err(_) if stored > 0 => return Ok(stored),
                Err(error) => return Err(error),
            };
            let given = self.give(&reader, &event, buffer);
            match given {
                Ok(_) => event.end_read(),
                Err(_) => event.end(false),
            }
            match given {
                Ok(bytes) => (stored, count) = (stored + bytes, count + 1),
                // It has no name any more by which it could be opened: as if nothing had happened.
                Err(Errno::ENOENT | Errno::ESTALE) => {}
                Err(error) if stored == 0 || error == Errno::EFAULT => return Err(error),
                Err(_) => return Ok(stored),
            }
        }
        Ok(stored)
    }

    /// Takes one answer. EINVAL, ENOENT.
    pub(super) fn take_answer(&self, buffer: &mut IoBuffer<'_>) -> Result<usize> {
        if buffer.remaining() < RESPONSE_BYTES {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; RESPONSE_BYTES];
        if buffer.take(&mut bytes)? < RESPONSE_BYTES {
            return Err(Errno::EFAULT);
        }
        let [a, b, c, d, response @ ..] = bytes;
        self.respond(Fd::from_le_bytes([a, b, c, d]), u32::from_le_bytes(response))?;
        Ok(RESPONSE_BYTES)
    }
}
