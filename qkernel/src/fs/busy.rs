//! Regular files that are open for writing, and those that are executed: neither becomes the other
//! (ETXTBSY, see open(2) and execve(2)).

use alloc::collections::BTreeMap;

use super::attr::Attributes;
use crate::errno::{Errno, Result};
use crate::sync::{Mutex, mutex};

/// By device and inode number: how often a file is open for writing, or with a minus, executed.
static FILES: Mutex<BTreeMap<(u64, u64), i64>> = mutex(BTreeMap::new());

/// A file is written, or executed, as long as this lives.
#[derive(Debug)]
pub struct Claim {
    file: (u64, u64),
    step: i64,
}

impl Claim {
    /// A file with these attributes is opened for writing: ETXTBSY if it is executed.
    pub fn to_write(file: &Attributes) -> Result<Claim> {
        Self::take(file, 1)
    }

    /// One with these attributes is executed: ETXTBSY if it is open for writing.
    pub fn to_execute(file: &Attributes) -> Result<Claim> {
        Self::take(file, -1)
    }

    fn take(file: &Attributes, step: i64) -> Result<Claim> {
        let file = (file.dev, file.ino);
        let mut files = FILES.lock();
        let count = files.entry(file).or_insert(0);
        if *count * step < 0 {
            return Err(Errno::ETXTBSY);
        }
        *count += step;
        Ok(Claim { file, step })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut files = FILES.lock();
        if let Some(count) = files.get_mut(&self.file) {
            *count -= self.step;
            if *count == 0 {
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
        drop((running, again));
        assert!(FILES.lock().keys().all(|(dev, _)| *dev != u64::MAX), "nothing is left");
    }
}
