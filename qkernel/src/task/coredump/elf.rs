//! The layout of a core dump: an ELF file with a segment of notes and one for each range of memory.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{S_IXGRP, S_IXOTH, S_IXUSR};
use object::LittleEndian as LE;
use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, ELFOSABI_NONE, EM_X86_64, ET_CORE, EV_CURRENT, FileFlags,
    FileHeader64, Ident, PF_R, PF_W, PF_X, PT_LOAD, PT_NOTE, ProgramFlags, ProgramHeader64,
    SymbolSection,
};
use object::{U16, U32, U64, pod};
use qlib::{PAGE_SIZE, Va};

use crate::fs::file::file_of;
use crate::mm::discard::PageState;
use crate::mm::{AddressSpace, Prot, Vma, VmaFlags};
use crate::task::vdso;

type Header = FileHeader64<LE>;
type ProgramHeader = ProgramHeader64<LE>;

/// Some tools take more for a mistake (PN_XNUM).
const MOST_SEGMENTS: usize = 65_000;

/// Bits of coredump_filter.
const ANONYMOUS_PRIVATE: u32 = 1;
const ANONYMOUS_SHARED: u32 = 2;
const FILE_PRIVATE: u32 = 4;
const FILE_SHARED: u32 = 8;
const ELF_HEADERS: u32 = 16;

/// A range of memory.
pub(super) struct Segment {
    pub vma: Vma,
    /// So much of it is in the file, in bytes.
    pub bytes: u64,
    /// Where in the file.
    pub offset: u64,
}

/// All ranges, with how much of each the filter has in the file, and no place in it yet
/// ([`lay_out`]).
pub(super) fn segments(mm: &Arc<AddressSpace>, filter: u32) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut at = Va(0);
    while let Some(vma) = mm.range_after(at).filter(|_| segments.len() < MOST_SEGMENTS) {
        at = vma.end;
        let bytes = dumped_bytes(mm, &vma, filter);
        segments.push(Segment { vma, bytes, offset: 0 });
    }
    segments.extend(vdso::of_platform().map(|vma| Segment { bytes: vma.len(), vma, offset: 0 }));
    segments
}

/// How much of a range is to be in the file, as Linux decides it (vma_dump_size).
fn dumped_bytes(mm: &AddressSpace, vma: &Vma, filter: u32) -> u64 {
    let whole = |bit: u32| if filter & bit != 0 { vma.len() } else { 0 };
    if vma.flags.contains(VmaFlags::DONT_DUMP) {
        return 0;
    }
    let Some(backing) = &vma.backing else { return whole(ANONYMOUS_PRIVATE) };
    let attributes = file_of(backing).and_then(|file| file.attributes().ok());
    if vma.is_shared() {
        let has_name = attributes.is_some_and(|attributes| attributes.nlink > 0);
        return whole(if has_name { FILE_SHARED } else { ANONYMOUS_SHARED });
    }
    // What is no file's is the kernel's own (the vDSO): debuggers want it.
    if attributes.is_none() && backing.file.is_none() {
        return vma.len();
    }
    if filter & ANONYMOUS_PRIVATE != 0 && was_written(mm, vma) {
        return vma.len();
    }
    if filter & FILE_PRIVATE != 0 {
        return vma.len();
    }
    let is_program = attributes.is_some_and(|file| file.mode & (S_IXUSR | S_IXGRP | S_IXOTH) != 0);
    let has_header = || mm.read::<[u8; 4]>(vma.start).is_ok_and(|magic| magic == *b"\x7fELF");
    let wants_header = filter & ELF_HEADERS != 0 && backing.first_page == 0;
    if wants_header && vma.prot.contains(Prot::READ) && (is_program || has_header()) {
        return PAGE_SIZE.min(vma.len());
    }
    0
}

/// True if a private range of a file has pages of its own.
fn was_written(mm: &AddressSpace, vma: &Vma) -> bool {
    const BYTES: u64 = 512 * PAGE_SIZE;
    let mut at = vma.start;
    while at < vma.end {
        let end = (at + BYTES).min(vma.end);
        let is_own = |state: &PageState| matches!(state, PageState::Anonymous | PageState::Swapped);
        if mm.page_states(at, end).iter().any(is_own) {
            return true;
        }
        at = end;
    }
    false
}

/// The pages of a segment from `from` bytes on, `len` bytes of them: where in it each run lies, and
/// its bytes. What was never touched, or cannot be read, is a hole.
pub(super) fn content(
    mm: &AddressSpace,
    segment: &Segment,
    from: u64,
    len: u64,
) -> Vec<(u64, Vec<u8>)> {
    let start = segment.vma.start + from;
    let states = mm.page_states(start, start + len);
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for (index, state) in states.into_iter().enumerate() {
        let at = from + index as u64 * PAGE_SIZE;
        let mut page = alloc::vec![0; PAGE_SIZE as usize];
        // What was never touched is not made for the dump.
        let is_hole = segment.vma.backing.is_none() && state == PageState::Nothing;
        if is_hole || mm.read_bytes(segment.vma.start + at, &mut page).is_err() {
            continue;
        }
        match runs.last_mut() {
            Some((begin, bytes)) if *begin + bytes.len() as u64 == at => bytes.append(&mut page),
            _ => runs.push((at, page)),
        }
    }
    runs
}

/// Gives segments their place in the file behind the headers and `notes`.
pub(super) fn lay_out(segments: &mut [Segment], notes: &[u8]) {
    let mut offset =
        (notes_offset(segments.len()) + notes.len() as u64).next_multiple_of(PAGE_SIZE);
    for segment in segments {
        segment.offset = offset;
        offset += segment.bytes;
    }
}

fn notes_offset(segments: usize) -> u64 {
    (size_of::<Header>() + (segments + 1) * size_of::<ProgramHeader>()) as u64
}

/// The beginning of the file: headers and notes.
pub(super) fn head(segments: &[Segment], notes: &[u8]) -> Vec<u8> {
    let header = Header {
        e_ident: Ident {
            magic: ELFMAG,
            class: ELFCLASS64,
            data: ELFDATA2LSB,
            version: EV_CURRENT,
            os_abi: ELFOSABI_NONE,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(LE, ET_CORE),
        e_machine: U16::new(LE, EM_X86_64),
        e_version: U32::new(LE, EV_CURRENT.0.into()),
        e_entry: U64::new(LE, 0),
        e_phoff: U64::new(LE, size_of::<Header>() as u64),
        e_shoff: U64::new(LE, 0),
        e_flags: U32::new(LE, FileFlags(0)),
        e_ehsize: U16::new(LE, size_of::<Header>() as u16),
        e_phentsize: U16::new(LE, size_of::<ProgramHeader>() as u16),
        e_phnum: U16::new(LE, (segments.len() + 1) as u16),
        e_shentsize: U16::new(LE, 0),
        e_shnum: U16::new(LE, 0),
        e_shstrndx: U16::new(LE, SymbolSection(0)),
    };
    let part = |kind, flags, offset, vaddr, (filesz, memsz), align| ProgramHeader {
        p_type: U32::new(LE, kind),
        p_flags: U32::new(LE, flags),
        p_offset: U64::new(LE, offset),
        p_vaddr: U64::new(LE, vaddr),
        p_paddr: U64::new(LE, 0),
        p_filesz: U64::new(LE, filesz),
        p_memsz: U64::new(LE, memsz),
        p_align: U64::new(LE, align),
    };
    let mut bytes = pod::bytes_of(&header).to_vec();
    let at = notes_offset(segments.len());
    let note = part(PT_NOTE, ProgramFlags(0), at, 0, (notes.len() as u64, 0), 4);
    bytes.extend_from_slice(pod::bytes_of(&note));
    for Segment { vma, bytes: filesz, offset } in segments {
        let flag = |prot, flag| if vma.prot.contains(prot) { flag } else { ProgramFlags(0) };
        let flags = flag(Prot::READ, PF_R) | flag(Prot::WRITE, PF_W) | flag(Prot::EXEC, PF_X);
        let load = part(PT_LOAD, flags, *offset, vma.start.0, (*filesz, vma.len()), PAGE_SIZE);
        bytes.extend_from_slice(pod::bytes_of(&load));
    }
    bytes.extend_from_slice(notes);
    bytes.resize(bytes.len().next_multiple_of(PAGE_SIZE as usize), 0);
    bytes
}
