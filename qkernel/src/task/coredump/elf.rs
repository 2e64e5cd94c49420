//! The layout of a core dump: an ELF file with a segment of notes and one for each range of memory.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general::{S_IXGRP, S_IXOTH, S_IXUSR};
use qlib::{PAGE_SIZE, Va};
use zerocopy::IntoBytes;

use crate::abi::abi_struct;
use crate::fs::file::file_of;
use crate::mm::discard::PageState;
use crate::mm::{AddressSpace, Prot, Vma, VmaFlags};

abi_struct! {
    /// Elf64_Ehdr.
    pub struct Header {
        pub ident: [u8; 16], pub kind: u16, pub machine: u16, pub version: u32, pub entry: u64,
        pub phoff: u64, pub shoff: u64, pub flags: u32, pub ehsize: u16, pub phentsize: u16,
        pub phnum: u16, pub shentsize: u16, pub shnum: u16, pub shstrndx: u16,
    }
}
abi_struct! {
    /// Elf64_Phdr.
    pub struct ProgramHeader {
        pub kind: u32, pub flags: u32, pub offset: u64, pub vaddr: u64, pub paddr: u64,
        pub filesz: u64, pub memsz: u64, pub align: u64,
    }
}

const ET_CORE: u16 = 4;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
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
    /// It has pages that were never touched: they are not made for the dump.
    is_anonymous: bool,
}

/// All ranges, with how much of each the filter has in the file, and no place in it yet
/// ([`lay_out`]).
pub(super) fn segments(mm: &Arc<AddressSpace>, filter: u32) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut at = Va(0);
    while let Some(vma) = mm.range_after(at).filter(|_| segments.len() < MOST_SEGMENTS) {
        at = vma.end;
        let bytes = dumped_bytes(mm, &vma, filter);
        let is_anonymous = vma.backing.is_none();
        segments.push(Segment { vma, bytes, offset: 0, is_anonymous });
    }
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
        let is_hole = segment.is_anonymous && state == PageState::Nothing;
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
    let mut ident = [0; 16];
    // 64 bits, little endian, version 1.
    ident[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let header = Header {
        ident,
        kind: ET_CORE,
        machine: EM_X86_64,
        version: 1,
        phoff: size_of::<Header>() as u64,
        ehsize: size_of::<Header>() as u16,
        phentsize: size_of::<ProgramHeader>() as u16,
        phnum: (segments.len() + 1) as u16,
        ..Header::default()
    };
    let mut bytes = header.as_bytes().to_vec();
    let note = ProgramHeader {
        kind: PT_NOTE,
        offset: notes_offset(segments.len()),
        filesz: notes.len() as u64,
        align: 4,
        ..ProgramHeader::default()
    };
    bytes.extend_from_slice(note.as_bytes());
    for segment in segments {
        let prot = segment.vma.prot;
        let flag = |prot_bit, bit| if prot.contains(prot_bit) { bit } else { 0 };
        let load = ProgramHeader {
            kind: PT_LOAD,
            flags: flag(Prot::READ, 4) | flag(Prot::WRITE, 2) | flag(Prot::EXEC, 1),
            offset: segment.offset,
            vaddr: segment.vma.start.0,
            filesz: segment.bytes,
            memsz: segment.vma.len(),
            align: PAGE_SIZE,
            ..ProgramHeader::default()
        };
        bytes.extend_from_slice(load.as_bytes());
    }
    bytes.extend_from_slice(notes);
    bytes.resize(bytes.len().next_multiple_of(PAGE_SIZE as usize), 0);
    bytes
}
