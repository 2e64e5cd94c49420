//! The vDSO that is embedded in the kernel image: what its ELF file holds, and what its functions
//! answer when they are called here, with a clock page right before the image as in a guest.

use std::collections::BTreeMap;
use std::ptr;
use std::time::{Duration, Instant};

use object::elf::{
    DT_GNU_HASH, DT_HASH, DT_JMPREL, DT_NEEDED, DT_REL, DT_RELA, DT_SONAME, DT_SYMTAB, DT_TEXTREL,
    DT_VERDEF, DT_VERSYM, ET_DYN, FileHeader64, PF_R, PF_X, PT_DYNAMIC, PT_LOAD, SHF_WRITE,
    SHT_DYNAMIC, SHT_DYNSYM,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Sym};
use object::{Endianness, Object, ObjectSymbol};
use qkernel::task::vdso;
use qlib::clock::{Calibrator, ClockPage, FRACTION_BITS, Line, Sample};

const PAGE: usize = 4096;
const NAMES: [&str; 5] = [
    "__vdso_clock_getres",
    "__vdso_clock_gettime",
    "__vdso_getcpu",
    "__vdso_gettimeofday",
    "__vdso_time",
];

#[test]
fn the_image_is_what_dynamic_loaders_expect() {
    let data = vdso::image();
    assert!(data.len() <= 2 * PAGE && data.len().is_multiple_of(PAGE), "{} bytes", data.len());
    let header = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    assert_eq!(header.e_type(endian), ET_DYN);

    let segments = header.program_headers(endian, data).unwrap();
    let loads: Vec<_> = segments.iter().filter(|s| s.p_type(endian) == PT_LOAD).collect();
    assert_eq!(loads.len(), 1, "one segment: nothing is writable");
    let load = loads[0];
    assert_eq!(load.p_flags(endian), PF_R | PF_X);
    assert_eq!(
        (load.p_offset(endian), load.p_vaddr(endian)),
        (0, 0),
        "the headers lie at its start"
    );
    assert_eq!(load.p_filesz(endian), load.p_memsz(endian));

    let dynamic = segments.iter().find(|s| s.p_type(endian) == PT_DYNAMIC).unwrap();
    let entries = dynamic.dynamic(endian, data).unwrap().unwrap();
    let has = |tag| entries.iter().any(|e| e.d_tag(endian) == tag);
    for tag in [DT_SONAME, DT_HASH, DT_GNU_HASH, DT_SYMTAB, DT_VERSYM, DT_VERDEF] {
        assert!(has(tag), "no entry with tag {tag:?}");
    }
    for tag in [DT_NEEDED, DT_REL, DT_RELA, DT_JMPREL, DT_TEXTREL] {
        assert!(!has(tag), "an entry with tag {tag:?}");
    }

    let sections = header.sections(endian, data).unwrap();
    for section in sections
        .iter()
        .filter(|s| s.sh_size.get(endian) > 0 && s.sh_type.get(endian) != SHT_DYNAMIC)
    {
        // (The dynamic section is marked writable by habit; its segment is not.)
        assert_eq!(section.sh_flags.get(endian).0 & SHF_WRITE.0, 0, "nothing is writable");
    }
    let versions = sections.versions(endian, data).unwrap().unwrap();
    let symbols = sections.symbols(endian, data, SHT_DYNSYM).unwrap();
    let mut names = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        if index.0 == 0 {
            continue;
        }
        names.push(
            String::from_utf8(symbols.symbol_name(endian, symbol).unwrap().to_vec()).unwrap(),
        );
        assert!(symbol.is_definition(endian, symbols.strings()));
        let version =
            versions.version(versions.version_index(endian, index).into()).unwrap().unwrap();
        assert_eq!(version.name(), b"LINUX_2.6");
    }
    names.sort();
    assert_eq!(names, NAMES);
    let text = String::from_utf8_lossy(data);
    assert!(text.contains("linux-vdso.so.1"));
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Time {
    seconds: i64,
    part: i64,
}

impl Time {
    fn ns(self) -> i64 {
        self.seconds * 1_000_000_000 + self.part
    }
}

/// A clock page with the image behind it.
struct Mapped {
    start: *mut u8,
    functions: BTreeMap<String, usize>,
}

impl Mapped {
    fn new() -> Mapped {
        let image = vdso::image();
        let bytes = PAGE + image.len();
        let (private, prot) =
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: memory of its own, anywhere.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), bytes, prot, private, -1, 0) }.cast::<u8>();
        assert_ne!(start.cast(), libc::MAP_FAILED);
        // SAFETY: the mapping is that long; the image part becomes executable when it is whole.
        unsafe {
            start.add(PAGE).copy_from_nonoverlapping(image.as_ptr(), image.len());
            let done = libc::mprotect(
                start.add(PAGE).cast(),
                image.len(),
                libc::PROT_READ | libc::PROT_EXEC,
            );
            assert_eq!(done, 0);
        }
        let file = object::File::parse(image).unwrap();
        let functions = file
            .dynamic_symbols()
            .map(|s| (s.name().unwrap().to_owned(), PAGE + s.address() as usize))
            .collect();
        Mapped { start, functions }
    }

    fn page(&self) -> &ClockPage {
        // SAFETY: page aligned, mapped while `self` lives, all zeros is a value of it, and it is
        // made of atomics.
        unsafe { &*self.start.cast() }
    }

    fn function(&self, name: &str) -> *const u8 {
        self.start.wrapping_add(self.functions[name])
    }

    fn gettime(&self, clock: i32) -> Result<Time, i32> {
        // SAFETY: the function's type is that of the source.
        let f: extern "C" fn(i32, *mut Time) -> i32 =
            unsafe { std::mem::transmute(self.function("__vdso_clock_gettime")) };
        let mut time = Time { seconds: -1, part: -1 };
        match f(clock, &mut time) {
            0 => Ok(time),
            error => Err(error),
        }
    }

    fn getres(&self, clock: i32) -> Result<Time, i32> {
        // SAFETY: as above.
        let f: extern "C" fn(i32, *mut Time) -> i32 =
            unsafe { std::mem::transmute(self.function("__vdso_clock_getres")) };
        let mut time = Time::default();
        match f(clock, &mut time) {
            0 => {
                assert_eq!(f(clock, ptr::null_mut()), 0);
                Ok(time)
            }
            error => Err(error),
        }
    }

    fn gettimeofday(&self) -> (Time, [i32; 2]) {
        // SAFETY: as above.
        let f: extern "C" fn(*mut Time, *mut [i32; 2]) -> i32 =
            unsafe { std::mem::transmute(self.function("__vdso_gettimeofday")) };
        let (mut time, mut zone) = (Time::default(), [-1, -1]);
        assert_eq!(f(&mut time, &mut zone), 0);
        assert_eq!(f(ptr::null_mut(), ptr::null_mut()), 0);
        (time, zone)
    }

    fn time(&self) -> i64 {
        // SAFETY: as above.
        let f: extern "C" fn(*mut i64) -> i64 =
            unsafe { std::mem::transmute(self.function("__vdso_time")) };
        let mut out = 0;
        let result = f(&mut out);
        assert_eq!(result, out);
        assert!(f(ptr::null_mut()) - result <= 1);
        result
    }

    /// Fills the page in from the host's clocks.
    fn calibrate(&self, calibrator: &mut Calibrator) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let before_tsc = tsc();
            let [monotonic, realtime, boottime, again] = [
                libc::CLOCK_MONOTONIC,
                libc::CLOCK_REALTIME,
                libc::CLOCK_BOOTTIME,
                libc::CLOCK_MONOTONIC,
            ]
            .map(host);
            let sample = Sample {
                before_tsc,
                after_tsc: tsc(),
                monotonic_ns: monotonic.ns() as u64,
                realtime_ns: realtime.ns() as u64,
                boottime_ns: boottime.ns() as u64,
                monotonic_after_ns: again.ns() as u64,
            };
            if sample.window() < 1_000_000
                && self.page().update(|| calibrator.next(&sample, tsc(), 0)).is_some()
            {
                return;
            }
            assert!(Instant::now() < deadline, "no calibration in 10 s");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, with this length; nothing of it is used any more.
        unsafe { libc::munmap(self.start.cast(), PAGE + vdso::image().len()) };
    }
}

fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has both.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
}

/// The host's clock, by a system call.
fn host(clock: i32) -> Time {
    let mut time = Time::default();
    // SAFETY: `time` is a struct timespec.
    assert_eq!(unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &mut time) }, 0);
    time
}

#[test]
fn a_valid_page_agrees_with_the_hosts_clocks() {
    let (mapped, mut calibrator) = (Mapped::new(), Calibrator::new());
    let mut last = 0;
    for _ in 0..20 {
        mapped.calibrate(&mut calibrator);
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME] {
            // A reading lies between two of the host's; more than the bound of the calibrator is
            // allowed for, as the host may pause us during a sample. The best of some readings, as
            // it may pause us here too.
            let readings: Vec<i64> = (0..20)
                .map(|_| {
                    let (before, now, after) =
                        (host(clock).ns(), mapped.gettime(clock).unwrap().ns(), host(clock).ns());
                    (before - now).max(now - after).max(0)
                })
                .collect();
            let best = readings.iter().min().unwrap();
            assert!(*best < 500_000, "clock {clock} is {best} ns off: {readings:?}");
        }
        let now = mapped.gettime(libc::CLOCK_MONOTONIC).unwrap().ns();
        assert!(now >= last);
        last = now;
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A line that no clock of this machine is on.
fn fiction() -> Line {
    Line {
        begin_tsc: 0,
        valid_until_tsc: u64::MAX,
        // Hardly moves: a billionth of a nanosecond a tick.
        ns_per_tick: (1 << FRACTION_BITS) / 1_000_000_000,
        monotonic_ns: 1_000_000_000_123_000,
        realtime_ns: 2_000_000_999_000_000,
        boottime_ns: 3_000_000_456_000_000,
    }
}

#[test]
fn every_clock_of_the_page_comes_from_the_page() {
    let mapped = Mapped::new();
    mapped.page().publish(&fiction());
    let near = |time: Time, ns: i64| {
        (0..1_000_000).contains(&(time.ns() - ns)) && (0..1_000_000_000).contains(&time.part)
    };
    for (clock, ns) in [
        (libc::CLOCK_MONOTONIC, 1_000_000_000_123_000),
        (libc::CLOCK_MONOTONIC_RAW, 1_000_000_000_123_000),
        (libc::CLOCK_MONOTONIC_COARSE, 1_000_000_000_123_000),
        (libc::CLOCK_REALTIME, 2_000_000_999_000_000),
        (libc::CLOCK_REALTIME_COARSE, 2_000_000_999_000_000),
        (libc::CLOCK_TAI, 2_000_000_999_000_000),
        (libc::CLOCK_BOOTTIME, 3_000_000_456_000_000),
    ] {
        let time = mapped.gettime(clock).unwrap();
        assert!(near(time, ns), "clock {clock}: {time:?}");
    }
    let (time, zone) = mapped.gettimeofday();
    assert_eq!((time.seconds, zone), (2_000_000, [0, 0]));
    assert!((999_000..1_000_000).contains(&time.part), "{time:?}");
    assert_eq!(mapped.time(), 2_000_000);
}

#[test]
fn what_the_page_does_not_know_is_asked_of_the_kernel() {
    let mapped = Mapped::new();
    // Not valid, expired, and valid: CPU time is the kernel's in any case.
    let expired = Line { valid_until_tsc: 1, ..fiction() };
    for line in [None, Some(expired), Some(fiction())] {
        if let Some(line) = &line {
            mapped.page().publish(line);
        }
        for clock in [libc::CLOCK_PROCESS_CPUTIME_ID, libc::CLOCK_THREAD_CPUTIME_ID] {
            let (before, now, after) =
                (host(clock).ns(), mapped.gettime(clock).unwrap().ns(), host(clock).ns());
            assert!(before <= now && now <= after, "clock {clock}: {before} {now} {after}");
        }
        assert_eq!(mapped.gettime(99), Err(-libc::EINVAL));
        assert_eq!(mapped.getres(99), Err(-libc::EINVAL));
        if line.is_none_or(|line| line.valid_until_tsc == 1) {
            for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME] {
                let (before, now, after) =
                    (host(clock).ns(), mapped.gettime(clock).unwrap().ns(), host(clock).ns());
                assert!(before <= now && now <= after, "clock {clock}: {before} {now} {after}");
            }
            let (before, (time, _), after) =
                (host(libc::CLOCK_REALTIME), mapped.gettimeofday(), host(libc::CLOCK_REALTIME));
            let us = time.seconds * 1_000_000 + time.part;
            assert!(
                before.ns() / 1000 <= us && us <= after.ns() / 1000,
                "{before:?} {us} {after:?}"
            );
            // (time(2) is the coarse clock's: up to a tick behind, in the second before too.)
            let (before, seconds, after) =
                (host(libc::CLOCK_REALTIME_COARSE), mapped.time(), host(libc::CLOCK_REALTIME));
            assert!(
                (before.seconds..=after.seconds).contains(&seconds),
                "{before:?} {seconds} {after:?}"
            );
        }
    }
}

#[test]
fn the_rest_is_as_the_kernel_says() {
    let mapped = Mapped::new();
    let (fine, coarse) = (Time { seconds: 0, part: 1 }, Time { seconds: 0, part: 4_000_000 });
    for clock in
        [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME, libc::CLOCK_TAI]
    {
        assert_eq!(mapped.getres(clock), Ok(fine));
    }
    for clock in [libc::CLOCK_MONOTONIC_COARSE, libc::CLOCK_REALTIME_COARSE] {
        assert_eq!(mapped.getres(clock), Ok(coarse));
    }
    // SAFETY: the function's type is that of the source.
    let getcpu: extern "C" fn(*mut u32, *mut u32, *mut u8) -> i32 =
        unsafe { std::mem::transmute(mapped.function("__vdso_getcpu")) };
    let (mut cpu, mut node) = (u32::MAX, u32::MAX);
    assert_eq!(getcpu(&mut cpu, &mut node, ptr::null_mut()), 0);
    let configured = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
    let last: u32 = configured.trim().rsplit(['-', ',']).next().unwrap().parse().unwrap();
    assert!(cpu <= last && node < 1024, "{cpu} {node}");
}
