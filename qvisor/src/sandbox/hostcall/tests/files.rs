//! Files: names, attributes, paths.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use super::*;

#[test]
fn file_systems_are_synchronized_by_what_lies_on_them() {
    let g = Guest::new();
    fs::write(g.dir.join("file"), "x").unwrap();
    g.finished(Op::SyncFs, g.root, &[0]);
    g.finished(Op::SyncFs, g.open("file", libc::O_RDONLY), &[0]);
    g.finished(Op::SyncFs, g.open("file", libc::O_PATH), &[0]);
    let mount = |path: &str| {
        let fd =
            rustix::fs::open(path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        g.host.add_mount(fd).unwrap()
    };
    g.finished(Op::SyncFs, mount(g.dir.to_str().unwrap()), &[0]);
    g.finished(Op::SyncFs, mount("/dev/null"), &[0]);
    let socket = g
        .ok(Op::Socket, NO_HANDLE, &[libc::AF_INET as u64, libc::SOCK_DGRAM as u64, 0], &[])
        .ret as u32;
    assert_eq!(g.err(Op::SyncFs, socket, &[], &[]), libc::EINVAL);
    assert_eq!(g.err(Op::SyncFs, 999, &[], &[]), libc::EBADF);
}

#[test]
fn open_tells_what_was_opened() {
    let g = Guest::new();
    fs::write(g.dir.join("f"), "x").unwrap();
    let meta = fs::metadata(g.dir.join("f")).unwrap();
    let device =
        u64::from(rustix::fs::major(meta.dev())) << 32 | u64::from(rustix::fs::minor(meta.dev()));
    let changed_ns = meta.ctime() as u64 * 1_000_000_000 + meta.ctime_nsec() as u64;
    let answer = g.ok(Op::Open, g.root, &[libc::O_RDONLY as u64, 0], &[In(b"f")]);
    assert_eq!(answer.args[..3], [device, meta.ino(), changed_ns]);
}

#[test]
fn files_are_made_written_read_and_removed() {
    let g = Guest::new();
    let (uid, gid) =
        (rustix::process::geteuid().as_raw().into(), rustix::process::getegid().as_raw().into());
    fs::create_dir(g.dir.join("sub")).unwrap();
    let made = g
        .ok(Op::Create, g.root, &[libc::O_RDWR as u64, 0o4750, uid, gid], &[In(b"sub/file")])
        .ret as u32;
    assert_eq!(
        fs::metadata(g.dir.join("sub/file")).unwrap().permissions().mode() & 0o7777,
        0o4750 & !umask()
    );
    assert_eq!(g.ok(Op::Write, made, &[0, 0], &[In(b"hello "), In(b"world")]).ret, 11);
    assert_eq!(g.ok(Op::Write, made, &[0, libc::RWF_APPEND as u64], &[In(b"!")]).ret, 1);
    let read = g.ok(Op::Read, made, &[3], &[Out(2), Out(100)]);
    assert_eq!((read.ret, &read.out[0][..], &read.out[1][..7]), (9, &b"lo"[..], &b" world!"[..]));
    let stream = g.ok(Op::Read, made, &[qlib::host::STREAM], &[Out(5)]);
    assert_eq!(stream.out[0], b"hello");
    let stat = g.ok(Op::StatPath, g.root, &[], &[In(b"sub/file"), STATX]);
    assert_eq!(statx(&stat.out[0]).1, 12);
    assert_eq!(statx(&g.ok(Op::Stat, made, &[], &[STATX]).out[0]).1, 12);
    g.ok(Op::Truncate, made, &[5], &[]);
    g.finished(Op::Sync, made, &[1]);
    g.ok(Op::Allocate, made, &[0, 0, 8192], &[]);
    assert_eq!(fs::metadata(g.dir.join("sub/file")).unwrap().len(), 8192);
    // The name exists: opened as it is, or refused with O_EXCL.
    let again = g
        .ok(Op::Create, g.root, &[libc::O_RDONLY as u64, 0o600, uid, gid], &[In(b"sub/file")])
        .ret as u32;
    assert_eq!(g.err(Op::Write, again, &[0, 0], &[In(b"x")]), libc::EBADF);
    let excl = (libc::O_RDWR | libc::O_EXCL) as u64;
    assert_eq!(
        g.err(Op::Create, g.root, &[excl, 0o600, uid, gid], &[In(b"sub/file")]),
        libc::EEXIST
    );
    g.ok(Op::Close, made, &[], &[]);
    g.ok(Op::Rename, g.root, &[0], &[In(b"sub/file"), In(b"moved")]);
    g.ok(Op::Link, g.root, &[], &[In(b"moved"), In(b"sub/linked")]);
    assert_eq!(fs::metadata(g.dir.join("moved")).unwrap().nlink(), 2);
    g.ok(Op::Unlink, g.root, &[0], &[In(b"moved")]);
    assert_eq!(
        g.err(Op::Unlink, g.root, &[libc::AT_REMOVEDIR as u64], &[In(b"sub")]),
        libc::ENOTEMPTY
    );
    g.ok(Op::Unlink, g.root, &[0], &[In(b"sub/linked")]);
    g.ok(Op::Unlink, g.root, &[libc::AT_REMOVEDIR as u64], &[In(b"sub")]);
}

fn umask() -> u32 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

#[test]
fn directories_attributes_and_links() {
    let g = Guest::new();
    let (uid, gid) = (
        u64::from(rustix::process::geteuid().as_raw()),
        u64::from(rustix::process::getegid().as_raw()),
    );
    g.ok(Op::MkDir, g.root, &[0o750, uid, gid], &[In(b"d")]);
    g.ok(Op::MkNod, g.root, &[(libc::S_IFIFO | 0o600) as u64, uid, gid], &[In(b"d/fifo")]);
    assert!(fs::metadata(g.dir.join("d/fifo")).unwrap().file_type().is_fifo());
    assert_eq!(
        g.err(Op::MkNod, g.root, &[(libc::S_IFCHR | 0o600) as u64, uid, gid], &[In(b"d/dev")]),
        libc::EPERM
    );
    g.ok(Op::SymLink, g.root, &[0, uid, gid], &[In(b"d/link"), In(b"/etc/passwd")]);
    let link = g.ok(Op::ReadLink, g.root, &[], &[In(b"d/link"), Out(100)]);
    assert_eq!(&link.out[0][..link.ret as usize], b"/etc/passwd");
    let stat = g.ok(Op::StatPath, g.root, &[], &[In(b"d/link"), STATX]);
    assert_eq!(u32::from(statx(&stat.out[0]).0) & libc::S_IFMT, libc::S_IFLNK);

    fs::write(g.dir.join("d/f"), "x").unwrap();
    let (mode, times) = (1, 8 | 16);
    g.ok(
        Op::SetAttr,
        g.root,
        &[mode | times, 0o640, 0, 5_000_000_001, (-1i64) as u64],
        &[In(b"d/f")],
    );
    let meta = fs::metadata(g.dir.join("d/f")).unwrap();
    assert_eq!(
        (meta.permissions().mode() & 0o7777, meta.atime(), meta.atime_nsec()),
        (0o640, 5, 1)
    );
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (-1, 999_999_999));
    g.ok(Op::SetAttr, g.root, &[2 | 4, 0, uid | gid << 32], &[In(b"d/f")]);
    assert_eq!(g.err(Op::SetAttr, g.root, &[1 << 20], &[In(b"d/f")]), libc::EINVAL);
    // An open handle can be the target itself.
    let f = g.open("d/f", libc::O_RDONLY);
    g.ok(Op::SetAttr, f, &[mode, 0o600], &[In(b"")]);
    assert_eq!(fs::metadata(g.dir.join("d/f")).unwrap().permissions().mode() & 0o777, 0o600);

    let dir = g.open("d", libc::O_RDONLY | libc::O_DIRECTORY);
    let mut names = Vec::new();
    let mut position = 0;
    loop {
        let entries = g.ok(Op::ReadDir, dir, &[position], &[Out(64)]);
        let mut bytes = &entries.out[0][..entries.ret as usize];
        if bytes.is_empty() {
            break;
        }
        while !bytes.is_empty() {
            let len = u16::from_le_bytes(bytes[16..18].try_into().unwrap()) as usize;
            position = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            let name = bytes[19..len].split(|b| *b == 0).next().unwrap();
            names.push(String::from_utf8(name.to_vec()).unwrap());
            bytes = &bytes[len..];
        }
    }
    names.sort();
    assert_eq!(names, [".", "..", "f", "fifo", "link"]);
    let statfs = g.ok(Op::StatFs, dir, &[], &[Out(120)]);
    assert_ne!(statfs.out[0], vec![0; 120]);
    // A directory handle is a root of its own.
    g.ok(Op::StatPath, dir, &[], &[In(b"f"), STATX]);
}

#[test]
fn extended_attributes_of_the_user_kind() {
    let g = Guest::new();
    fs::write(g.dir.join("f"), "x").unwrap();
    let set = g.call(Op::SetXattr, g.root, &[0], &[In(b"f"), In(b"user.a"), In(b"value")]);
    if -set.ret as i32 == libc::EOPNOTSUPP {
        return; // the file system under the temporary directory has none
    }
    assert_eq!(set.ret, 0);
    let got = g.ok(Op::GetXattr, g.root, &[], &[In(b"f"), In(b"user.a"), Out(10)]);
    assert_eq!(&got.out[0][..got.ret as usize], b"value");
    assert_eq!(g.ok(Op::GetXattr, g.root, &[], &[In(b"f"), In(b"user.a"), Out(0)]).ret, 5);
    let list = g.ok(Op::ListXattr, g.root, &[], &[In(b"f"), Out(100)]);
    assert!(list.out[0][..list.ret as usize].split(|b| *b == 0).any(|n| n == b"user.a"));
    for name in [&b"trusted.overlay.opaque"[..], b"security.selinux", b"nonsense"] {
        assert_eq!(g.err(Op::SetXattr, g.root, &[0], &[In(b"f"), In(name), In(b"v")]), libc::EPERM);
    }
    g.ok(Op::RemoveXattr, g.root, &[], &[In(b"f"), In(b"user.a")]);
    assert_eq!(
        g.err(Op::GetXattr, g.root, &[], &[In(b"f"), In(b"user.a"), Out(10)]),
        libc::ENODATA
    );
}

#[test]
fn no_path_leaves_the_root() {
    let g = Guest::new();
    let inner = g.dir.join("root");
    fs::create_dir(&inner).unwrap();
    fs::write(g.dir.join("secret"), "s").unwrap();
    let root = g.host.add_mount(fs::File::open(&inner).unwrap().into()).unwrap();
    symlink("/etc", inner.join("abs")).unwrap();
    symlink("..", inner.join("up")).unwrap();
    symlink("/etc/passwd", inner.join("file")).unwrap();
    symlink("/proc/self/root", inner.join("magic")).unwrap();
    let paths = [
        "..",
        "../secret",
        "/etc/passwd",
        "abs/passwd",
        "up/secret",
        "file",
        "magic/etc/passwd",
        "a/../../secret",
    ];
    for path in paths {
        let p = || In(path.as_bytes());
        g.err(Op::Open, root, &[libc::O_RDONLY as u64, 0], &[p()]);
        g.err(Op::Open, root, &[libc::O_WRONLY as u64 | libc::O_TRUNC as u64, 0], &[p()]);
        let created = g.call(Op::Create, root, &[libc::O_RDWR as u64, 0o600, 0, 0], &[p()]);
        assert!(created.ret < 0, "{path}");
        if !["file", "magic"].contains(&path) {
            g.err(Op::StatPath, root, &[], &[p(), STATX]);
            g.err(Op::Unlink, root, &[0], &[p()]);
            g.err(Op::MkDir, root, &[0o700, 0, 0], &[p()]);
            g.err(Op::Rename, root, &[0], &[p(), In(b"stolen")]);
            g.err(Op::Link, root, &[], &[p(), In(b"stolen")]);
            g.err(Op::SetAttr, root, &[1, 0o777], &[p()]);
            g.err(Op::ReadLink, root, &[], &[p(), Out(100)]);
            g.err(Op::GetXattr, root, &[], &[p(), In(b"user.a"), Out(10)]);
        }
    }
    // The link itself may be handled, never what it points to.
    let before = fs::metadata("/etc/passwd").unwrap().permissions().mode();
    g.call(Op::SetAttr, root, &[1, 0o777], &[In(b"file")]);
    assert_eq!(fs::metadata("/etc/passwd").unwrap().permissions().mode(), before);
    assert!(fs::read_link(inner.join("file")).is_ok());
    // A file handle is no directory to walk from.
    let file = g.open("secret", libc::O_RDONLY);
    assert_eq!(g.err(Op::Open, file, &[0, 0], &[In(b"x")]), libc::ENOTDIR);
    let again = g.ok(Op::Open, file, &[libc::O_RDONLY as u64, 0], &[In(b"")]).ret as u32;
    assert_eq!(g.ok(Op::Read, again, &[0], &[Out(4)]).out[0][0], b's');
}

#[test]
fn files_without_names_get_one() {
    let g = Guest::new();
    let (uid, gid) =
        (rustix::process::geteuid().as_raw().into(), rustix::process::getegid().as_raw().into());
    fs::create_dir(g.dir.join("sub")).unwrap();
    let unnamed = |place: &[u8], more: i32| {
        let flags = (libc::O_RDWR | libc::O_TMPFILE | more) as u64;
        g.call(Op::Create, g.root, &[flags, 0o640, uid, gid], &[In(place)]).ret
    };
    let made = unnamed(b"", 0);
    if made == -i64::from(libc::EOPNOTSUPP) {
        return;
    }
    let (made, below) = (made as u32, unnamed(b"sub", 0) as u32);
    g.ok(Op::Write, made, &[0, 0], &[In(b"text")]);
    g.ok(Op::LinkFile, g.root, &[made.into()], &[In(b"sub/named")]);
    assert_eq!(fs::read(g.dir.join("sub/named")).unwrap(), b"text");
    g.ok(Op::LinkFile, g.root, &[below.into()], &[In(b"other")]);
    assert_eq!(fs::metadata(g.dir.join("other")).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(g.err(Op::LinkFile, g.root, &[made.into()], &[In(b"other")]), libc::EEXIST);
    for path in ["", "..", "../out", "/out", "sub/../out"] {
        g.err(Op::LinkFile, g.root, &[made.into()], &[In(path.as_bytes())]);
    }
    // Neither what is to stay without one, nor what has lost its own, nor directories.
    let secret = unnamed(b"", libc::O_EXCL) as u32;
    assert_eq!(g.err(Op::LinkFile, g.root, &[secret.into()], &[In(b"x")]), libc::ENOENT);
    let lost = g.open("other", libc::O_RDONLY);
    g.ok(Op::Unlink, g.root, &[0], &[In(b"other")]);
    g.ok(Op::Close, below, &[], &[]);
    assert_eq!(g.err(Op::LinkFile, g.root, &[lost.into()], &[In(b"x")]), libc::ENOENT);
    let sub = g.open("sub", libc::O_RDONLY | libc::O_DIRECTORY);
    assert_eq!(g.err(Op::LinkFile, g.root, &[sub.into()], &[In(b"x")]), libc::EINVAL);
    assert_eq!(g.err(Op::LinkFile, g.root, &[9999], &[In(b"x")]), libc::EBADF);
    assert_eq!(g.err(Op::LinkFile, g.root, &[u64::MAX], &[In(b"x")]), libc::EINVAL);
}

#[test]
fn special_files_stay_shut() {
    let g = Guest::new();
    let dev = g.host.add_mount(fs::File::open("/dev").unwrap().into()).unwrap();
    for name in [&b"null"[..], b"zero", b"tty", b"ptmx"] {
        assert_eq!(g.err(Op::Open, dev, &[libc::O_RDWR as u64, 0], &[In(name)]), libc::ENXIO);
        let args = [libc::O_RDWR as u64, 0o600, 0, 0];
        assert_eq!(g.err(Op::Create, dev, &args, &[In(name)]), libc::ENXIO);
    }
    let null = g.ok(Op::Open, dev, &[libc::O_PATH as u64, 0], &[In(b"null")]).ret as u32;
    g.ok(Op::Stat, null, &[], &[STATX]);
    assert_eq!(g.err(Op::Read, null, &[0], &[Out(1)]), libc::EBADF);
    assert_eq!(
        g.err(Op::Open, null, &[libc::O_RDWR as u64, 0], &[In(b"")]),
        libc::ENXIO,
        "nor by the back door"
    );
    rustix::fs::mknodat(
        rustix::fs::CWD,
        g.dir.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert_eq!(g.err(Op::Open, g.root, &[libc::O_RDONLY as u64, 0], &[In(b"fifo")]), libc::ENXIO);
}
