//! The host side against others who change things at the same time: names in a volume, files behind
//! windows, handles.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;

/// Tries of each race.
const TRIES: u32 = 10_000;

/// Runs `attack` `tries` times while a thread exchanges `g.dir/x` with a symbolic link to a file
/// outside; that file must stay what it was.
fn against_exchange(tries: u32, attack: impl Fn(&Guest)) {
    let g = Guest::new();
    let outside = g.dir.with_extension("outside");
    fs::write(&outside, "secret").unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o600)).unwrap();
    let look = || {
        let m = fs::metadata(&outside).unwrap();
        (m.mode(), m.uid(), m.gid(), m.mtime(), m.mtime_nsec(), m.ctime_nsec(), m.len())
    };
    let before = look();
    let (x, link) = (g.dir.join("x"), g.dir.join("link"));
    let (stop, exchanged) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if !link.is_symlink() {
                    fs::remove_dir(&link).or_else(|_| fs::remove_file(&link)).ok();
                    symlink(&outside, &link).ok();
                }
                if renameat_with(CWD, &x, CWD, &link, RenameFlags::EXCHANGE).is_ok() {
                    exchanged.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(std::time::Duration::from_micros(1));
                    renameat_with(CWD, &x, CWD, &link, RenameFlags::EXCHANGE).ok();
                }
            }
        });
        for _ in 0..tries {
            attack(&g);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(look(), before, "the file outside was changed");
    assert!(exchanged.load(Ordering::Relaxed) > 100, "{exchanged:?} exchanges say nothing");
    fs::remove_file(&outside).unwrap();
}

#[test]
fn making_names_never_changes_what_lies_outside() {
    // Four names a round.
    against_exchange(TRIES / 4, |g| {
        g.call(Op::MkDir, g.root, &[0o1777, 1, 1], &[In(b"x")]);
        g.call(Op::Unlink, g.root, &[libc::AT_REMOVEDIR as u64], &[In(b"x")]);
        g.call(Op::Unlink, g.root, &[0], &[In(b"x")]);
        for kind in [libc::S_IFIFO, libc::S_IFREG] {
            g.call(Op::MkNod, g.root, &[u64::from(kind | 0o4777), 1, 1], &[In(b"x")]);
            g.call(Op::Unlink, g.root, &[0], &[In(b"x")]);
        }
        g.call(Op::SymLink, g.root, &[0, 1, 1], &[In(b"x"), In(b"y")]);
        g.call(Op::Unlink, g.root, &[0], &[In(b"x")]);
    });
}

#[test]
fn changing_attributes_never_changes_what_lies_outside() {
    against_exchange(TRIES, |g| {
        let x = || In(b"x");
        let made = g
            .call(
                Op::Create,
                g.root,
                &[(libc::O_RDWR | libc::O_TRUNC) as u64, 0o4777, 1, 1],
                &[x()],
            )
            .ret;
        if made >= 0 {
            g.call(Op::Truncate, made as u32, &[0], &[]);
            g.call(Op::Write, made as u32, &[0, 0], &[In(b"attack")]);
            g.call(Op::Close, made as u32, &[], &[]);
        }
        g.call(Op::SetAttr, g.root, &[1 | 2 | 4 | 32 | 64, 0o777, 1 | 1 << 32], &[x()]);
        g.call(Op::SetXattr, g.root, &[0], &[x(), In(b"user.attack"), In(b"v")]);
        let flags = (libc::O_WRONLY | libc::O_TRUNC) as u64;
        let opened = g.call(Op::Open, g.root, &[flags, 0], &[x()]).ret;
        if opened >= 0 {
            g.call(Op::Close, opened as u32, &[], &[]);
        }
    });
}

#[test]
fn a_made_directory_that_was_replaced_by_another_keeps_its_owner() {
    let g = Guest::new();
    // Somebody's directory, of root, with something in it, in the place of the new one.
    fs::create_dir(g.dir.join("victim")).unwrap();
    fs::write(g.dir.join("victim/secret"), "s").unwrap();
    fs::set_permissions(g.dir.join("victim"), fs::Permissions::from_mode(0o700)).unwrap();
    let (stop, victim) = (AtomicBool::new(false), g.dir.join("victim"));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if renameat_with(CWD, g.dir.join("x"), CWD, &victim, RenameFlags::EXCHANGE).is_ok()
                {
                    renameat_with(CWD, g.dir.join("x"), CWD, &victim, RenameFlags::EXCHANGE).ok();
                }
            }
        });
        for _ in 0..TRIES {
            g.call(Op::MkDir, g.root, &[0o1755, 1, 1], &[In(b"x")]);
            g.call(Op::Unlink, g.root, &[libc::AT_REMOVEDIR as u64], &[In(b"x")]);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let found = [&victim, &g.dir.join("x")]
        .into_iter()
        .find(|d| d.join("secret").exists())
        .unwrap()
        .clone();
    let m = fs::metadata(found).unwrap();
    assert_eq!((m.uid(), m.mode() & 0o7777), (rustix::process::geteuid().as_raw(), 0o700));
}

#[test]
fn a_file_that_shrinks_under_a_window_is_an_errno() {
    let g = Guest::new();
    fs::write(g.dir.join("f"), [7; 8192]).unwrap();
    let file = g.open("f", libc::O_RDWR);
    let gpa = g.ok(Op::WindowMap, file, &[0, 8192, 1], &[]).ret as u64;
    g.ok(Op::Truncate, file, &[0], &[]);
    let entry = |gpa: u64, len: u64| [gpa.to_le_bytes(), len.to_le_bytes()].concat();
    // As path, as name, as value, as data to read and to write, as what comes out.
    let calls: [(Op, u32, usize); 8] = [
        (Op::StatPath, g.root, 0),
        (Op::SetXattr, g.root, 1),
        (Op::SetXattr, g.root, 2),
        (Op::Write, file, 0),
        (Op::Read, file, 0),
        (Op::Stat, file, 0),
        (Op::SymLink, g.root, 1),
        (Op::Log, 0, 0),
    ];
    for (op, handle, index) in calls {
        let name = b"user.a";
        g.host.memory.write(Gpa(DATA), name).unwrap();
        let table: Vec<u8> = (0..3)
            .flat_map(|i| {
                entry(
                    if i == index { gpa } else { DATA },
                    if i == index { 300 } else { name.len() as u64 },
                )
            })
            .collect();
        g.host.memory.write(TABLE, &table).unwrap();
        let mut call =
            HostCall { op: op as u32, handle, segs: TABLE, seg_count: 3, ..HostCall::default() };
        g.raw(&mut call);
        // Reading at the end of the file gives nothing, so nothing is touched.
        assert!(call.ret < 0 || op == Op::Read, "{op:?} gave {}", call.ret);
    }
    // The request table itself may not lie there.
    let mut call = HostCall {
        op: Op::Read as u32,
        handle: file,
        segs: Gpa(gpa),
        seg_count: 1,
        ..HostCall::default()
    };
    g.raw(&mut call);
    assert_eq!(call.ret, -i64::from(libc::EFAULT));
    g.ok(Op::WindowDrop, 0, &[gpa], &[]);
    // Gone: neither is what was there.
    g.host.memory.write(TABLE, &entry(gpa, 100)).unwrap();
    (call.segs, call.op) = (TABLE, Op::Write as u32);
    g.raw(&mut call);
    assert_eq!(call.ret, -i64::from(libc::EFAULT));
}

#[test]
fn handles_are_used_and_closed_by_many_threads_at_once() {
    let g = Guest::new();
    fs::write(g.dir.join("f"), [1; 4096]).unwrap();
    // Other tests of this process have descriptors of their own.
    let path = g.dir.join("f");
    let is_ours = |fd: &fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|target| target == path);
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().flatten().filter(is_ours).count();
    let end = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let g = &g;
            s.spawn(move || {
                let at = 0x40_000 + thread * 0x1_0000;
                let call = |op: Op, handle: u32, args: [u64; 6], segs: &[(u64, u64)]| {
                    for (i, (gpa, len)) in segs.iter().enumerate() {
                        let entry = [gpa.to_le_bytes(), len.to_le_bytes()].concat();
                        g.host.memory.write(Gpa(at + 16 * i as u64), &entry).unwrap();
                    }
                    let seg_count = segs.len() as u32;
                    let mut call = HostCall {
                        op: op as u32,
                        handle,
                        args,
                        segs: Gpa(at),
                        seg_count,
                        ret: i64::MIN,
                    };
                    g.raw(&mut call);
                    assert!(call.ret >= -4095);
                    call.ret
                };
                g.host.memory.write(Gpa(at + 0x1000), b"f").unwrap();
                let mut state = thread + 1;
                while Instant::now() < end {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    // Handle 0 is the root, and stays.
                    let handle = 1 + (state >> 33) as u32 % 8;
                    let (name, data) = ((at + 0x1000, 1), (at + 0x2000, 64));
                    match (state >> 40) % 14 {
                        0 => call(Op::Open, g.root, [2, 0, 0, 0, 0, 0], &[name]),
                        1 => call(
                            Op::Socket,
                            0,
                            [libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0, 0, 0, 0],
                            &[],
                        ),
                        2 => call(
                            Op::Socket,
                            0,
                            [libc::AF_INET as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0],
                            &[],
                        ),
                        3..=5 => call(Op::Close, handle, [0; 6], &[]),
                        6 => call(Op::Watch, handle, [state >> 20, 0, 0, 0, 0, 0], &[]),
                        7 => call(Op::Poll, handle, [0; 6], &[]),
                        8 => call(Op::Read, handle, [0; 6], &[data]),
                        9 => call(Op::Listen, handle, [1, 0, 0, 0, 0, 0], &[]),
                        10 => call(Op::Recv, handle, [0; 6], &[data, data, data]),
                        11 => call(Op::WindowMap, handle, [0, 4096, 1, 0, 0, 0], &[]),
                        12 => call(Op::WindowsRelease, 0, [0; 6], &[]),
                        _ => {
                            let gpa = g.host.memory.ram_bytes() + (state >> 45) % 8 * 4096;
                            call(Op::WindowDrop, 0, [gpa, 0, 0, 0, 0, 0], &[])
                        }
                    };
                }
            });
        }
    });
    for handle in 1..g.host.max_descriptors.min(100_000) as u32 {
        g.call(Op::Close, handle, &[], &[]);
    }
    for page in 0..100_000 {
        g.call(Op::WindowDrop, 0, &[g.host.memory.ram_bytes() + page * 4096], &[]);
    }
    assert_eq!(g.host.handles.len(), 1, "all but the root");
    assert_eq!(descriptors(), 0, "no descriptor is left behind");
}
