//! Blocks of prompts that each endpoint has seen lately: a bounded guess of what its engine's cache has.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use super::prompt_blocks::BlockHash;

/// Of one endpoint.
const MAX_BLOCKS_OF_ENDPOINT: usize = 32_768;
/// Of an endpoint's blocks that one owner can have while others have some, as a part of all.
const OWNER_SHARE: usize = 2;
/// No place in a list.
const NONE: u32 = u32::MAX;

/// A place in a list that is linked both ways.
#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

/// The ends of such a list: its first place was used longest ago.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

impl Ends {
    fn push<T: Linked>(&mut self, all: &mut [T], at: u32) {
        let before = self.last;
        *all[at as usize].links() = Links { before, after: NONE };
        match before {
            NONE => self.first = at,
            _ => all[before as usize].links().after = at,
        }
        self.last = at;
    }

    fn remove<T: Linked>(&mut self, all: &mut [T], at: u32) {
        let Links { before, after } = *all[at as usize].links();
        match before {
            NONE => self.first = after,
            _ => all[before as usize].links().after = after,
        }
        match after {
            NONE => self.last = before,
            _ => all[after as usize].links().before = before,
        }
    }
}

trait Linked {
    fn links(&mut self) -> &mut Links;
}

/// A block, in the list of its owner.
#[derive(Debug)]
struct Block {
    hash: BlockHash,
    owner: u32,
    links: Links,
}

/// An owner's blocks; owners are in a list too.
#[derive(Debug)]
struct Owner {
    name: u64,
    blocks: Ends,
    count: usize,
    links: Links,
}

impl Linked for Block {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Linked for Owner {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Puts a value into a free place.
fn place<T>(all: &mut Vec<T>, free: &mut Vec<u32>, value: T) -> u32 {
    if let Some(at) = free.pop() {
        all[at as usize] = value;
        return at;
    }
    all.push(value);
    (all.len() - 1) as u32
}

/// Blocks of one endpoint, by owner; owners and their blocks in the order of their last use. A block has one owner, which
/// its hash covers.
#[derive(Debug)]
struct Seen {
    places: HashMap<BlockHash, u32>,
    blocks: Vec<Block>,
    free_blocks: Vec<u32>,
    /// By a hash of their names: clients may choose names, and so many that they would take more than the blocks.
    owners: HashMap<u64, u32>,
    listed: Vec<Owner>,
    free_owners: Vec<u32>,
    order: Ends,
}

impl Default for Seen {
    fn default() -> Self {
        Seen {
            places: HashMap::new(),
            blocks: Vec::new(),
            free_blocks: Vec::new(),
            owners: HashMap::new(),
            listed: Vec::new(),
            free_owners: Vec::new(),
            order: EMPTY,
        }
    }
}

impl Seen {
    fn count_of(&self, owner: u64) -> usize {
        self.owners.get(&owner).map_or(0, |at| self.listed[*at as usize].count)
    }

    /// Notes a use of these blocks; `is_new` gets those that are new.
    fn touch(&mut self, name: u64, hashes: &[BlockHash], mut is_new: impl FnMut(BlockHash)) {
        let owner = match self.owners.get(&name) {
            Some(at) => {
                self.order.remove(&mut self.listed, *at);
                *at
            }
            None => {
                let links = Links { before: NONE, after: NONE };
                let owner = Owner { name, blocks: EMPTY, count: 0, links };
                let at = place(&mut self.listed, &mut self.free_owners, owner);
                self.owners.insert(name, at);
                at
            }
        };
        self.order.push(&mut self.listed, owner);
        // The last block first: without its predecessors a block is of no use, so they are forgotten after it.
        for hash in hashes.iter().rev() {
            let of_owner = &mut self.listed[owner as usize];
            let at = match self.places.get(hash) {
                Some(at) if self.blocks[*at as usize].owner == owner => {
                    of_owner.blocks.remove(&mut self.blocks, *at);
                    *at
                }
                Some(_) => continue, // by chance another owner's
                None => {
                    let links = Links { before: NONE, after: NONE };
                    let block = Block { hash: *hash, owner, links };
                    let at = place(&mut self.blocks, &mut self.free_blocks, block);
                    self.places.insert(*hash, at);
                    of_owner.count += 1;
                    is_new(*hash);
                    at
                }
            };
            of_owner.blocks.push(&mut self.blocks, at);
        }
        if self.listed[owner as usize].count == 0 {
            self.remove_owner(owner);
        }
    }

    fn remove_owner(&mut self, at: u32) {
        self.owners.remove(&self.listed[at as usize].name);
        self.order.remove(&mut self.listed, at);
        self.free_owners.push(at);
    }

    /// Forgets blocks until `most` are left, and half of these for `owner` where others have some.
    fn shrink(&mut self, owner: u64, most: usize, mut forgotten: impl FnMut(BlockHash)) {
        let share = most / OWNER_SHARE;
        loop {
            let is_over = self.count_of(owner) > share;
            if self.places.len() <= most && !(self.owners.len() > 1 && is_over) {
                return;
            }
            let last = if is_over { self.owners.get(&owner).copied() } else { Some(self.order.first) };
            let Some(hash) = last.and_then(|at| self.pop(at)) else { return };
            forgotten(hash);
        }
    }

    /// Forgets the block of an owner that was used longest ago.
    fn pop(&mut self, owner: u32) -> Option<BlockHash> {
        let of_owner = self.listed.get_mut(owner as usize)?;
        let at = of_owner.blocks.first;
        let hash = self.blocks.get(at as usize)?.hash;
        of_owner.blocks.remove(&mut self.blocks, at);
        of_owner.count -= 1;
        self.places.remove(&hash);
        self.free_blocks.push(at);
        if of_owner.count == 0 {
            self.remove_owner(owner);
        }
        Some(hash)
    }
}

/// Numbers of endpoints, as bits.
#[derive(Clone, Debug, Default)]
struct Numbers {
    first: u64,
    /// Beyond 64 endpoints.
    rest: Vec<u64>,
}

impl Numbers {
    fn word(&self, at: usize) -> u64 {
        match at {
            0 => self.first,
            _ => self.rest.get(at - 1).copied().unwrap_or(0),
        }
    }

    fn word_mut(&mut self, at: usize) -> &mut u64 {
        if at == 0 {
            return &mut self.first;
        }
        if self.rest.len() < at {
            self.rest.reserve_exact(at - self.rest.len());
            self.rest.resize(at, 0);
        }
        &mut self.rest[at - 1]
    }

    fn add(&mut self, number: usize) {
        *self.word_mut(number / 64) |= 1 << (number % 64);
    }

    fn remove(&mut self, number: usize) {
        *self.word_mut(number / 64) &= !(1 << (number % 64));
    }

    fn is_empty(&self) -> bool {
        self.first == 0 && self.rest.iter().all(|word| *word == 0)
    }
}

/// Blocks by endpoint.
#[derive(Debug)]
pub struct PrefixIndex {
    /// Of all endpoints together, which share them equally.
    max_blocks: usize,
    /// Of each of them.
    most: usize,
    /// Numbers of the endpoints of the last `follow`.
    numbers: HashMap<String, usize>,
    /// By number.
    seen: Vec<Seen>,
    /// By block: the endpoints that have it. A walk down a prompt is one look-up for each block, however many endpoints
    /// there are.
    holders: HashMap<BlockHash, Numbers>,
    names: RandomState,
}

/// How many blocks of a prompt each endpoint has, from the first one on.
#[derive(Clone, Debug, Default)]
pub struct Depths(Vec<u16>);

impl Depths {
    fn note(&mut self, word: usize, mut bits: u64, depth: usize) {
        while bits != 0 {
            let number = word * 64 + bits.trailing_zeros() as usize;
            if let Some(found) = self.0.get_mut(number) {
                *found = depth as u16;
            }
            bits &= bits - 1;
        }
    }
}

impl PrefixIndex {
    pub fn new(max_blocks: usize) -> Self {
        PrefixIndex {
            max_blocks,
            most: MAX_BLOCKS_OF_ENDPOINT,
            numbers: HashMap::new(),
            seen: Vec::new(),
            holders: HashMap::new(),
            names: RandomState::new(),
        }
    }

    /// Blocks of all endpoints.
    pub fn len(&self) -> usize {
        self.seen.iter().map(|seen| seen.places.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn has(&self, url: &str) -> bool {
        self.numbers.contains_key(url)
    }

    /// Adopts the endpoints that there are: others are forgotten.
    pub fn follow(&mut self, urls: HashSet<String>) {
        let gone: Vec<String> = self.numbers.keys().filter(|url| !urls.contains(*url)).cloned().collect();
        for url in gone {
            self.forget(&url);
            self.numbers.remove(&url);
        }
        self.most = MAX_BLOCKS_OF_ENDPOINT.min(self.max_blocks / urls.len().max(1));
        let taken: HashSet<usize> = self.numbers.values().copied().collect();
        let mut free = (0..).filter(|number| !taken.contains(number));
        for url in urls {
            if let (false, Some(number)) = (self.numbers.contains_key(&url), free.next()) {
                self.numbers.insert(url, number);
            }
        }
        let count = self.numbers.values().max().map_or(0, |last| last + 1);
        self.seen.resize_with(count, Seen::default);
        let anonymous = self.names.hash_one("");
        for (number, seen) in self.seen.iter_mut().enumerate() {
            seen.shrink(anonymous, self.most, |hash| drop_holder(&mut self.holders, &hash, number));
        }
    }

    /// An endpoint's cache is gone.
    pub fn forget(&mut self, url: &str) {
        let Some(number) = self.numbers.get(url).copied() else { return };
        if let Some(seen) = self.seen.get_mut(number).map(std::mem::take) {
            seen.places.keys().for_each(|hash| drop_holder(&mut self.holders, hash, number));
        }
    }

    /// An endpoint got a prompt with these blocks. Only the endpoints of the last `follow` have a share.
    pub fn add(&mut self, url: &str, owner: &str, hashes: &[BlockHash]) {
        let hashes = hashes.get(..self.most / OWNER_SHARE).unwrap_or(hashes);
        let Some(number) = self.numbers.get(url).copied() else { return };
        let Some(seen) = self.seen.get_mut(number).filter(|_| !hashes.is_empty()) else { return };
        let (owner, holders) = (self.names.hash_one(owner), &mut self.holders);
        seen.touch(owner, hashes, |hash| holders.entry(hash).or_default().add(number));
        seen.shrink(owner, self.most, |hash| drop_holder(holders, &hash, number));
    }

    /// How many blocks each endpoint has; None where none has any.
    pub fn matched(&self, hashes: &[BlockHash]) -> Option<Depths> {
        let first = self.holders.get(hashes.first()?)?;
        let words = self.seen.len().div_ceil(64);
        let mut holders: Vec<u64> = (0..words).map(|at| first.word(at)).collect();
        let mut depths = Depths(vec![0; self.seen.len()]);
        let mut depth = 1;
        while let Some(hash) = hashes.get(depth).filter(|_| holders.iter().any(|word| *word != 0)) {
            let next = self.holders.get(hash);
            for (at, word) in holders.iter_mut().enumerate() {
                let deeper = *word & next.map_or(0, |next| next.word(at));
                depths.note(at, *word ^ deeper, depth);
                *word = deeper;
            }
            depth += 1;
        }
        for (at, word) in holders.into_iter().enumerate() {
            depths.note(at, word, depth);
        }
        Some(depths)
    }

    /// How many blocks an endpoint has.
    pub fn depth_at(&self, depths: &Depths, url: &str) -> usize {
        let number = self.numbers.get(url);
        number.and_then(|number| depths.0.get(*number)).map_or(0, |depth| usize::from(*depth))
    }

    /// The endpoints with blocks, and how many each of them has.
    pub fn listed<'a>(&'a self, depths: &'a Depths) -> impl Iterator<Item = (&'a str, usize)> {
        let all = self.numbers.iter().filter_map(|(url, number)| Some((url, *depths.0.get(*number)?)));
        all.filter(|(_, depth)| *depth > 0).map(|(url, depth)| (url.as_str(), usize::from(depth)))
    }
}

fn drop_holder(holders: &mut HashMap<BlockHash, Numbers>, hash: &BlockHash, number: usize) {
    if let Some(numbers) = holders.get_mut(hash) {
        numbers.remove(number);
        if numbers.is_empty() {
            holders.remove(hash);
        }
    }
}
