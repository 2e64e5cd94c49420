//! /proc/config.gz: what this kernel has, in the words of Linux's configuration, for programs that
//! look there before they try.

use alloc::vec::Vec;

/// What is there. What is not there is not said.
const HAS: &str = "\
    64BIT ADVISE_SYSCALLS AIO BINFMT_ELF BINFMT_SCRIPT BRIDGE COREDUMP CROSS_MEMORY_ATTACH DUMMY \
    EPOLL EVENTFD FANOTIFY FANOTIFY_ACCESS_PERMISSIONS FHANDLE FILE_LOCKING FUTEX FUTEX_PI \
    IKCONFIG IKCONFIG_PROC INET INOTIFY_USER IO_URING IPC_NS IPV6 KCMP KEYS MEMBARRIER \
    MEMFD_CREATE MMU MULTIUSER NAMESPACES NET NET_NS OVERLAY_FS PID_NS POSIX_MQUEUE \
    POSIX_MQUEUE_SYSCTL POSIX_TIMERS PROC_FS PROC_PAGE_MONITOR PROC_SYSCTL SECCOMP \
    SECCOMP_FILTER SECURITY_LANDLOCK SHMEM SIGNALFD SMP SYSFS SYSVIPC SYSVIPC_SYSCTL TIMERFD \
    TMPFS TMPFS_POSIX_ACL TMPFS_XATTR TTY UNIX UNIX98_PTYS USERFAULTFD USER_NS UTS_NS VETH X86 \
    X86_64";

/// A file of gzip(1) (RFC 1952) without a name; what it holds is stored as it is (RFC 1951).
fn gzip(text: &[u8]) -> Vec<u8> {
    const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    /// The longest block, in bytes.
    const BLOCK: usize = 0xffff;
    let mut out = HEAD.to_vec();
    let mut blocks = text.chunks(BLOCK).peekable();
    while let Some(block) = blocks.next() {
        let length = block.len() as u16;
        out.push(blocks.peek().is_none().into());
        out.extend(length.to_le_bytes());
        out.extend((!length).to_le_bytes());
        out.extend(block);
    }
    out.extend(crc32(text).to_le_bytes());
    out.extend((text.len() as u32).to_le_bytes());
    out
}

/// The checksum of RFC 1952.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            sum >> 1 ^ if sum & 1 != 0 { 0xedb8_8320 } else { 0 }
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

/// What the file reads as.
pub fn compressed() -> Vec<u8> {
    let mut text = Vec::new();
    for name in HAS.split_ascii_whitespace() {
        text.extend(b"CONFIG_");
        text.extend(name.as_bytes());
        text.extend(b"=y\n");
    }
    gzip(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let packed = gzip(b"abc");
        assert_eq!(&packed[10..18], [1, 3, 0, 0xfc, 0xff, b'a', b'b', b'c']);
        assert_eq!(&packed[22..], [3, 0, 0, 0]);
    }

    #[test]
    fn each_is_named_once_and_in_order() {
        assert!(HAS.split_ascii_whitespace().is_sorted_by(|one, two| one < two));
    }
}
