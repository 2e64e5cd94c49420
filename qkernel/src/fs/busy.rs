//! Who uses regular files: those that are open for writing, and those that are executed, do not
//! become each other (ETXTBSY, see open(2) and execve(2)); readers count for leases
//! ([`super::lease`]).

use alloc::collections::BTreeMap;

use super::attr::Attributes;
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

/// A file: device and inode number.
pub type Id = (u64, u64);

/// How often a file is open, and executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// For writing; or with a minus, executed.
    pub writers: i64,
    /// For reading alone.
    pub readers: u64,
}

/// All files that are used.
static FILES: Mutex<BTreeMap<Id, Uses>> = mutex(BTreeMap::new());

/// How a file is used.
pub fn uses_of(file: Id) -> Uses {
    FILES.lock().get(&file).copied().unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Reads,
    Writes,
    Executes,
}

/// A file is read, written or executed, as long as this lives.
#[derive(Debug)]
pub struct Claim {
    file: Id,
    as_what: Use,
}

impl Claim {
    /// A file with these attributes is opened for reading alone.
    pub fn to_read(file: &Attributes) -> Claim {
        let file = file.id();
        FILES.lock().entry(file).or_default().readers += 1;
        Claim { file, as_what: Use::Reads }
    }

    /// A file with these attributes is opened for writing: ETXTBSY if it is executed.
    pub fn to_write(file: &Attributes) -> Result<Claim> {
        Self::take(file, Use::Writes, 1)
    }

    /// One with these attributes is executed: ETXTBSY if it is open for writing.
    pub fn to_execute(file: &Attributes) -> Result<Claim> {
        Self::take(file, Use::Executes, -1)
    }

    /// True if the file is written.
    pub fn writes(&self) -> bool {
        self.as_what == Use::Writes
    }

    fn take(file: &Attributes, as_what: Use, step: i64) -> Result<Claim> {
        let file = file.id();
        let mut files = FILES.lock();
        let uses = files.entry(file).or_default();
        if uses.writers * step < 0 {
            return Err(Errno::ETXTBSY);
        }
        uses.writers += step;
        Ok(Claim { file, as_what })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut files = FILES.lock();
        if let Some(uses) = files.get_mut(&self.file) {
            match self.as_what {
                Use::Reads => uses.readers -= 1,
                Use::Writes => uses.writers -= 1,
                Use::Executes => uses.writers += 1,
            }
            if *uses == Uses::default() {
                files.remove(&self.file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_and_programs_keep_each_other_out() {
        // Numbers that no other test has.
        let file = Attributes { dev: u64::MAX, ino: 1, ..Attributes::default() };
        let other = Attributes { ino: 2, ..file };
        let (one, two) = (Claim::to_write(&file).unwrap(), Claim::to_write(&file).unwrap());
        assert_eq!(Claim::to_execute(&file).err(), Some(Errno::ETXTBSY));
        let running = Claim::to_execute(&other).unwrap();
        drop(one);
        assert_eq!(Claim::to_execute(&file).err(), Some(Errno::ETXTBSY));
        drop(two);
        let again = Claim::to_execute(&file).unwrap();
        assert_eq!(Claim::to_write(&file).err(), Some(Errno::ETXTBSY));
        let reader = Claim::to_read(&file);
        assert_eq!(uses_of((u64::MAX, 1)), Uses { writers: -1, readers: 1 });
        drop((running, again, reader));
        assert!(FILES.lock().keys().all(|(dev, _)| *dev != u64::MAX), "nothing is left");
    }
}
