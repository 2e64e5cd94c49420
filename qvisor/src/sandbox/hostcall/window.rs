//! File windows: host files in the guest's physical address space.

use qlib::Gpa;
use rustix::io::Errno;

use super::{Call, Outcome};
use crate::sys;

impl Call<'_> {
    pub(super) fn window_map(&mut self) -> Outcome {
        let object = self.regular_file()?;
        let [offset, len, writable, ..] = self.args;
        if writable > 1 {
            return Err(Errno::INVAL);
        }
        // A window keeps its descriptor when the handle is closed.
        self.host.check_room()?;
        let gpa = self.host.memory.window_map(object.fd().clone(), offset, len, writable == 1)?;
        Ok(gpa.0)
    }

    pub(super) fn window_drop(&mut self) -> Outcome {
        if self.host.memory.window_drop(Gpa(self.args[0])) { Ok(0) } else { Err(Errno::INVAL) }
    }

    pub(super) fn windows_release(&mut self) -> Outcome {
        self.host.memory.windows_release()?;
        // It is going to sleep: this process too gives back what it does not use.
        sys::trim_process();
        Ok(0)
    }

    pub(super) fn committed(&mut self) -> Outcome {
        const PAGE: u64 = qlib::PAGE_SIZE;
        let [gpa, len, ..] = self.args;
        let out = self.range(0)?;
        let pages = len / PAGE;
        // One bit for each page of at most all of RAM.
        if len > self.host.memory.ram_bytes() || (out.len() as u64) < pages.div_ceil(8) {
            return Err(Errno::INVAL);
        }
        let mut bitmap = vec![0u8; pages.div_ceil(8) as usize];
        let goes_on = self.host.memory.committed(Gpa(gpa), len, |first, count| {
            for page in first..(first + count).min(pages) {
                bitmap[page as usize / 8] |= 1 << (page % 8);
            }
        })?;
        out.write(&bitmap)?;
        Ok((goes_on - gpa) / PAGE)
    }
}
