//! The rules by which routes are looked up (ip-rule(8)): those that there are as a rule.

use alloc::vec::Vec;

use linux_raw_sys::net::{AF_INET, AF_INET6};

use super::route::{LOCAL, MAIN};
use super::{NEW, RULE};
use crate::net::netlink::{Message, append};

/// FRA_PRIORITY, FRA_SUPPRESS_PREFIXLEN, FRA_TABLE, FRA_PROTOCOL.
const PRIORITY: u16 = 6;
const SUPPRESS: u16 = 14;
const TABLE: u16 = 15;
const PROTOCOL: u16 = 21;
/// FR_ACT_TO_TBL, RTPROT_KERNEL.
const TO_TABLE: u8 = 1;
const KERNEL: u8 = 2;
/// RT_TABLE_DEFAULT, which is empty.
const DEFAULT: u8 = 253;

/// All of the family that a question names.
pub fn all(question: &[u8]) -> Vec<Message> {
    let family = question.first().copied().unwrap_or(0);
    let four = [(0, LOCAL), (32766, MAIN), (32767, DEFAULT)];
    let of = |family: u32, rules: &[(u32, u8)]| -> Vec<_> {
        rules.iter().map(|(priority, table)| message(family as u8, *priority, *table)).collect()
    };
    let mut all = of(AF_INET, &four);
    all.extend(of(AF_INET6, &four[..2]));
    all.retain(|message| family == 0 || message.body[0] == family);
    all
}

/// struct fib_rule_hdr, and its attributes.
fn message(family: u8, priority: u32, table: u8) -> Message {
    let mut body = alloc::vec![family, 0, 0, 0, table, 0, 0, TO_TABLE, 0, 0, 0, 0];
    append(&mut body, TABLE, &u32::from(table).to_ne_bytes());
    append(&mut body, SUPPRESS, &u32::MAX.to_ne_bytes());
    append(&mut body, PROTOCOL, &[KERNEL]);
    append(&mut body, PRIORITY, &priority.to_ne_bytes());
    Message { kind: RULE | NEW, flags: 0, body }
}
