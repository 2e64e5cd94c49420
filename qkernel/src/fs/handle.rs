//! File handles (name_to_handle_at(2)). Those of a file system in guest memory are as on Linux a
//! generation, which is 0 as numbers are not used again, and the number of the inode.

/// Bytes that a handle has.
pub const BYTES: u32 = 12;
/// FILEID_INO32_GEN, which Linux's tmpfs calls its own.
pub const KIND: i32 = 1;

/// FILEID_INO64_GEN, of handles that nothing is opened by.
pub const KIND_TO_COMPARE: i32 = 0x81;

/// What the handle to compare of the file with this number holds: it, and a generation.
pub fn to_compare(ino: u64) -> [u8; BYTES as usize] {
    let mut body = [0; BYTES as usize];
    body[..8].copy_from_slice(&ino.to_le_bytes());
    body
}

/// What the handle of the file with this number holds.
pub fn body(ino: u64) -> [u8; BYTES as usize] {
    let mut body = [0; BYTES as usize];
    body[4..].copy_from_slice(&ino.to_le_bytes());
    body
}

/// The number of the file that a handle with these bytes is of, if it can be one's.
pub fn number(body: [u8; BYTES as usize]) -> Option<u64> {
    let [0, 0, 0, 0, number @ ..] = body else { return None };
    Some(u64::from_le_bytes(number))
}
