//! What a kernel image has in memory, as it is put together before any of it is put there: one that
//! is written to page by page in guest memory costs each page a fault, and most of it is shared.

use std::ops::Range;

use object::Endianness;
use object::elf;
use object::read::elf::ProgramHeader;

use super::{IMAGE_START, LoaderError, Segment, loads, pages_of};
use crate::sandbox::memory::{GuestMemory, Protection};

/// What one segment has in memory, in whole pages.
pub struct Part {
    /// Where it is, relative to the image.
    pages: Range<u64>,
    /// What it has there; behind it are zeros.
    bytes: Vec<u8>,
}

impl Part {
    /// What the file has.
    pub fn of(image: &[u8], segment: &Segment, endian: Endianness) -> Result<Self, LoaderError> {
        let data = segment.data(endian, image);
        let data = data.map_err(|()| LoaderError::Bad("a segment lies outside the file"))?;
        let pages = pages_of(segment, endian);
        let mut bytes = vec![0; (segment.p_vaddr(endian) - pages.start) as usize];
        bytes.extend_from_slice(data);
        Ok(Part { pages, bytes })
    }

    /// Its bytes in a range of its pages; behind them are zeros.
    fn within(&self, range: &Range<u64>) -> &[u8] {
        let place = |address: u64| ((address - self.pages.start) as usize).min(self.bytes.len());
        &self.bytes[place(range.start)..place(range.end)]
    }

    /// Puts pages of it where they are never written, nor any part of the file behind guest RAM.
    fn set_apart(
        &self,
        memory: &GuestMemory,
        range: &Range<u64>,
        protection: Protection,
    ) -> Result<(), LoaderError> {
        let len = range.end - range.start;
        memory.set_apart(IMAGE_START + range.start, len, self.within(range), protection)?;
        Ok(())
    }

    /// The same of all of it.
    pub fn set_all_apart(
        &self,
        memory: &GuestMemory,
        protection: Protection,
    ) -> Result<(), LoaderError> {
        self.set_apart(memory, &self.pages, protection)
    }
}

/// What its writable segments have, among it what is constant once it is relocated.
pub struct Writable(Vec<Part>);

impl Writable {
    /// What the file has.
    pub fn of(image: &[u8], segments: &[Segment], endian: Endianness) -> Result<Self, LoaderError> {
        let writable = loads(segments, endian).filter(|s| s.p_flags(endian).contains(elf::PF_W));
        writable.map(|s| Part::of(image, s, endian)).collect::<Result<_, _>>().map(Writable)
    }

    /// The bytes at an address, if they are all among what the file has.
    pub fn at<const N: usize>(&mut self, address: u64) -> Option<&mut [u8; N]> {
        let part = self.0.iter_mut().find(|part| part.pages.contains(&address))?;
        let from = (address - part.pages.start) as usize;
        part.bytes.get_mut(from..)?.first_chunk_mut()
    }

    /// Puts it into guest memory, which is new: the pages of `constants`, in their order, apart.
    pub fn place(&self, memory: &GuestMemory, constants: &[Range<u64>]) -> Result<(), LoaderError> {
        let mut placed = 0;
        for part in &self.0 {
            let mut rest = part.pages.clone();
            for range in constants {
                if rest.start > range.start || range.end > rest.end {
                    continue;
                }
                memory.write(IMAGE_START + rest.start, part.within(&(rest.start..range.start)))?;
                part.set_apart(memory, range, Protection::Read)?;
                rest.start = range.end;
                placed += 1;
            }
            memory.write(IMAGE_START + rest.start, part.within(&rest))?;
        }
        match placed == constants.len() {
            true => Ok(()),
            false => Err(LoaderError::Bad("what is constant is no part of what is relocated")),
        }
    }
}
