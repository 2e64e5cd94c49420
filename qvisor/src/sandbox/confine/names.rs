//! The names of the host's system calls.

use libc::c_long;

/// Number and name on each line.
static NAMES: &str = include_str!("names.txt");

fn all() -> impl Iterator<Item = (c_long, &'static str)> {
    NAMES.lines().filter_map(|line| {
        let (number, name) = line.split_once(' ')?;
        Some((number.parse().ok()?, name))
    })
}

/// The number of a call.
pub fn number(name: &str) -> Option<u32> {
    all().find(|(_, n)| *n == name).and_then(|(number, _)| u32::try_from(number).ok())
}

/// The name of a call. Allocates nothing.
pub fn name(number: c_long) -> &'static str {
    all().find(|(n, _)| *n == number).map_or("?", |(_, name)| name)
}
