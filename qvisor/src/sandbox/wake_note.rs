//! What tells that a sandbox has been awake since an image was made of it: a file whose first byte
//! it sets to 0 when it wakes. By that a command that comes later knows, also after a boot of the
//! host, whether the image is what the sandbox was at its end.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::fs::FileType;
use rustix::io::{Errno, ReadWriteFlags};

use crate::sys::ordered::{Mutex, place};

const STACK_BYTES: usize = 64 << 10;

/// The file, until it is written.
#[derive(Debug, Default)]
pub struct WakeNote(Mutex<Option<OwnedFd>, place::WakeNote>);

impl WakeNote {
    /// From now on the next wake is noted in this file, which is open for writing, and in no other.
    ///
    /// # Errors
    /// EINVAL when it is no regular file.
    pub fn keep(&self, file: OwnedFd) -> Result<(), Errno> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if kind != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        *self.0.lock() = Some(file);
        Ok(())
    }

    /// The sandbox wakes. Whoever reads the file sees it from now on; that it is on the disk, too,
    /// nobody waits for.
    pub(super) fn write(&self) {
        let Some(file) = self.0.lock().take() else { return };
        let zero = [IoSlice::new(b"0")];
        // Where nothing can be written it can be cut: what is not 1 will do.
        let written = rustix::io::pwritev2(&file, &zero, 0, ReadWriteFlags::empty())
            .map(drop)
            .or_else(|_| rustix::fs::ftruncate(&file, 0));
        if let Err(e) = written {
            tracing::error!(
                "the image of its last sleep is not what it was, and is not known so: {e}"
            );
            return;
        }
        let to_disk = move || rustix::fs::fdatasync(&file);
        // Without a thread the host writes it as it writes all else.
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(to_disk).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_wake_is_noted_once() {
        let note = WakeNote::default();
        note.write();
        let path = std::env::temp_dir().join(format!("quark-wake-note-{}", std::process::id()));
        std::fs::write(&path, "1").unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        note.keep(file.into()).unwrap();
        let said = || std::fs::read_to_string(&path).unwrap();
        assert_eq!(said(), "1");
        note.write();
        assert_eq!(said(), "0");
        std::fs::write(&path, "1").unwrap();
        note.write();
        assert_eq!(said(), "1");
        std::fs::remove_file(&path).unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        assert_eq!(note.keep(writer.as_fd().try_clone_to_owned().unwrap()), Err(Errno::INVAL));
        drop(writer);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }
}
