//! eventfd(2): a counter behind a descriptor.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use crate::errno::{Errno, Result};
use crate::fs::{FileOps, OpenFile};
use crate::io::IoBuffer;
use crate::sync::Mutex;
use crate::wait::{PollMask, WaitQueue};

/// The highest value that write(2) can reach.
const MAX: u64 = u64::MAX - 1;

/// An eventfd.
pub struct EventFd {
    count: Mutex<u64>,
    /// EFD_SEMAPHORE: a read takes one.
    is_semaphore: bool,
    queue: WaitQueue,
}

impl EventFd {
    /// A new one.
    pub fn new(count: u64, is_semaphore: bool) -> Arc<Self> {
        Arc::new(EventFd { count: Mutex::new(count), is_semaphore, queue: WaitQueue::new() })
    }
}

impl FileOps for EventFd {
    fn read(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if buffer.remaining() < 8 {
            return Err(Errno::EINVAL);
        }
        let value = match *self.count.lock() {
            0 => return Err(Errno::EAGAIN),
            _ if self.is_semaphore => 1,
            count => count,
        };
        // As on Linux, what cannot be stored is lost.
        *self.count.lock() -= value;
        self.queue.wake(PollMask::WRITE);
        buffer.put(&value.to_ne_bytes())
    }

    fn write(&self, _file: &OpenFile, buffer: &mut IoBuffer<'_>, _offset: u64) -> Result<usize> {
        if buffer.remaining() < 8 {
            return Err(Errno::EINVAL);
        }
        let mut bytes = [0; 8];
        let start = buffer.done();
        buffer.take(&mut bytes)?;
        let value = u64::from_ne_bytes(bytes);
        if value == u64::MAX {
            return Err(Errno::EINVAL);
        }
        let sum = self.count.lock().checked_add(value).filter(|sum| *sum <= MAX);
        match sum {
            Some(sum) => *self.count.lock() = sum,
            None => {
                buffer.rewind(start);
                return Err(Errno::EAGAIN);
            }
        }
        self.queue.wake(PollMask::READ);
        Ok(8)
    }

    fn poll(&self, _file: &OpenFile) -> PollMask {
        let count = *self.count.lock();
        let mut mask = PollMask::empty();
        mask.set(PollMask::READ, count > 0);
        mask.set(PollMask::WRITE, count < MAX);
        mask
    }

    fn queue(&self) -> Option<&WaitQueue> {
        Some(&self.queue)
    }

    fn label(&self, _file: &OpenFile) -> Vec<u8> {
        b"anon_inode:[eventfd]".to_vec()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &OpenFile, value: u64) -> Result<usize> {
        file.ops.write(file, &mut IoBuffer::kernel_const(&value.to_ne_bytes()), 0)
    }

    fn read(file: &OpenFile) -> Result<u64> {
        let mut bytes = [0; 8];
        file.ops.read(file, &mut IoBuffer::kernel(&mut bytes), 0)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    #[test]
    fn counts_up_and_is_taken_whole() {
        let file = OpenFile::new(EventFd::new(2, false), 0);
        assert_eq!(write(&file, 3), Ok(8));
        assert_eq!(read(&file), Ok(5));
        assert_eq!(read(&file), Err(Errno::EAGAIN));
        assert!(!file.poll().contains(PollMask::IN));
        assert_eq!(write(&file, u64::MAX), Err(Errno::EINVAL));
        assert_eq!(write(&file, MAX), Ok(8));
        assert!(!file.poll().contains(PollMask::OUT));
        assert_eq!(write(&file, 1), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_semaphore_is_taken_one_by_one() {
        let file = OpenFile::new(EventFd::new(2, true), 0);
        assert_eq!((read(&file), read(&file), read(&file)), (Ok(1), Ok(1), Err(Errno::EAGAIN)));
    }
}
