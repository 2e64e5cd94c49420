use object::{Object, ObjectSymbol};
use proptest::prelude::*;
use rustix::io::Errno;

use super::super::memory::Layout;
use super::*;

fn placement(m: &GuestMemory) -> Placement {
    Placement { base: m.base(), extra_bytes: 0, ops: None }
}

fn memory() -> GuestMemory {
    GuestMemory::new(Layout { base: None, ram_bytes: 4 * RAM_UNIT, window_bytes: 0 }).unwrap()
}

#[test]
fn the_embedded_image_loads_relocated_and_protected() {
    let m = memory();
    let image = embedded_image();
    let loaded = load(&m, image, &placement(&m), None).unwrap();
    assert!(loaded.entry > IMAGE_START && loaded.entry < loaded.image_end);
    assert!(
        loaded.free_start.0.is_multiple_of(RAM_UNIT)
            && loaded.free_start >= loaded.mailbox + MAILBOX_BYTES
    );

    let header = Header::parse(image).unwrap();
    let endian = header.endian().unwrap();
    let segments = header.program_headers(endian, image).unwrap();
    for s in loads(segments, endian) {
        let at = IMAGE_START + s.p_vaddr(endian);
        let relro = segments.iter().any(|r| {
            r.p_type(endian) == elf::PT_GNU_RELRO
                && (r.p_vaddr(endian)..r.p_vaddr(endian) + r.p_memsz(endian))
                    .contains(&s.p_vaddr(endian))
        });
        let writable = s.p_flags(endian).contains(elf::PF_W) && !relro;
        let mut byte = [0];
        m.read(at, &mut byte).unwrap();
        assert_eq!(
            m.write(at, &byte),
            if writable { Ok(()) } else { Err(Errno::FAULT) },
            "segment at {at:?}"
        );
        if !s.p_flags(endian).contains(elf::PF_W) {
            let file = s.data(endian, image).unwrap();
            let mut bytes = vec![0; file.len()];
            m.read(at, &mut bytes).unwrap();
            assert!(bytes == file, "what is not writable is as in the file");
        }
    }
    // Every relocated word points into the image.
    let base = m.base() + IMAGE_START.0;
    let end = m.base() + loaded.image_end.0;
    let file = object::File::parse(image).unwrap();
    let mut count = 0;
    for (offset, relocation) in file.dynamic_relocations().into_iter().flatten() {
        let mut word = [0; 8];
        m.read(IMAGE_START + offset, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), base.wrapping_add_signed(relocation.addend()));
        assert!((base..=end).contains(&u64::from_le_bytes(word)));
        count += 1;
    }
    assert!(count > 0, "an image with tables of functions has relocations");
}

#[test]
fn what_the_image_never_writes_is_no_part_of_guest_ram() {
    let m = memory();
    let ops: OpsBytes = std::array::from_fn(|i| i as u8);
    let with_ops = Placement { ops: Some(ops), ..placement(&m) };
    let loaded = load(&m, embedded_image(), &with_ops, None).unwrap();
    let constant = |gpa: Gpa| {
        let last = loaded
            .protections
            .iter()
            .rfind(|(start, len, _)| (start.0..start.0 + len).contains(&gpa.0));
        last.is_some_and(|(_, _, protection)| *protection != Protection::ReadWrite)
    };
    assert!(constant(loaded.table) && constant(loaded.entry) && constant(loaded.dispatch));
    let mut known = vec![0; size_of::<PlatformOps>()];
    let at = loaded.table + offset_of!(KernelEntry, ops) as u64;
    m.read(at, &mut known).unwrap();
    assert!(known == ops, "the operations are those that it was given");
    assert_eq!(m.write(at, &known), Err(Errno::FAULT));
    // By the file, as a stub sees it, each page is empty, and what is written there is seen by
    // nobody.
    for (start, len, _) in loaded.protections.iter().filter(|(_, _, p)| *p != Protection::ReadWrite)
    {
        for gpa in (start.0..start.0 + len).step_by(PAGE_SIZE as usize) {
            let (mut before, mut behind, mut after) = ([0; 64], [0; 64], [0; 64]);
            m.read(Gpa(gpa), &mut before).unwrap();
            assert_eq!(rustix::io::pread(m.memfd(), &mut behind, gpa), Ok(64));
            assert_eq!(behind, [0; 64], "{gpa:#x}");
            assert_eq!(rustix::io::pwrite(m.memfd(), &[0xcc; 64], gpa), Ok(64));
            m.read(Gpa(gpa), &mut after).unwrap();
            assert_eq!(before, after, "{gpa:#x}");
        }
    }
}

#[test]
fn an_image_with_its_table_elsewhere_is_refused() {
    let image = embedded_image();
    let header = Header::parse(image).unwrap();
    let endian = header.endian().unwrap();
    let segments = header.program_headers(endian, image).unwrap();
    let note = segments.iter().find(|s| s.p_type(endian) == elf::PT_NOTE).expect("a note");
    let end = (note.p_offset(endian) + note.p_filesz(endian)) as usize;
    let distance = i32::from_le_bytes(image[end - 4..end].try_into().unwrap());
    // A page off; in the text; outside of the image; without a note.
    for (at, value) in [
        (end - 4, distance + 8),
        (end - 4, distance + (64 << 20)),
        (end - 4, i32::MIN),
        (end - 4, 4096 - (note.p_vaddr(endian) as i32 + 20)),
        (end - 12, 0),
    ] {
        let mut damaged = image.to_vec();
        damaged[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let m = memory();
        assert!(
            matches!(load(&m, &damaged, &placement(&m), None), Err(LoaderError::Bad(_))),
            "{at} {value:#x}"
        );
    }
}

#[test]
fn a_trace_names_the_functions_of_the_image() {
    let file = object::File::parse(embedded_image()).unwrap();
    let entry =
        file.symbols().find(|s| s.name() == Ok("_start")).expect("the image keeps its symbols");
    let base = 0x1000_0000;
    let frames = |addr| match addr {
        0x100 => Some((0x200, base + entry.address() + 1)),
        0x200 => Some((0x180, base + entry.address() + 1)),
        _ => None,
    };
    let trace = super::super::backtrace::walk(base, base + entry.address(), 0x100, &frames);
    assert_eq!(trace.len(), 3, "a frame chain that goes down ends the walk");
    let text = super::super::backtrace::describe(base, &trace);
    assert_eq!(text.matches("_start").count(), 3, "{text}");
}

#[test]
fn what_is_no_kernel_is_refused() {
    let m = memory();
    assert!(matches!(load(&m, &[], &placement(&m), None), Err(LoaderError::NoImage)));
    assert!(load(&m, b"#!/bin/sh\n", &placement(&m), None).is_err());
    assert!(load(&m, &embedded_image()[..1000], &placement(&m), None).is_err());
    // This test is a program that wants a dynamic loader.
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert!(matches!(load(&m, &own, &placement(&m), None), Err(LoaderError::Bad(_))));
    let tiny =
        GuestMemory::new(Layout { base: None, ram_bytes: RAM_UNIT, window_bytes: 0 }).unwrap();
    assert!(matches!(
        load(&tiny, embedded_image(), &placement(&tiny), None),
        Err(LoaderError::NoRoom(_))
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// A damaged image is refused or loaded; it never breaks the loader.
    #[test]
    fn damaged_headers_do_no_harm(
        changes in prop::collection::vec((0usize..0x240, any::<u8>()), 1..6),
    ) {
        let mut image = embedded_image().to_vec();
        for (at, byte) in changes {
            image[at] = byte;
        }
        let m = memory();
        let _ = load(&m, &image, &placement(&m), None);
    }
}
