//! ELF executables: reading the headers, mapping the segments (elf(5)).

use alloc::sync::Arc;
use alloc::vec::Vec;

use qlib::{PAGE_SHIFT, PAGE_SIZE, Va};

use crate::abi::abi_struct;
use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::io::IoBuffer;
use crate::mm::map::Place;
use crate::mm::vma::FileMapping;
use crate::mm::{AddressSpace, Prot, Vma, VmaFlags};

const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;
/// As Linux: the program headers must fit in one page's worth.
const MAX_HEADERS_BYTES: usize = 4096;

abi_struct! {
    /// Elf64_Ehdr.
    pub struct FileHeader {
        pub ident: [u8; 16],
        pub kind: u16,
        pub machine: u16,
        pub version: u32,
        pub entry: u64,
        pub phoff: u64,
        pub shoff: u64,
        pub flags: u32,
        pub ehsize: u16,
        pub phentsize: u16,
        pub phnum: u16,
        pub shentsize: u16,
        pub shnum: u16,
        pub shstrndx: u16,
    }
}

abi_struct! {
    /// Elf64_Phdr.
    pub struct ProgramHeader {
        pub kind: u32,
        pub flags: u32,
        pub offset: u64,
        pub vaddr: u64,
        pub paddr: u64,
        pub filesz: u64,
        pub memsz: u64,
        pub align: u64,
    }
}

/// Reads exactly `out.len()` bytes at `offset`; ENOEXEC when the file is shorter.
pub fn read_exact(file: &OpenFile, offset: u64, out: &mut [u8]) -> Result {
    let mut done = 0;
    while done < out.len() {
        let mut buffer = IoBuffer::kernel(&mut out[done..]);
        match file.ops.read(file, &mut buffer, offset + done as u64)? {
            0 => return Err(Errno::ENOEXEC),
            count => done += count,
        }
    }
    Ok(())
}

/// The headers of an executable.
#[derive(Debug)]
pub struct Elf {
    /// File header.
    pub header: FileHeader,
    /// Program headers.
    pub segments: Vec<ProgramHeader>,
    /// PT_INTERP: the path of the dynamic loader.
    pub interpreter: Option<Vec<u8>>,
    /// The stack is to be executable (PT_GNU_STACK).
    pub executable_stack: bool,
}

impl Elf {
    /// Reads and checks the headers.
    pub fn read(file: &OpenFile) -> Result<Elf> {
        // On the heap, for the host writes to it.
        let mut bytes = alloc::vec![0; size_of::<FileHeader>()];
        read_exact(file, 0, &mut bytes)?;
        let header: FileHeader = zerocopy::FromBytes::read_from_bytes(&bytes).map_err(|_| Errno::ENOEXEC)?;
        let is_elf64 = header.ident[..6] == [0x7f, b'E', b'L', b'F', 2, 1];
        if !is_elf64 || header.machine != EM_X86_64 || !matches!(header.kind, ET_EXEC | ET_DYN) {
            return Err(Errno::ENOEXEC);
        }
        let table_bytes = usize::from(header.phnum) * size_of::<ProgramHeader>();
        if usize::from(header.phentsize) != size_of::<ProgramHeader>()
            || table_bytes == 0
            || table_bytes > MAX_HEADERS_BYTES
        {
            return Err(Errno::ENOEXEC);
        }
        let mut table = alloc::vec![0; table_bytes];
        read_exact(file, header.phoff, &mut table)?;
        let segments: Vec<ProgramHeader> = table
            .chunks_exact(size_of::<ProgramHeader>())
            .filter_map(|chunk| zerocopy::FromBytes::read_from_bytes(chunk).ok())
            .collect();
        let mut elf = Elf { header, segments, interpreter: None, executable_stack: false };
        for segment in &elf.segments {
            match segment.kind {
                PT_INTERP => {
                    if !(2..=4096).contains(&segment.filesz) {
                        return Err(Errno::ENOEXEC);
                    }
                    let mut path = alloc::vec![0; segment.filesz as usize];
                    read_exact(file, segment.offset, &mut path)?;
                    if path.pop() != Some(0) {
                        return Err(Errno::ENOEXEC);
                    }
                    elf.interpreter = Some(path);
                }
                PT_GNU_STACK => elf.executable_stack = segment.flags & PF_X != 0,
                _ => {}
            }
        }
        Ok(elf)
    }

    /// Whether it can be loaded anywhere.
    pub fn is_relocatable(&self) -> bool {
        self.header.kind == ET_DYN
    }

    fn loads(&self) -> impl Iterator<Item = &ProgramHeader> {
        self.segments.iter().filter(|s| s.kind == PT_LOAD && s.memsz > 0)
    }

    /// First page and end of all segments, as linked; ENOEXEC when there is none or they are nonsense.
    fn extent(&self) -> Result<(u64, u64)> {
        let (mut low, mut high) = (u64::MAX, 0);
        for segment in self.loads() {
            let end = segment.vaddr.checked_add(segment.memsz).ok_or(Errno::ENOEXEC)?;
            if segment.filesz > segment.memsz || end >= 1 << 47 {
                return Err(Errno::ENOEXEC);
            }
            low = low.min(segment.vaddr & !(PAGE_SIZE - 1));
            high = high.max(end);
        }
        if low >= high { Err(Errno::ENOEXEC) } else { Ok((low, high)) }
    }

    /// Maps it into `mm`, at `base` if it is relocatable (`None`: anywhere): what must be added to its linked addresses, and its end.
    pub fn load(&self, mm: &AddressSpace, file: &Arc<OpenFile>, base: Option<Va>) -> Result<(u64, Va)> {
        let (low, high) = self.extent()?;
        let bias = if self.is_relocatable() {
            // Reserve the whole extent first, so that the segments keep their distances.
            let place = base.map_or(Place::Hint(Va(0)), Place::Hint);
            let whole = mm.map(place, high - low, Vma::anonymous(Prot::empty(), VmaFlags::empty()), u64::MAX)?;
            mm.unmap(whole, (high - low).next_multiple_of(PAGE_SIZE))?;
            whole.0.wrapping_sub(low)
        } else {
            0
        };
        let mapping = file.ops.mapping(file, false)?;
        for segment in self.loads() {
            let mut prot = Prot::empty();
            prot.set(Prot::READ, segment.flags & PF_R != 0);
            prot.set(Prot::WRITE, segment.flags & PF_W != 0);
            prot.set(Prot::EXEC, segment.flags & PF_X != 0);
            let start = Va(segment.vaddr.wrapping_add(bias));
            let file_end = start + segment.filesz;
            let end = start + segment.memsz;
            let first = start.page_floor();
            let Some(file_page_end) = file_end.page_ceil() else { return Err(Errno::ENOEXEC) };
            if (segment.offset ^ segment.vaddr) & (PAGE_SIZE - 1) != 0 {
                return Err(Errno::ENOEXEC);
            }
            if segment.filesz > 0 {
                let backing = FileMapping {
                    mapping: mapping.clone(),
                    file: Some(file.clone()),
                    first_page: segment.offset >> PAGE_SHIFT,
                };
                let vma = Vma::of_file(prot, Prot::all(), VmaFlags::empty(), backing);
                mm.map(Place::Fixed(first), file_page_end - first, vma, u64::MAX)?;
                if end > file_end && prot.contains(Prot::WRITE) {
                    // To the end of the page: the dynamic loader takes the rest of its last page for its first objects.
                    mm.write_zeros(file_end, (file_page_end - file_end) as usize)?;
                }
            }
            let anonymous_start = if segment.filesz > 0 { file_page_end } else { first };
            if end > anonymous_start {
                let vma = Vma::anonymous(prot, VmaFlags::empty());
                mm.map(Place::Fixed(anonymous_start), end - anonymous_start, vma, u64::MAX)?;
            }
        }
        Ok((bias, Va(high.wrapping_add(bias))))
    }

    /// The address of the program headers in memory, for AT_PHDR.
    pub fn headers_address(&self, bias: u64) -> u64 {
        let phoff = self.header.phoff;
        self.loads()
            .find(|s| s.offset <= phoff && phoff < s.offset.saturating_add(s.filesz))
            .map_or(0, |s| (phoff - s.offset).wrapping_add(s.vaddr).wrapping_add(bias))
    }
}
