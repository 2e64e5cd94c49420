//! Puts the kernel image into guest memory: [its contents](contents) are relocated, the table of
//! operations is filled in, and each page comes to its place with the protection that it keeps;
//! then lays out what follows it (boot information, mailbox, free memory).
//!
//! What the image never writes (text, constants, tables of functions) is read-only before its first
//! instruction, and no part of the file behind guest RAM: neither a stray write of the kernel nor a
//! program that is shown the wrong frame can change it.

mod contents;

use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::AsFd;

use object::Endianness;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Rela};
use qlib::platform::{ABI_VERSION, KernelEntry, NOTE_NAME, NOTE_TYPE, PlatformOps};
use qlib::{Gpa, PAGE_SIZE};

use self::contents::{Part, Writable};
use super::memory::{GuestMemory, MemoryError, Protection, RAM_UNIT};

/// Guest physical address at which the image's ELF address 0 lies. Not 0, so that a null physical
/// address is a bug that shows.
pub const IMAGE_START: Gpa = Gpa(2 << 20);
/// Size of the buffer for control requests, in bytes; more than the longest frame.
pub const MAILBOX_BYTES: u64 = 256 << 10;
/// No kernel image is larger, in bytes of memory.
const MAX_IMAGE_BYTES: u64 = 64 << 20;

/// Page aligned, so that its pages can be mapped from the binary's own file.
#[repr(C, align(4096))]
struct Aligned<T: ?Sized>(T);

static IMAGE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/qkernel.elf")));

/// An image in the place of the one that was built with this binary, in builds for tests.
#[cfg(debug_assertions)]
static OTHER: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();

/// Has [`embedded_image`] be what the file holds. Builds for releases have no such thing.
///
/// # Errors
/// When it cannot be read, or another was.
#[cfg(debug_assertions)]
pub fn use_image(file: &std::path::Path) -> std::io::Result<()> {
    OTHER.set(std::fs::read(file)?).map_err(|_| std::io::ErrorKind::AlreadyExists.into())
}

/// The image that was built with this binary.
pub fn embedded_image() -> &'static [u8] {
    #[cfg(debug_assertions)]
    if let Some(other) = OTHER.get() {
        return other;
    }
    &IMAGE.0
}

/// Puts a segment that is never written into guest memory, mapped from this binary's own file if
/// the image is the embedded one: one copy for all sandboxes of the host (section 3.5 of the
/// paper). Where that does not work, each has a copy.
fn place_constant(
    memory: &GuestMemory,
    image: &[u8],
    own: Option<&OwnFile>,
    (segment, endian): (&Segment, Endianness),
    protection: Protection,
) -> Result<(), LoaderError> {
    let Range { start, end } = pages_of(segment, endian);
    let skew = segment.p_vaddr(endian) - start;
    let offset =
        own.and_then(|own| (own.image_offset + segment.p_offset(endian)).checked_sub(skew));
    if let (Some(own), Some(offset)) = (own, offset.filter(|o| o.is_multiple_of(PAGE_SIZE))) {
        let executable = protection == Protection::ReadExec;
        let file = own.file.as_fd();
        match memory.share(IMAGE_START + start, end - start, executable, file, offset) {
            Ok(()) => return Ok(()),
            Err(error) => {
                tracing::warn!("the kernel image is not shared with other sandboxes: {error}")
            }
        }
    }
    Part::of(image, segment, endian)?.set_all_apart(memory, protection)
}

/// This binary's own file, and where the embedded image lies in it.
#[derive(Debug)]
pub struct OwnFile {
    file: std::fs::File,
    image_offset: u64,
}

impl OwnFile {
    /// Opens it, if [`embedded_image`] comes from it and the host tells.
    pub fn open() -> Option<Self> {
        let image = embedded_image().as_ptr();
        if !std::ptr::eq(image, IMAGE.0.as_ptr()) {
            return None;
        }
        let image_offset = file_offset(image as u64)?;
        Some(Self { file: std::fs::File::open("/proc/self/exe").ok()?, image_offset })
    }
}

/// The offset of the byte at `address` in the file that this process maps there.
fn file_offset(address: u64) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    maps.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        let offset = hex(fields.nth(1)?)?;
        (start <= address && address < end).then_some(offset + (address - start))
    })
}

/// Where everything lies after loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedKernel {
    /// The entry point.
    pub entry: Gpa,
    /// [`KernelEntry::dispatch`].
    pub dispatch: Gpa,
    /// Where the image's [`KernelEntry`] lies.
    pub table: Gpa,
    /// End (exclusive) of the image.
    pub image_end: Gpa,
    /// Where the boot information goes; one page.
    pub boot_info: Gpa,
    /// Where control requests go; [`MAILBOX_BYTES`].
    pub mailbox: Gpa,
    /// Where what the platform asked to be left free begins.
    pub extra: Gpa,
    /// The image's pages and their rights.
    pub protections: Vec<(Gpa, u64, Protection)>,
    /// First 4 MiB-aligned address after all of it.
    pub free_start: Gpa,
}

impl LoadedKernel {
    /// Has what is not writable stay so for the process' life. Guest memory cannot be unmapped
    /// whole afterwards.
    ///
    /// # Errors
    /// When the host refuses, but not where it does not know how.
    pub fn seal(&self, memory: &GuestMemory) -> Result<(), LoaderError> {
        for (gpa, len, protection) in &self.protections {
            if *protection != Protection::ReadWrite {
                memory.seal(*gpa, *len)?;
            }
        }
        Ok(())
    }
}

/// Why an image was refused.
#[derive(Debug, thiserror::Error)]
pub enum LoaderError {
    /// This binary was built without one.
    #[error("this binary was built without a kernel image (QUARK_KERNEL_IMAGE=none)")]
    NoImage,
    /// It is not what it should be.
    #[error("bad kernel image: {0}")]
    Bad(&'static str),
    /// It does not parse.
    #[error("bad kernel image: {0}")]
    Parse(#[from] object::read::Error),
    /// Guest memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The host refused.
    #[error("cannot set up the kernel image: {0}")]
    Host(#[from] rustix::io::Errno),
    /// RAM is too small.
    #[error("guest RAM of {0} bytes is too small for the kernel")]
    NoRoom(u64),
}

type Header = elf::FileHeader64<Endianness>;
type Segment = elf::ProgramHeader64<Endianness>;

/// The table of operations as it stands in a kernel image.
pub type OpsBytes = [u8; size_of::<PlatformOps>()];

/// Where an image is to run, and with what beside it: what a platform says of it.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// The address that guest physical address 0 has for the kernel.
    pub base: u64,
    /// Bytes to be left free behind the mailbox; whole pages.
    pub extra_bytes: u64,
    /// The operations, where they are not the image's own.
    pub ops: Option<OpsBytes>,
}

/// Loads `image`. `own_file`: where it is the embedded one, to map what is never written of it from
/// there.
pub fn load(
    memory: &GuestMemory,
    image: &[u8],
    placement: &Placement,
    own_file: Option<&OwnFile>,
) -> Result<LoadedKernel, LoaderError> {
    if image.is_empty() {
        return Err(LoaderError::NoImage);
    }
    let header = Header::parse(image)?;
    let endian = header.endian()?;
    check_header(header, endian)?;
    let segments = header.program_headers(endian, image)?;
    let image_bytes = check_segments(segments, endian)?;

    let image_end = IMAGE_START + image_bytes.next_multiple_of(PAGE_SIZE);
    let boot_info = image_end;
    let mailbox = boot_info + PAGE_SIZE;
    let extra = mailbox + MAILBOX_BYTES;
    let free_start = Gpa((extra.0 + placement.extra_bytes).next_multiple_of(RAM_UNIT));
    if free_start.0 + RAM_UNIT > memory.ram_bytes() {
        return Err(LoaderError::NoRoom(memory.ram_bytes()));
    }

    let mut writable = Writable::of(image, segments, endian)?;
    relocate(&mut writable, image, segments, endian, placement.base)?;
    let constants = constants_after_relocation(segments, endian);
    let (table, dispatch) =
        fill_table(&mut writable, &constants, (image, segments, endian), placement)?;
    if !is_code(segments, endian, header.e_entry(endian)) {
        return Err(LoaderError::Bad("its entry point is no code of its own"));
    }
    writable.place(memory, &constants)?;
    let mut protections = Vec::new();
    let mut note = |Range { start, end }: Range<u64>, protection: Protection| {
        protections.push((IMAGE_START + start, end - start, protection));
    };
    for segment in loads(segments, endian) {
        let flags = segment.p_flags(endian);
        let protection = match (flags.contains(elf::PF_W), flags.contains(elf::PF_X)) {
            (true, _) => Protection::ReadWrite,
            (false, true) => Protection::ReadExec,
            (false, false) => Protection::Read,
        };
        if protection != Protection::ReadWrite {
            place_constant(memory, image, own_file, (segment, endian), protection)?;
        }
        note(pages_of(segment, endian), protection);
    }
    constants.into_iter().for_each(|range| note(range, Protection::Read));
    let entry = IMAGE_START + header.e_entry(endian);
    Ok(LoadedKernel {
        entry,
        dispatch,
        table,
        image_end,
        boot_info,
        mailbox,
        extra,
        protections,
        free_start,
    })
}

/// The pages that a segment lies in, relative to the image.
fn pages_of(segment: &Segment, endian: Endianness) -> Range<u64> {
    let start = segment.p_vaddr(endian);
    start & !(PAGE_SIZE - 1)..(start + segment.p_memsz(endian)).next_multiple_of(PAGE_SIZE)
}

/// The whole pages of PT_GNU_RELRO segments. The linker pads them to that; a page that one does not
/// fill stays writable.
fn constants_after_relocation(segments: &[Segment], endian: Endianness) -> Vec<Range<u64>> {
    let pages = |s: &Segment| {
        let whole = |address: u64| address & !(PAGE_SIZE - 1);
        whole(s.p_vaddr(endian))..whole(s.p_vaddr(endian) + s.p_memsz(endian))
    };
    let constants = segments.iter().filter(|s| s.p_type(endian) == elf::PT_GNU_RELRO).map(pages);
    constants.filter(|range| !range.is_empty()).collect()
}

/// True if the address, relative to the image, lies in its code.
fn is_code(segments: &[Segment], endian: Endianness, address: u64) -> bool {
    loads(segments, endian).any(|s| {
        s.p_flags(endian).contains(elf::PF_X)
            && address
                .checked_sub(s.p_vaddr(endian))
                .is_some_and(|offset| offset < s.p_filesz(endian))
    })
}

/// Finds the image's [`KernelEntry`], which is to be among what is constant, and puts the
/// operations there: where it lies, and the kernel's function for events.
fn fill_table(
    writable: &mut Writable,
    constants: &[Range<u64>],
    (image, segments, endian): (&[u8], &[Segment], Endianness),
    placement: &Placement,
) -> Result<(Gpa, Gpa), LoaderError> {
    let at = find_table(image, segments, endian)?
        .ok_or(LoaderError::Bad("it does not say where its entries are"))?;
    let bytes = size_of::<KernelEntry>() as u64;
    let is_constant = constants.iter().any(|range| {
        range.start <= at && at.checked_add(bytes).is_some_and(|stop| stop <= range.end)
    });
    if !is_constant || !at.is_multiple_of(PAGE_SIZE) {
        return Err(LoaderError::Bad("its table of entries could be written"));
    }
    let is_missing = LoaderError::Bad("its table of entries is not in the file");
    let version = writable.at(at + offset_of!(KernelEntry, version) as u64);
    if version.is_none_or(|version| u32::from_le_bytes(*version) != ABI_VERSION) {
        return Err(LoaderError::Bad("it is of another version"));
    }
    let Some(dispatch) = writable.at(at + offset_of!(KernelEntry, dispatch) as u64) else {
        return Err(is_missing);
    };
    let dispatch =
        u64::from_le_bytes(*dispatch).wrapping_sub(placement.base).wrapping_sub(IMAGE_START.0);
    if !is_code(segments, endian, dispatch) {
        return Err(LoaderError::Bad("its function for events is no code of its own"));
    }
    if let Some(ops) = &placement.ops {
        *writable.at(at + offset_of!(KernelEntry, ops) as u64).ok_or(is_missing)? = *ops;
    }
    Ok((IMAGE_START + at, IMAGE_START + dispatch))
}

/// Where the image's note says that the table lies.
fn find_table(
    image: &[u8],
    segments: &[Segment],
    endian: Endianness,
) -> Result<Option<u64>, LoaderError> {
    for segment in segments {
        let data = segment
            .data(endian, image)
            .map_err(|()| LoaderError::Bad("a segment lies outside the file"))?;
        let Some(mut notes) = segment.notes(endian, image)? else { continue };
        while let Some(note) = notes.next()? {
            let Ok(distance) = <[u8; 4]>::try_from(note.desc()) else { continue };
            if note.name() != NOTE_NAME || note.n_type(endian) != elf::NoteType(NOTE_TYPE) {
                continue;
            }
            let offset =
                (note.desc().as_ptr() as usize).wrapping_sub(data.as_ptr() as usize) as u64;
            let from = segment.p_vaddr(endian).wrapping_add(offset);
            return Ok(Some(from.wrapping_add_signed(i32::from_le_bytes(distance).into())));
        }
    }
    Ok(None)
}

fn check_header(header: &Header, endian: Endianness) -> Result<(), LoaderError> {
    if !header.is_little_endian() || header.e_machine(endian) != elf::EM_X86_64 {
        return Err(LoaderError::Bad("it is not for x86-64"));
    }
    if header.e_type(endian) != elf::ET_DYN {
        return Err(LoaderError::Bad("it is not position independent"));
    }
    Ok(())
}

fn loads(segments: &[Segment], endian: Endianness) -> impl Iterator<Item = &Segment> {
    segments.iter().filter(move |s| s.p_type(endian) == elf::PT_LOAD)
}

/// Checks the segments; the size of the image in memory.
fn check_segments(segments: &[Segment], endian: Endianness) -> Result<u64, LoaderError> {
    let mut end = 0u64;
    for s in segments {
        match s.p_type(endian) {
            elf::PT_INTERP => return Err(LoaderError::Bad("it wants a dynamic loader")),
            elf::PT_TLS => return Err(LoaderError::Bad("it has thread-local storage")),
            _ => {}
        }
        let stop =
            s.p_vaddr(endian).checked_add(s.p_memsz(endian)).filter(|e| *e <= MAX_IMAGE_BYTES);
        let stop = stop.ok_or(LoaderError::Bad("a segment lies too high"))?;
        if s.p_type(endian) != elf::PT_LOAD {
            continue;
        }
        let flags = s.p_flags(endian);
        if flags.contains(elf::PF_W) && flags.contains(elf::PF_X) {
            return Err(LoaderError::Bad("a segment is both writable and executable"));
        }
        if s.p_vaddr(endian) & !(PAGE_SIZE - 1) < end.next_multiple_of(PAGE_SIZE) && end != 0 {
            return Err(LoaderError::Bad("segments share a page or are out of operation"));
        }
        if s.p_paddr(endian) != s.p_vaddr(endian) || s.p_filesz(endian) > s.p_memsz(endian) {
            return Err(LoaderError::Bad("a segment's addresses or sizes disagree"));
        }
        if !flags.contains(elf::PF_W) && s.p_filesz(endian) != s.p_memsz(endian) {
            return Err(LoaderError::Bad("the file has a part only of what is never written"));
        }
        end = stop;
    }
    if end == 0 { Err(LoaderError::Bad("it has nothing to load")) } else { Ok(end) }
}

/// Applies the relocations. A static position-independent image has only those that add the base.
fn relocate(
    writable: &mut Writable,
    image: &[u8],
    segments: &[Segment],
    endian: Endianness,
    base: u64,
) -> Result<(), LoaderError> {
    let mut table = 0;
    let mut table_bytes = 0;
    for segment in segments {
        for entry in segment.dynamic(endian, image)?.unwrap_or_default() {
            match entry.d_tag(endian) {
                elf::DT_RELA => table = entry.d_val(endian),
                elf::DT_RELASZ => table_bytes = entry.d_val(endian),
                elf::DT_NEEDED => return Err(LoaderError::Bad("it needs a shared library")),
                elf::DT_REL | elf::DT_JMPREL | elf::DT_RELR => {
                    return Err(LoaderError::Bad("it has relocations of an unknown form"));
                }
                _ => {}
            }
        }
    }
    if table_bytes == 0 {
        return Ok(());
    }
    let bytes = loads(segments, endian)
        .find_map(|s| s.data_range(endian, image, table, table_bytes).transpose())
        .transpose()
        .map_err(|()| LoaderError::Bad("a segment lies outside the file"))?
        .ok_or(LoaderError::Bad("its relocations lie outside its segments"))?;
    let count = bytes.len() / size_of::<elf::Rela64<Endianness>>();
    let (entries, _) = object::pod::slice_from_bytes::<elf::Rela64<Endianness>>(bytes, count)
        .map_err(|()| LoaderError::Bad("its relocations are misaligned"))?;
    let base = base + IMAGE_START.0;
    for entry in entries {
        if entry.r_type(endian, false) != elf::R_X86_64_RELATIVE || entry.r_sym(endian, false) != 0
        {
            return Err(LoaderError::Bad("it has a relocation other than R_X86_64_RELATIVE"));
        }
        let word = writable.at(entry.r_offset(endian));
        let word = word.ok_or(LoaderError::Bad("it has a relocation where nothing is written"))?;
        *word = base.wrapping_add_signed(entry.r_addend(endian)).to_le_bytes();
    }
    Ok(())
}

#[cfg(test)]
mod tests;
