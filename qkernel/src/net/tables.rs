//! The files of /proc/net, as whoever reads them has it. Internet sockets, interfaces and routes of
//! the container's network namespace the host tells of, with users of the container; others have
//! them from [`guest`].

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use qlib::host::{NET_FILES, Op};

use super::guest::{self, network};
use super::host;
use super::unix::list;
use crate::account;
use crate::errno::{Errno, Result};
use crate::host::{Call, Handle};

/// The most of a file. Longer ones are cut off.
const MAX_FILE: usize = 16 << 20;
/// How much is read at a time.
const PIECE: usize = 64 << 10;

/// Tables of sockets whose eighth column is the user and whose tenth the inode.
const OF_SOCKETS: &[&str] =
    &["icmp", "icmp6", "raw", "raw6", "tcp", "tcp6", "udp", "udp6", "udplite", "udplite6"];

/// The names, in order.
pub fn names() -> impl Iterator<Item = &'static str> {
    NET_FILES.iter().copied().chain(["unix"]).filter(|name| exists(name))
}

/// The file of this name, if there is one.
pub fn find(name: &[u8]) -> Option<&'static str> {
    let name = NET_FILES.iter().chain(&["unix"]).find(|known| known.as_bytes() == name)?;
    exists(name).then_some(name)
}

fn exists(name: &str) -> bool {
    name == "unix" || open(name).is_ok()
}

/// What a file reads as.
pub fn read(name: &str) -> Result<Vec<u8>> {
    if name == "unix" {
        return list::table();
    }
    if let Some((_, own)) = network::current() {
        return Ok(guest::read_file(&own, name));
    }
    let text = contents(name)?;
    if OF_SOCKETS.contains(&name) {
        return with_own_users(&text, &host::owners()?);
    }
    Ok(if name == "sockstat" { with_unix(&text, list::all()?.len()) } else { text })
}

fn open(name: &str) -> Result<Handle> {
    // The name is in the image, which the host need not read.
    let name = name.as_bytes().to_vec();
    Call::new(Op::NetFile).bytes(&name).run().map(|handle| Handle::new(handle as u32))
}

fn contents(name: &str) -> Result<Vec<u8>> {
    let file = open(name)?;
    let mut text = Vec::new();
    let mut piece = alloc::vec![0; PIECE];
    while text.len() < MAX_FILE {
        let call = Call::on(Op::Read, file.number()).arg(0, text.len() as u64);
        let bytes = call.bytes_out(&mut piece).run()? as usize;
        let Some(read) = piece.get(..bytes).filter(|read| !read.is_empty()) else { break };
        if text.len() + bytes > text.capacity() {
            // It grows to twice of what it is.
            account::ask((2 * text.len() + bytes) as u64)?;
        }
        text.try_reserve(bytes).map_err(|_| Errno::ENOMEM)?;
        text.extend_from_slice(read);
    }
    Ok(text)
}

/// Puts the container's users in the place of the host's, for sockets of the container. ENOMEM.
fn with_own_users(text: &[u8], owners: &BTreeMap<u64, u32>) -> Result<Vec<u8>> {
    // Users may have longer numbers.
    let mut out = account::vec_for(text.len() + text.len() / 8)?;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match own_user(line, owners) {
            Some((place, uid)) => {
                let tail = line.get(place.end..).unwrap_or_default();
                out.extend_from_slice(line.get(..place.start).unwrap_or_default());
                out.extend(format!(" {uid:>5}").bytes());
                out.extend_from_slice(tail);
            }
            None => out.extend_from_slice(line),
        }
    }
    Ok(out)
}

/// Where a line of a table has its user with the spaces before, and who is to stand there.
fn own_user(line: &[u8], owners: &BTreeMap<u64, u32>) -> Option<(Range<usize>, u32)> {
    const USER: usize = 7;
    const INODE: usize = 9;
    let fields = fields(line);
    let number = line.get(fields.get(INODE)?.clone())?;
    let inode = core::str::from_utf8(number).ok()?.parse::<u64>().ok()?;
    let uid = owners.get(&inode)?;
    Some((fields.get(USER - 1)?.end..fields.get(USER)?.end, *uid))
}

/// The parts of a line that are not spaces.
fn fields(line: &[u8]) -> Vec<Range<usize>> {
    let mut fields = Vec::new();
    let mut start = None;
    for (at, byte) in line.iter().chain([&b' ']).enumerate() {
        match (byte.is_ascii_whitespace(), start) {
            (false, None) => start = Some(at),
            (true, Some(from)) => {
                fields.push(from..at);
                start = None;
            }
            _ => {}
        }
    }
    fields
}

/// Counts the sockets that the host does not know ("sockets: used 5").
fn with_unix(text: &[u8], more: usize) -> Vec<u8> {
    let Ok(text) = core::str::from_utf8(text) else { return text.to_vec() };
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let used = line.strip_prefix("sockets: used ").and_then(|n| n.trim().parse::<usize>().ok());
        match used {
            Some(used) => out += &format!("sockets: used {}\n", used.saturating_add(more)),
            None => out += line,
        }
    }
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode   \n   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0   \n   1: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000   990        0 4712 1 0\n";

    #[test]
    fn users_of_own_sockets_are_those_of_the_container() {
        let owners = BTreeMap::from([(4711, 65534), (1, 5)]);
        let text = String::from_utf8(with_own_users(TCP.as_bytes(), &owners).expect("room"))
            .expect("text");
        assert!(text.contains("00000000 65534        0 4711 1 "), "{text}");
        assert!(text.contains("00000000   990        0 4712 1 0\n"), "{text}");
        assert_eq!(text.len(), TCP.len());
        assert_eq!(with_own_users(b"", &owners), Ok(Vec::new()));
        assert_eq!(with_own_users(b"a b\n\nc", &owners), Ok(b"a b\n\nc".to_vec()));
    }

    #[test]
    fn own_sockets_count() {
        let text = with_unix(b"sockets: used 7\nTCP: inuse 1 orphan 0\n", 3);
        assert_eq!(text, b"sockets: used 10\nTCP: inuse 1 orphan 0\n");
    }
}
