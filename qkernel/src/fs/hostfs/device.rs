//! Device nodes in the container's own root. The host is not asked for any: there each is an empty
//! file with the sticky bit, which means nothing for files, and an attribute that says what it
//! stands for. A guest cannot write that attribute, and files of volumes, which others may write,
//! stand for nothing but themselves.

use alloc::format;
use alloc::vec::Vec;

use linux_raw_sys::general::{S_IFBLK, S_IFCHR, S_IFMT, S_ISVTX};
use qlib::host::Op;

use crate::errno::{Errno, Result};
use crate::fs::attr::{Attributes, device, device_parts};
use crate::host::Call;

/// The attribute.
const NAME: &[u8] = b"user.quark.device";
/// That of a directory in which there are nodes, or have been: the host lists them as regular
/// files.
const HOLDER: &[u8] = b"user.quark.holds-devices";
/// The value of [`NAME`] is no longer.
const MAX_BYTES: usize = 32;

/// True if an attribute's name is not the guest's to use.
pub fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(b"user.quark.")
}

/// What `path` beneath the handle `root` is for the guest, if the host has this to say of it.
pub fn shown(root: u32, path: &[u8], file: Attributes) -> Attributes {
    if !file.is_regular() || file.mode & S_ISVTX == 0 || file.size != 0 {
        return file;
    }
    let (mut value, name) = (alloc::vec![0; MAX_BYTES], NAME.to_vec());
    let call = Call::on(Op::GetXattr, root).bytes(path).bytes(&name);
    let Ok(len) = call.bytes_out(&mut value).run() else { return file };
    match value.get(..len as usize).and_then(parse) {
        Some((kind, rdev)) => {
            Attributes { mode: kind | file.mode & !(S_IFMT | S_ISVTX), rdev, ..file }
        }
        None => file,
    }
}

/// Makes the empty file at `path` stand for a device node. EPERM where the host's file system has
/// no attributes.
pub fn mark(root: u32, path: &[u8], mode: u32, rdev: u64) -> Result {
    let (value, name) = (text(mode, rdev), NAME.to_vec());
    let call = Call::on(Op::SetXattr, root).bytes(path).bytes(&name).bytes(&value);
    call.run().map(drop).map_err(|_| Errno::EPERM)
}

/// Notes that there are nodes in the directory at `path`, for who lists it later. (Without that
/// note they are listed as what the host has, no more.)
pub fn mark_holder(root: u32, path: &[u8]) {
    let name = HOLDER.to_vec();
    Call::on(Op::SetXattr, root).bytes(path).bytes(&name).bytes(b"").run().ok();
}

/// True if there may be nodes in the directory at `path`.
pub fn is_holder(root: u32, path: &[u8]) -> bool {
    let name = HOLDER.to_vec();
    Call::on(Op::GetXattr, root).bytes(path).bytes(&name).bytes_out(&mut []).run().is_ok()
}

fn text(mode: u32, rdev: u64) -> Vec<u8> {
    let (major, minor) = device_parts(rdev);
    let letter = if mode & S_IFMT == S_IFCHR { 'c' } else { 'b' };
    format!("{letter} {major}:{minor}").into_bytes()
}

/// S_IF* type and number.
fn parse(text: &[u8]) -> Option<(u32, u64)> {
    let (letter, number) = core::str::from_utf8(text).ok()?.split_once(' ')?;
    let (major, minor) = number.split_once(':')?;
    let kind = match letter {
        "c" => S_IFCHR,
        "b" => S_IFBLK,
        _ => return None,
    };
    Some((kind, device(major.parse().ok()?, minor.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (kind, number) in [(S_IFCHR, device(1, 3)), (S_IFBLK, device(u32::MAX, u32::MAX))] {
            let value = text(kind | 0o644, number);
            assert!(value.len() <= MAX_BYTES);
            assert_eq!(parse(&value), Some((kind, number)));
        }
        for bad in [&b""[..], b"c", b"c 1", b"c 1:", b"x 1:3", b"c 1:4294967296", b"c \xff:1"] {
            assert_eq!(parse(bad), None);
        }
    }
}
