//! ELF executables: reading the headers, mapping the segments (elf(5)).

use alloc::sync::Arc;
use alloc::vec::Vec;

use object::LittleEndian as LE;
use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, ET_DYN, ET_EXEC, FileHeader64, PF_R, PF_W, PF_X,
    PT_GNU_STACK, PT_INTERP, PT_LOAD, ProgramFlags, ProgramHeader64, ProgramType,
};
use object::pod;
use qlib::{PAGE_SHIFT, PAGE_SIZE, Va};

use crate::errno::{Errno, Result};
use crate::fs::OpenFile;
use crate::io::IoBuffer;
use crate::mm::map::Placement;
use crate::mm::vma::FileMapping;
use crate::mm::{AddressSpace, Prot, Vma, VmaFlags};

/// As Linux: the program headers must fit in one page's worth.
const MAX_HEADERS_BYTES: usize = 4096;

/// A loadable or descriptive part of the file (Elf64_Phdr), as far as it is of use here.
#[derive(Clone, Copy, Debug)]
struct Segment {
    kind: ProgramType,
    flags: ProgramFlags,
    offset: u64,
    vaddr: u64,
    filesz: u64,
    memsz: u64,
}

impl Segment {
    fn of(header: &ProgramHeader64<LE>) -> Segment {
        Segment {
            kind: header.p_type.get(LE),
            flags: header.p_flags.get(LE),
            offset: header.p_offset.get(LE),
            vaddr: header.p_vaddr.get(LE),
            filesz: header.p_filesz.get(LE),
            memsz: header.p_memsz.get(LE),
        }
    }
}

/// Bytes of a [`Head`]: what linkers put first, the headers and the dynamic loader's path, and the
/// first line of a script.
const HEAD_BYTES: usize = 1024;

/// The beginning of a program's file, which is read once: each read may be a host call.
pub struct Head<'a> {
    file: &'a OpenFile,
    bytes: Vec<u8>,
}

impl<'a> Head<'a> {
    /// Reads it. It is shorter if the file is.
    pub fn read(file: &'a OpenFile) -> Result<Self> {
        // On the heap, for the host writes to it.
        let mut bytes = alloc::vec![0; HEAD_BYTES];
        let length = file.ops.read(file, &mut IoBuffer::kernel(&mut bytes), 0)?;
        bytes.truncate(length);
        Ok(Head { file, bytes })
    }

    /// What was read.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// So many bytes of the file at `offset`, wherever that is; ENOEXEC when the file is shorter.
    fn exact(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(known) = self.bytes.get(begin..begin.saturating_add(length)) {
            return Ok(known.to_vec());
        }
        let mut out = alloc::vec![0; length];
        let mut done = 0;
        while done < length {
            let mut buffer = IoBuffer::kernel(&mut out[done..]);
            match self.file.ops.read(self.file, &mut buffer, offset.saturating_add(done as u64))? {
                0 => return Err(Errno::ENOEXEC),
                count => done += count,
            }
        }
        Ok(out)
    }
}

/// The headers of an executable.
#[derive(Debug)]
pub struct Elf {
    /// Where it begins to run, as linked.
    pub entry: u64,
    /// How many program headers there are.
    pub header_count: u16,
    /// Where they lie in the file.
    headers_offset: u64,
    is_relocatable: bool,
    segments: Vec<Segment>,
    /// PT_INTERP: the path of the dynamic loader.
    pub interpreter: Option<Vec<u8>>,
    /// The stack is to be executable (PT_GNU_STACK).
    pub executable_stack: bool,
}

impl Elf {
    /// Reads and checks the headers of a file that begins with `head`.
    pub fn read(head: &Head<'_>) -> Result<Elf> {
        let bytes = head.exact(0, size_of::<FileHeader64<LE>>())?;
        let (header, _) =
            pod::from_bytes::<FileHeader64<LE>>(&bytes).map_err(|()| Errno::ENOEXEC)?;
        let ident = &header.e_ident;
        let is_elf64 =
            ident.magic == ELFMAG && ident.class == ELFCLASS64 && ident.data == ELFDATA2LSB;
        let kind = header.e_type.get(LE);
        if !is_elf64 || header.e_machine.get(LE) != EM_X86_64 || !matches!(kind, ET_EXEC | ET_DYN) {
            return Err(Errno::ENOEXEC);
        }
        let header_count = header.e_phnum.get(LE);
        let table_bytes = usize::from(header_count) * size_of::<ProgramHeader64<LE>>();
        if usize::from(header.e_phentsize.get(LE)) != size_of::<ProgramHeader64<LE>>()
            || table_bytes == 0
            || table_bytes > MAX_HEADERS_BYTES
        {
            return Err(Errno::ENOEXEC);
        }
        let headers_offset = header.e_phoff.get(LE);
        let table = head.exact(headers_offset, table_bytes)?;
        let (table, _) =
            pod::slice_from_bytes::<ProgramHeader64<LE>>(&table, usize::from(header_count))
                .map_err(|()| Errno::ENOEXEC)?;
        let mut elf = Elf {
            entry: header.e_entry.get(LE),
            header_count,
            headers_offset,
            is_relocatable: kind == ET_DYN,
            segments: table.iter().map(Segment::of).collect(),
            interpreter: None,
            executable_stack: false,
        };
        for segment in &elf.segments {
            match segment.kind {
                PT_INTERP => {
                    if !(2..=4096).contains(&segment.filesz) {
                        return Err(Errno::ENOEXEC);
                    }
                    let mut path = head.exact(segment.offset, segment.filesz as usize)?;
                    if path.pop() != Some(0) {
                        return Err(Errno::ENOEXEC);
                    }
                    elf.interpreter = Some(path);
                }
                PT_GNU_STACK => elf.executable_stack = segment.flags.contains(PF_X),
                _ => {}
            }
        }
        Ok(elf)
    }

    /// True if it can be loaded anywhere.
    pub fn is_relocatable(&self) -> bool {
        self.is_relocatable
    }

    fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|s| s.kind == PT_LOAD && s.memsz > 0)
    }

    /// First page and end of all segments, as linked; ENOEXEC when there is none or they are
    /// nonsense.
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

    /// Maps it into `mm`, at `base` if it is relocatable (`None`: anywhere): what must be added to
    /// its linked addresses, and its end.
    pub fn load(
        &self,
        mm: &AddressSpace,
        file: &Arc<OpenFile>,
        base: Option<Va>,
    ) -> Result<(u64, Va)> {
        let (low, high) = self.extent()?;
        let bias = if self.is_relocatable {
            // Reserve the whole extent first, so that the segments keep their distances.
            let place = base.map_or(Placement::Hint(Va(0)), Placement::Hint);
            let whole = mm.map(
                place,
                high - low,
                Vma::anonymous(Prot::empty(), VmaFlags::empty()),
                u64::MAX,
            )?;
            mm.unmap(whole, (high - low).next_multiple_of(PAGE_SIZE))?;
            whole.0.wrapping_sub(low)
        } else {
            0
        };
        let mapping = file.ops.mapping(file, false)?;
        for segment in self.loads() {
            let mut prot = Prot::empty();
            prot.set(Prot::READ, segment.flags.contains(PF_R));
            prot.set(Prot::WRITE, segment.flags.contains(PF_W));
            prot.set(Prot::EXEC, segment.flags.contains(PF_X));
            let start = Va(segment.vaddr.wrapping_add(bias));
            let file_end = start + segment.filesz;
            let end = start + segment.memsz;
            let first = start.page_floor();
            let Some(file_page_end) = file_end.page_ceil() else { return Err(Errno::ENOEXEC) };
            if (segment.offset ^ segment.vaddr) & (PAGE_SIZE - 1) != 0 {
                return Err(Errno::ENOEXEC);
            }
            if segment.filesz > 0 {
                let file_range = segment.offset.checked_add(file_page_end - first);
                if file_range.is_none_or(|end| i64::try_from(end).is_err()) {
                    return Err(Errno::ENOEXEC);
                }
                let backing = FileMapping {
                    mapping: mapping.clone(),
                    file: Some(file.clone()),
                    first_page: segment.offset >> PAGE_SHIFT,
                };
                let vma = Vma::of_file(prot, Prot::all(), VmaFlags::empty(), backing);
                mm.map(Placement::Fixed(first), file_page_end - first, vma, u64::MAX)?;
                if end > file_end && prot.contains(Prot::WRITE) {
                    // To the end of the page: the dynamic loader takes the rest of its last page
                    // for its first objects.
                    mm.write_zeros(file_end, (file_page_end - file_end) as usize)?;
                }
            }
            let anonymous_start = if segment.filesz > 0 { file_page_end } else { first };
            if end > anonymous_start {
                let vma = Vma::anonymous(prot, VmaFlags::empty());
                mm.map(Placement::Fixed(anonymous_start), end - anonymous_start, vma, u64::MAX)?;
            }
        }
        Ok((bias, Va(high.wrapping_add(bias))))
    }

    /// The address of the program headers in memory, for AT_PHDR.
    pub fn headers_address(&self, bias: u64) -> u64 {
        let phoff = self.headers_offset;
        self.loads()
            .find(|s| s.offset <= phoff && phoff < s.offset.saturating_add(s.filesz))
            .map_or(0, |s| (phoff - s.offset).wrapping_add(s.vaddr).wrapping_add(bias))
    }
}
