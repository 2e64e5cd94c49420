use std::fs::File;
use std::io::Write;

use super::*;

pub fn small() -> GuestMemory {
    GuestMemory::new(Layout { base: None, ram_bytes: 2 * RAM_UNIT, window_bytes: 1 << 30 }).unwrap()
}

fn temp_file(bytes: &[u8]) -> File {
    let fd = sys::memfd(c"test", 0, false).unwrap();
    let mut file = File::from(fd);
    file.write_all(bytes).unwrap();
    file
}

#[test]
fn sizes_are_checked() {
    for ram_bytes in [0, 1, RAM_UNIT - 1, RAM_UNIT + 4096, 1 << 50] {
        assert!(
            GuestMemory::new(Layout { base: None, ram_bytes, window_bytes: 0 }).is_err(),
            "{ram_bytes}"
        );
    }
}

#[test]
fn fixed_base_is_taken_once() {
    let layout =
        Layout { base: Some(0x2000_0000_0000), ram_bytes: RAM_UNIT, window_bytes: RAM_UNIT };
    let memory = GuestMemory::new(layout).unwrap();
    assert_eq!(memory.base(), 0x2000_0000_0000);
    assert!(GuestMemory::new(layout).is_err(), "the place is taken");
    drop(memory);
    assert!(GuestMemory::new(layout).is_ok(), "and free again");
}

#[test]
fn ranges_outside_memory_are_refused() {
    let m = small();
    let ram = m.ram_bytes();
    assert!(m.slice(Gpa(0), ram).is_some());
    assert!(m.slice(Gpa(ram - 1), 1).is_some());
    assert!(m.slice(Gpa(ram - 1), 2).is_none(), "no range spans RAM and windows");
    assert!(m.slice(Gpa(ram), 1 << 30).is_some());
    assert!(m.slice(Gpa(ram), (1 << 30) + 1).is_none());
    assert!(m.slice(Gpa(u64::MAX), 1).is_none());
    assert!(m.slice(Gpa(1), u64::MAX).is_none());
    assert!(m.ram_slice(Gpa(ram), 1).is_none());
    assert_eq!(m.read(Gpa(ram - 4), &mut [0; 8]), Err(Errno::FAULT));
    assert_eq!(m.gpa_of((m.base() + 4096) as usize, 8), Some(Gpa(4096)));
    assert_eq!(m.gpa_of((m.base() + ram) as usize, 1), None);
    assert_eq!(m.gpa_of(8, 1), None);
}

#[test]
fn ram_is_committed_by_touch_and_given_back_in_ranges() {
    let m = small();
    assert_eq!(m.resident_bytes(), 0);
    let runs = |m: &GuestMemory| {
        let mut runs = Vec::new();
        m.committed(Gpa(4096), 16 * 4096, |first, pages| runs.push((first, pages))).unwrap();
        runs
    };
    for page in [0, 1, 3, 4, 5, 16, 17] {
        m.write(Gpa(page * 4096 + 100), b"x").unwrap();
    }
    assert_eq!(runs(&m), [(0, 1), (2, 3), (15, 1)]);
    assert_eq!(m.resident_bytes(), 7 * 4096);
    let frames = |start, count| Frames { start: Gpa(start * 4096), count };
    m.release([frames(3, 1), frames(4, 2), frames(16, 1)]).unwrap();
    assert_eq!(runs(&m), [(0, 1)]);
    assert_eq!(m.resident_bytes(), 3 * 4096);
    let mut byte = [1];
    m.read(Gpa(3 * 4096 + 100), &mut byte).unwrap();
    assert_eq!(byte, [0]);
    for bad in
        [frames(m.ram_bytes() / 4096, 1), frames(0, u64::MAX), Frames { start: Gpa(1), count: 1 }]
    {
        assert_eq!(m.release([bad]), Err(Errno::INVAL));
    }
    assert_eq!(m.committed(Gpa(m.ram_bytes()), 4096, |_, _| ()), Err(Errno::INVAL));
    assert_eq!(m.committed(Gpa(1), 4096, |_, _| ()), Err(Errno::INVAL));
}

#[test]
fn what_is_set_apart_stays_as_it_is() {
    let m = small();
    let at = Gpa(8192);
    m.write(at, b"before").unwrap();
    m.set_apart(at, 4096, b"text", Protection::ReadExec).unwrap();
    assert_eq!(m.write(at, b"evil"), Err(Errno::FAULT));
    let mut now = [0; 6];
    m.read(at, &mut now).unwrap();
    assert_eq!(&now, b"text\0\0");
    assert_eq!(m.resident_bytes(), 0, "the file behind RAM has nothing of it");
    let refused = |gpa, len, protection| m.set_apart(gpa, len, &[0; 4097], protection);
    assert_eq!(refused(Gpa(m.ram_bytes()), 8192, Protection::Read), Err(Errno::INVAL));
    assert_eq!(refused(Gpa(1), 8192, Protection::Read), Err(Errno::INVAL));
    assert_eq!(refused(at, 4096, Protection::Read), Err(Errno::INVAL));
    assert_eq!(refused(at, 8192, Protection::ReadWrite), Err(Errno::INVAL));
}

#[test]
fn windows_show_files_and_survive_their_truncation() {
    let m = small();
    let file = temp_file(&[7; 3 * 4096]);
    let fd = Arc::new(OwnedFd::from(file.try_clone().unwrap()));
    let gpa = m.window_map(fd.clone(), 4096, 8192, true).unwrap();
    assert_eq!(gpa, Gpa(m.ram_bytes()));
    let second = m.window_map(fd, 0, 4096, false).unwrap();
    assert_eq!(second, gpa + 8192);
    assert_eq!(m.window_bytes_mapped(), 3 * 4096);

    let (backing, offset) = m.host_backing(gpa + 4096, 4096).unwrap();
    assert_eq!((offset, rustix::fs::fstat(&*backing).unwrap().st_size), (8192, 3 * 4096));
    assert!(m.host_backing(gpa + 4096, 8192).is_none(), "two windows are not one range");
    assert!(m.host_backing(second + 4096, 1).is_none());

    let mut bytes = [0; 16];
    m.read(gpa, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 16]);
    m.write(gpa, b"to the file").unwrap();
    assert_eq!(m.write(second, b"x"), Err(Errno::FAULT), "not writable");
    let mut seen = [0; 11];
    rustix::io::pread(&file, &mut seen[..], 4096).unwrap();
    assert_eq!(&seen, b"to the file");

    m.windows_release().unwrap();
    m.read(gpa, &mut seen).unwrap();
    assert_eq!(&seen, b"to the file");

    // Cut the file in the middle of the window: the copy stops at the page that is gone.
    file.set_len(8192).unwrap();
    let mut both = [0u8; 8192];
    // SAFETY: the target is a buffer of that size, the source a window.
    let left = unsafe { copy::copy(both.as_mut_ptr(), (m.base() + gpa.0) as *const u8, 8192) };
    assert_eq!(left, 4096);
    assert_eq!(m.read(gpa, &mut both), Err(Errno::FAULT));
    // The host's own calls see EFAULT or a short count.
    let pipe = rustix::pipe::pipe().unwrap();
    let lost = m.slice(gpa + 4096, 4096).unwrap();
    assert_eq!(sys::write(pipe.1.as_fd(), &[lost], None, 0), Err(Errno::FAULT));

    assert!(m.window_drop(gpa));
    assert!(!m.window_drop(gpa));
    assert_eq!(m.read(gpa, &mut bytes), Err(Errno::FAULT), "a hole faults, it does not crash");
    assert!(m.host_backing(gpa, 1).is_none());
}

#[test]
fn bad_windows_are_refused() {
    let m = small();
    let fd = Arc::new(OwnedFd::from(temp_file(&[0; 4096])));
    for (offset, len) in
        [(1, 4096), (0, 1), (0, 0), (u64::MAX - 4095, 4096), (0, 1 << 31), (1 << 63, 4096)]
    {
        assert!(m.window_map(fd.clone(), offset, len, false).is_err(), "{offset} {len}");
    }
    let (r, _w) = rustix::pipe::pipe().unwrap();
    assert!(matches!(m.window_map(Arc::new(r), 0, 4096, false), Err(WindowError::Host(_))));
    assert_eq!(m.window_bytes_mapped(), 0);
    assert!(!m.window_drop(Gpa(0)));
}

#[test]
fn rust_vmm_sees_the_same_ram() {
    use vm_memory::Bytes;
    let m = small();
    let ram = m.vm_memory().unwrap();
    ram.write_slice(b"hello", GuestAddress(RAM_UNIT - 2)).unwrap();
    drop(ram);
    let mut bytes = [0; 5];
    m.read(Gpa(RAM_UNIT - 2), &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
}

#[test]
fn bases_are_random_aligned_and_in_their_range() {
    let bases: std::collections::BTreeSet<u64> =
        (0..8).map(|_| GuestMemory::at_random_base(RAM_UNIT, 1 << 30).unwrap().base()).collect();
    assert_eq!(bases.len(), 8, "{bases:x?}");
    assert!(
        bases.iter().all(|b| GUEST_BASES.contains(b) && b.is_multiple_of(RAM_UNIT)),
        "{bases:x?}"
    );
}
