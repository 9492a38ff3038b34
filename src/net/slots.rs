//! Connections of an event loop by token. A token holds the slot's number and its generation, so
//! an event or a finished batch that comes late never reaches the slot's next owner.

use mio::Token;

/// Tokens below this are the loop's own: listeners, waker.
pub const FIRST_SLOT: usize = 16;

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    /// Puts a value into a free slot; `make` learns the token first.
    pub fn insert_with(&mut self, make: impl FnOnce(Token) -> T) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                value: None,
            });
            self.slots.len() - 1
        });
        let token = token_of(index, self.slots[index].generation);
        self.slots[index].value = Some(make(token));
        token
    }

    pub fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let (index, generation) = split(token)?;
        let slot = self.slots.get_mut(index)?;
        if slot.generation == generation {
            slot.value.as_mut()
        } else {
            None
        }
    }

    pub fn remove(&mut self, token: Token) -> Option<T> {
        self.get_mut(token)?;
        let (index, _) = split(token)?;
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1) & GENERATION_MASK;
        self.free.push(index);
        slot.value.take()
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Token, &mut T)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(index, slot)| {
                let token = token_of(index, slot.generation);
                slot.value.as_mut().map(|value| (token, value))
            })
    }
}

const INDEX_BITS: u32 = 32;
/// The highest token stays unused: mio reserves it on some systems.
const GENERATION_MASK: u32 = 0x7fff_ffff;

fn token_of(index: usize, generation: u32) -> Token {
    Token((index + FIRST_SLOT) | (generation as usize) << INDEX_BITS)
}

fn split(token: Token) -> Option<(usize, u32)> {
    let index = (token.0 & 0xffff_ffff).checked_sub(FIRST_SLOT)?;
    Some((index, (token.0 >> INDEX_BITS) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_token_does_not_reach_the_next_owner() {
        let mut slots = Slots::default();
        let first = slots.insert_with(|_| "first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert_with(|_| "second");
        assert_eq!(slots.get_mut(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get_mut(second), Some(&mut "second"));
        assert_eq!(slots.len(), 1);
        assert_eq!(slots.get_mut(Token(0)), None);
    }
}
