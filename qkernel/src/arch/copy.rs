//! memcpy(3) of the kernel image. The compiler's own for a target without vector registers is made
//! of string instructions, whose start costs more than most copies here, which are of some ten
//! words.

use core::arch::naked_asm;

/// Up to how many bytes plain moves are faster than a string instruction.
const LARGE: usize = 512;

/// Copies `count` bytes from `from` to `to`; `to`.
///
/// # Safety
/// As memcpy(3): both are valid for `count` bytes and do not overlap.
#[cfg_attr(target_os = "none", unsafe(export_name = "memcpy"))]
#[unsafe(naked)]
pub unsafe extern "C" fn copy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "cmp rdx, 16",
        "jb 3f",
        "cmp rdx, {large}",
        "ja 2f",
        // Sixteen by sixteen; the last sixteen, which may overlap those before, at the end.
        "xor ecx, ecx",
        "sub rdx, 16",
        "1:",
        "mov r8, [rsi + rcx]",
        "mov r9, [rsi + rcx + 8]",
        "mov [rdi + rcx], r8",
        "mov [rdi + rcx + 8], r9",
        "add rcx, 16",
        "cmp rcx, rdx",
        "jb 1b",
        "mov r8, [rsi + rdx]",
        "mov r9, [rsi + rdx + 8]",
        "mov [rdi + rdx], r8",
        "mov [rdi + rdx + 8], r9",
        "ret",
        // Many: whole words, and the last one.
        "2:",
        "mov r8, [rsi + rdx - 8]",
        "mov [rdi + rdx - 8], r8",
        "mov rcx, rdx",
        "shr rcx, 3",
        "rep movsq",
        "ret",
        // Few: from the front and from the back, which meet or overlap.
        "3:",
        "cmp rdx, 8",
        "jb 4f",
        "mov r8, [rsi]",
        "mov r9, [rsi + rdx - 8]",
        "mov [rdi], r8",
        "mov [rdi + rdx - 8], r9",
        "ret",
        "4:",
        "cmp rdx, 4",
        "jb 5f",
        "mov r8d, [rsi]",
        "mov r9d, [rsi + rdx - 4]",
        "mov [rdi], r8d",
        "mov [rdi + rdx - 4], r9d",
        "ret",
        "5:",
        "test rdx, rdx",
        "jz 6f",
        // One to three: the first, the middle and the last may be the same.
        "mov rcx, rdx",
        "shr rcx",
        "movzx r8d, byte ptr [rsi]",
        "movzx r9d, byte ptr [rsi + rcx]",
        "movzx r10d, byte ptr [rsi + rdx - 1]",
        "mov [rdi], r8b",
        "mov [rdi + rcx], r9b",
        "mov [rdi + rdx - 1], r10b",
        "6:",
        "ret",
        large = const LARGE,
    )
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn every_size_is_copied_and_nothing_beside_it() {
        const AROUND: usize = 32;
        let sizes = (0..=LARGE + 80).chain([4095, 4096, 4097, 65_537]);
        for (size, shift) in sizes.flat_map(|size| [(size, 0), (size, 1), (size, 5)]) {
            let from: Vec<u8> = (0..size + shift).map(|i| (i * 7 + size) as u8 | 1).collect();
            let mut to = alloc::vec![0; size + shift + 2 * AROUND];
            let start = to[AROUND + shift..].as_mut_ptr();
            // SAFETY: both have that many bytes from there on.
            let told = unsafe { copy(start, from[shift..].as_ptr(), size) };
            assert_eq!(told, start);
            let (before, rest) = to.split_at(AROUND + shift);
            let (copied, after) = rest.split_at(size);
            assert_eq!(copied, &from[shift..], "{size} bytes");
            assert!(before.iter().chain(after).all(|byte| *byte == 0), "{size} bytes");
        }
    }
}
