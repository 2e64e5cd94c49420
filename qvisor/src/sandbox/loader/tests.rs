use object::{Object, ObjectSymbol};
use proptest::prelude::*;
use rustix::io::Errno;

use super::super::memory::Layout;
use super::*;

fn place(m: &GuestMemory) -> Place<'static> {
    Place { base: m.base(), extra_bytes: 0, own_file: None }
}

fn memory() -> GuestMemory {
    GuestMemory::new(Layout { base: None, ram_bytes: 4 * RAM_UNIT, window_bytes: 0 }).unwrap()
}

#[test]
fn the_embedded_image_loads_relocated_and_protected() {
    let m = memory();
    let image = embedded_image();
    let loaded = load(&m, image, place(&m)).unwrap();
    assert!(loaded.entry > IMAGE_START && loaded.entry < loaded.image_end);
    assert!(loaded.free_start.0.is_multiple_of(RAM_UNIT) && loaded.free_start >= loaded.mailbox + MAILBOX_BYTES);

    let header = Header::parse(image).unwrap();
    let endian = header.endian().unwrap();
    let segments = header.program_headers(endian, image).unwrap();
    for s in loads(segments, endian) {
        let at = IMAGE_START + s.p_vaddr(endian);
        let relro = segments.iter().any(|r| {
            r.p_type(endian) == elf::PT_GNU_RELRO
                && (r.p_vaddr(endian)..r.p_vaddr(endian) + r.p_memsz(endian)).contains(&s.p_vaddr(endian))
        });
        let writable = s.p_flags(endian).contains(elf::PF_W) && !relro;
        let mut byte = [0];
        m.read(at, &mut byte).unwrap();
        assert_eq!(m.write(at, &byte), if writable { Ok(()) } else { Err(Errno::FAULT) }, "segment at {at:?}");
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
fn a_trace_names_the_functions_of_the_image() {
    let file = object::File::parse(embedded_image()).unwrap();
    let entry = file.symbols().find(|s| s.name() == Ok("_start")).expect("the image keeps its symbols");
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
    assert!(matches!(load(&m, &[], place(&m)), Err(LoaderError::NoImage)));
    assert!(load(&m, b"#!/bin/sh\n", place(&m)).is_err());
    assert!(load(&m, &embedded_image()[..1000], place(&m)).is_err());
    // This test is a program that wants a dynamic loader.
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert!(matches!(load(&m, &own, place(&m)), Err(LoaderError::Bad(_))));
    let tiny = GuestMemory::new(Layout { base: None, ram_bytes: RAM_UNIT, window_bytes: 0 }).unwrap();
    assert!(matches!(load(&tiny, embedded_image(), place(&tiny)), Err(LoaderError::NoRoom(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// A damaged image is refused or loaded; it never breaks the loader.
    #[test]
    fn damaged_headers_do_no_harm(changes in prop::collection::vec((0usize..0x240, any::<u8>()), 1..6)) {
        let mut image = embedded_image().to_vec();
        for (at, byte) in changes {
            image[at] = byte;
        }
        let m = memory();
        let _ = load(&m, &image, place(&m));
    }
}
