//! A bounded map for things that may be forgotten: when its young half is full it becomes the old half, and what was old is dropped.

use std::{collections::HashMap, hash::Hash, mem};

/// Holds the newest entries: at least `half`, at most twice as many.
pub(crate) struct Generations<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    pub(crate) fn new(half: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Gives what was forgotten to make room, so that a caller can drop it after releasing its lock.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<HashMap<K, V>> {
        let full = self.young.len() >= self.half && !self.young.contains_key(&key);
        let forgotten = full.then(|| mem::replace(&mut self.old, mem::take(&mut self.young)));
        self.young.insert(key, value);
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stay_and_the_size_is_bounded() {
        let mut map = Generations::new(3);
        for i in 0..100 {
            map.insert(i, i * 2);
            assert!((i.max(2) - 2..=i).all(|j| map.get(&j) == Some(&(j * 2)) || j > i));
            assert!(map.young.len() + map.old.len() <= 6);
        }
        assert_eq!(map.get(&90), None);
        map.insert(99, 1);
        assert_eq!(map.get(&99), Some(&1));
    }
}
