//! Which slot gets a QUIC packet: a table of buckets for those of nobody's connection, and the program that looks into the
//! packets.

use playhouse_protocol::connection_id::{BUCKET_OFFSET, BUCKETS, ConnectionIds, LENGTH, LONG_HEADER, SHIFTS};
use playhouse_sys::Instruction;

use super::Weighted;

/// To which slot a client's first packets go, by the ID that it has chosen: all packets of one client to the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buckets([u32; BUCKETS]);

impl Buckets {
    /// All of them are this slot's.
    pub fn all_to(slot: u32) -> Self {
        Buckets([slot; BUCKETS])
    }

    /// Gives each of these slots its part, by weight, and others none. Moves as few as can be: a client whose packets go
    /// elsewhere in the middle of its first words has to say them again.
    pub fn spread(&mut self, active: &[Weighted]) {
        let weight = |weight: u32| u64::from(weight.max(1));
        let total: u64 = active.iter().map(|(_, of)| weight(*of)).sum();
        if total == 0 {
            return;
        }
        // How many each has to have: cut points of the running sum, so that they are 256 together.
        let mut sum = 0;
        let mut missing: Vec<(u32, usize)> = Vec::with_capacity(active.len());
        for (slot, of) in active {
            let before = sum * BUCKETS as u64 / total;
            sum += weight(*of);
            missing.push((*slot, (sum * BUCKETS as u64 / total - before) as usize));
        }
        let mut free = Vec::new();
        for (bucket, slot) in self.0.iter().enumerate() {
            match missing.iter_mut().find(|(of, left)| of == slot && *left > 0) {
                Some((_, left)) => *left -= 1,
                None => free.push(bucket),
            }
        }
        let gains = missing.iter().flat_map(|(slot, left)| std::iter::repeat_n(*slot, *left));
        for (bucket, slot) in free.into_iter().zip(gains) {
            self.0[bucket] = slot;
        }
    }

    /// The slots that have any.
    pub fn slots(&self) -> Vec<u32> {
        let mut slots = self.0.to_vec();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Who gets a first packet with this ID.
    pub fn slot(&self, ids: &ConnectionIds, id: &[u8]) -> Option<u32> {
        ids.bucket(id).map(|bucket| self.0[bucket])
    }

    /// Successive buckets of one slot: the first behind them, and the slot.
    fn runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (end, slot) in (1..).zip(self.0) {
            match runs.last_mut().filter(|(_, last)| *last == slot) {
                Some(last) => last.0 = end,
                None => runs.push((end, slot)),
            }
        }
        runs
    }
}

/// A program that gives a packet with the ID of a connection of a `living` slot to that one, and every other by the bucket
/// of its ID. What is too short to have one is the first socket's, by the kernel's rules for such programs.
pub(super) fn program(ids: &ConnectionIds, buckets: &Buckets, living: &[u32]) -> Vec<Instruction> {
    let mut program = Vec::with_capacity(2 * living.len() + 64);
    let mut add = |code: u16, operand: u32| {
        program.push(Instruction { code, jump_true: 0, jump_false: 0, operand });
        program.len() - 1
    };
    // X becomes where the ID begins (RFC 8999 §5).
    add(LOAD_BYTE, 0);
    let is_long = add(JUMP_IF_ANY, LONG_HEADER.into());
    add(LOAD_X, 1);
    let short = add(JUMP, 0);
    let long = add(LOAD_BYTE, 5);
    let is_ours_long = add(JUMP_IF_EQUAL, LENGTH as u32);
    let other_length = add(JUMP, 0);
    let ours_long = add(LOAD_X, 6);
    // The mask of the first word goes over the second, and what comes out is check and slot.
    let common = add(STORE_X, OFFSET);
    add(LOAD_WORD_AT_X, 0);
    mask(&mut add, ids);
    add(STORE, SCRATCH);
    add(RESTORE_X, OFFSET);
    add(LOAD_WORD_AT_X, 4);
    add(RESTORE_X, SCRATCH);
    add(XOR_X, 0);
    add(STORE, SCRATCH);
    add(SHIFT_RIGHT, 8);
    let is_checked = add(JUMP_IF_EQUAL, ids.check);
    let unchecked = add(JUMP, 0);
    let checked = add(RESTORE, SCRATCH);
    add(AND, 0xff);
    let mut choices = Vec::with_capacity(living.len());
    for slot in living {
        choices.push(add(JUMP_IF_EQUAL, *slot));
        add(RETURN, slot.saturating_sub(1));
    }
    // Nobody's: by its bucket. Behind a short header any word of it does as well.
    let bucket = add(LOAD_WORD, 6 + BUCKET_OFFSET as u32);
    mask(&mut add, ids);
    add(SHIFT_RIGHT, 24);
    let runs = buckets.runs();
    for (end, slot) in &runs {
        // The last one needs no question.
        if *end < BUCKETS as u32 {
            choices.push(add(JUMP_UNLESS_BELOW, *end));
        }
        add(RETURN, slot.saturating_sub(1));
    }
    for (at, to) in [(is_long, long), (is_ours_long, ours_long), (is_checked, checked)] {
        // Never further than a few instructions.
        program[at].jump_true = (to - at - 1) as u8;
    }
    for (at, to) in [(short, common), (other_length, bucket), (unchecked, bucket)] {
        program[at].operand = (to - at - 1) as u32;
    }
    for at in choices {
        // Over the answer, unless it is this one.
        let over = if program[at].code == JUMP_IF_EQUAL {
            &mut program[at].jump_false
        } else {
            &mut program[at].jump_true
        };
        *over = 1;
    }
    program
}

/// What [`ConnectionIds`] masks with: of the word in A, into A. X is lost.
fn mask(add: &mut impl FnMut(u16, u32) -> usize, ids: &ConnectionIds) {
    add(XOR, ids.salt);
    for (factor, shift) in [ids.first, ids.second].into_iter().zip(SHIFTS) {
        add(MULTIPLY, factor);
        add(TO_X, 0);
        add(SHIFT_RIGHT, shift);
        add(XOR_X, 0);
    }
}

// Of `linux/bpf_common.h`: class, size or operation, mode or source.
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const LOAD_WORD_AT_X: u16 = 0x40;
const LOAD_X: u16 = 0x01;
const RESTORE: u16 = 0x60;
const RESTORE_X: u16 = 0x61;
const STORE: u16 = 0x02;
const STORE_X: u16 = 0x03;
const MULTIPLY: u16 = 0x24;
const AND: u16 = 0x54;
const SHIFT_RIGHT: u16 = 0x74;
const XOR: u16 = 0xa4;
const XOR_X: u16 = 0xac;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_UNLESS_BELOW: u16 = 0x35;
const JUMP_IF_ANY: u16 = 0x45;
const RETURN: u16 = 0x06;
const TO_X: u16 = 0x07;

/// Places of the program's scratch memory.
const OFFSET: u32 = 0;
const SCRATCH: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(buckets: &Buckets) -> Vec<(u32, usize)> {
        let count = |slot: u32| buckets.0.iter().filter(|other| **other == slot).count();
        buckets.slots().into_iter().map(|slot| (slot, count(slot))).collect()
    }

    fn moved(before: &Buckets, after: &Buckets) -> usize {
        before.0.iter().zip(after.0).filter(|(before, after)| **before != *after).count()
    }

    #[test]
    fn every_slot_has_its_part() {
        let mut buckets = Buckets::all_to(1);
        buckets.spread(&[(1, 1), (4, 1), (9, 2)]);
        assert_eq!(counts(&buckets), [(1, 64), (4, 64), (9, 128)]);
        buckets.spread(&[(7, 0)]);
        assert_eq!(counts(&buckets), [(7, 256)]);
        buckets.spread(&[]);
        assert_eq!(counts(&buckets), [(7, 256)]);
        buckets.spread(&[(1, 1), (2, 1), (3, 1)]);
        assert_eq!(counts(&buckets).iter().map(|(_, count)| count).sum::<usize>(), BUCKETS);
        assert!(counts(&buckets).iter().all(|(_, count)| (85..=86).contains(count)));
    }

    #[test]
    fn only_as_many_move_as_must() {
        let mut buckets = Buckets::all_to(1);
        buckets.spread(&[(1, 1), (2, 1), (3, 1), (4, 1)]);
        let before = buckets.clone();
        buckets.spread(&[(1, 1), (2, 1), (4, 1)]);
        assert_eq!(moved(&before, &buckets), 64, "those of the slot that has left");
        let before = buckets.clone();
        buckets.spread(&[(1, 1), (2, 1), (4, 1), (5, 1)]);
        assert_eq!(moved(&before, &buckets), 64, "those of the slot that has come");
        let before = buckets.clone();
        buckets.spread(&[(5, 1), (4, 1), (2, 1), (1, 1)]);
        assert_eq!(moved(&before, &buckets), 0);
    }

    #[test]
    fn the_largest_site_has_a_program_that_fits() {
        let mut buckets = Buckets::all_to(1);
        let slots: Vec<u32> = (1..=130).collect();
        buckets.spread(&slots.iter().map(|slot| (*slot, 1)).collect::<Vec<_>>());
        let program = program(&ConnectionIds::new([0x5a; 16]), &buckets, &slots);
        assert!(program.len() < 1024, "{}", program.len());
    }
}
