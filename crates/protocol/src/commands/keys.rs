//! Which arguments of a request are keys.
//!
//! The servers describe it by key specs: where to begin (a place, or behind a keyword) and how many to
//! take (a range, or as many as an argument says). A few commands have keys that no spec finds; for
//! those the servers carry functions, and so do we.

use super::{Command, Flags, names_of_set};
use crate::number;

/// Finds some of a command's keys.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct KeySpec {
    /// Where to begin.
    pub begin: Begin,
    /// How many to take.
    pub find: Find,
    /// What the command does with them.
    pub flags: KeyFlags,
}

/// Where a [`KeySpec`] begins.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Begin {
    /// At an argument.
    Index(u8),
    /// Behind a word.
    Keyword {
        /// In lower case; requests may write it in any.
        word: &'static [u8],
        /// Where to look first. Negative: from the end of the request, towards its beginning.
        from: i8,
    },
    /// No spec can say.
    Unknown,
}

/// Which arguments a [`KeySpec`] takes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Find {
    /// Every `step`th up to a last one.
    Range {
        /// The last one, counted from the first; negative: counted from the end of the request.
        last: i8,
        /// 1: each.
        step: u8,
        /// With a negative `last`: only one in so many of what is left is a key. 0 and 1: all.
        limit: u8,
    },
    /// As many as an argument says.
    Count {
        /// The argument that says it, counted from the beginning.
        number: u8,
        /// The first key, counted from the beginning.
        first: u8,
        /// 1: each.
        step: u8,
    },
    /// No spec can say.
    Unknown,
}

/// How the keys of a command are found.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum KeyScan {
    /// As its specs say.
    Specs,
    /// SORT, SORT_RO: the first argument, and what STORE names.
    Sort,
    /// GEORADIUS and GEORADIUSBYMEMBER: the first argument, and what STORE or STOREDIST names.
    GeoRadius,
    /// MIGRATE: the third argument, or if it is empty all behind KEYS.
    Migrate,
    /// DEBUG: the argument behind OBJECT. The other subcommands name no key.
    DebugObject,
}

/// Where the keys are cannot be said: the request is one that the server will refuse.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct KeyError;

/// What a command does with the keys that a spec finds.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Default)]
pub struct KeyFlags(u16);

names_of_set! { KeyFlags: u16;
    /// Reads the value of the key; changes nothing.
    RO "RO" 0;
    /// Reads and changes the value.
    RW "RW" 1;
    /// Overwrites the value.
    OW "OW" 2;
    /// Removes the key.
    RM "RM" 3;
    /// Returns or copies the value.
    ACCESS "access" 4;
    /// Changes the value.
    UPDATE "update" 5;
    /// Adds to the value.
    INSERT "insert" 6;
    /// Takes from the value.
    DELETE "delete" 7;
    /// Not a key, but routed like one: the channels of sharded publish and subscribe.
    NOT_KEY "not_key" 8;
    /// There may be more keys than the spec finds.
    INCOMPLETE "incomplete" 9;
    /// The other flags depend on the arguments.
    VARIABLE_FLAGS "variable_flags" 10;
}

impl Command {
    /// Calls `visit` with the index of each argument by which the request is routed, and with what the
    /// command does with it. Those with [`KeyFlags::NOT_KEY`] are routed like keys and are none.
    ///
    /// A request may name the same key twice, and a command that may have keys may have none.
    ///
    /// # Errors
    /// When the arguments make no sense, a count of keys beyond the end for one. The server will
    /// refuse such a request; the keys visited until then mean nothing.
    #[inline]
    pub fn keys<'a>(
        &self,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
        mut visit: impl FnMut(usize, KeyFlags),
    ) -> Result<(), KeyError> {
        let only_key = usize::from(self.only_key);
        if only_key > 0 && only_key < argc {
            visit(only_key, self.keys[0].flags);
            return Ok(());
        }
        match self.key_scan {
            KeyScan::Specs => self
                .keys
                .iter()
                .try_for_each(|spec| spec.keys(self.flags, argc, &arg, &mut visit)),
            KeyScan::Sort => self.keys_of_sort(argc, arg, visit),
            KeyScan::GeoRadius => self.keys_of_georadius(argc, arg, visit),
            KeyScan::Migrate => self.keys_of_migrate(argc, arg, visit),
            KeyScan::DebugObject => {
                if argc > 2 && is_word(arg(1), b"object") {
                    visit(2, KeyFlags::RO);
                }
                Ok(())
            }
        }
    }

    /// SORT's options may come in any order and repeat; of several STORE the last one counts, and
    /// what BY and GET name is derived from the data and no key of the request.
    fn keys_of_sort<'a>(
        &self,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
        mut visit: impl FnMut(usize, KeyFlags),
    ) -> Result<(), KeyError> {
        visit(self.key_in_front(argc)?, self.keys[0].flags);
        let Some(store) = self.keys.iter().find(|spec| spec.flags.has(KeyFlags::OW)) else {
            return Ok(());
        };
        let mut stored = None;
        let mut at = 2;
        while at < argc {
            let word = arg(at);
            if is_word(word, b"limit") {
                at += 2;
            } else if is_word(word, b"get") || is_word(word, b"by") {
                at += 1;
            } else if is_word(word, b"store") && at + 1 < argc {
                stored = Some(at + 1);
            }
            at += 1;
        }
        if let Some(stored) = stored {
            visit(stored, store.flags);
        }
        Ok(())
    }

    /// STORE and STOREDIST may stand among the options; of several the last one counts.
    fn keys_of_georadius<'a>(
        &self,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
        mut visit: impl FnMut(usize, KeyFlags),
    ) -> Result<(), KeyError> {
        visit(self.key_in_front(argc)?, self.keys[0].flags);
        let Some(store) = self.keys.get(1) else {
            return Ok(());
        };
        let Begin::Keyword { from, .. } = store.begin else {
            return Ok(());
        };
        let mut stored = None;
        let mut at = usize::from(from.unsigned_abs());
        while at + 1 < argc {
            let word = arg(at);
            if is_word(word, b"store") || is_word(word, b"storedist") {
                at += 1;
                stored = Some(at);
            }
            at += 1;
        }
        if let Some(stored) = stored {
            visit(stored, store.flags);
        }
        Ok(())
    }

    /// `MIGRATE host port key db timeout [options]`, or with an empty key and `KEYS` as last option.
    fn keys_of_migrate<'a>(
        &self,
        argc: usize,
        arg: impl Fn(usize) -> &'a [u8],
        mut visit: impl FnMut(usize, KeyFlags),
    ) -> Result<(), KeyError> {
        if argc < 4 {
            return Err(KeyError);
        }
        let Some(listed) = self.keys.get(1) else {
            return Err(KeyError);
        };
        // As the servers do it: the spec only says whether the word is there at all. It may be a
        // password; where it is the option is found by reading the options.
        if listed.begins(argc, &arg).is_err() {
            visit(3, self.keys[0].flags);
            return Ok(());
        }
        let mut at = 6;
        while at < argc {
            let word = arg(at);
            if is_word(word, b"keys") {
                if !arg(3).is_empty() {
                    return Err(KeyError);
                }
                (at + 1..argc).for_each(|key| visit(key, listed.flags));
                return Ok(());
            } else if is_word(word, b"auth") {
                at += 1;
            } else if is_word(word, b"auth2") {
                at += 2;
            }
            at += 1;
        }
        visit(3, self.keys[0].flags);
        Ok(())
    }

    fn key_in_front(&self, argc: usize) -> Result<usize, KeyError> {
        if argc > 1 { Ok(1) } else { Err(KeyError) }
    }
}

impl KeySpec {
    /// The steps and the checks are those of the servers' `getKeysUsingKeySpecs` (db.c).
    fn keys<'a>(
        &self,
        flags: Flags,
        argc: usize,
        arg: &impl Fn(usize) -> &'a [u8],
        visit: &mut impl FnMut(usize, KeyFlags),
    ) -> Result<(), KeyError> {
        let begin = self.begins(argc, arg)?;
        let (first, behind, step) = match self.find {
            Find::Range { last, step, limit } => {
                let behind = if last >= 0 {
                    begin + usize::from(last.unsigned_abs()) + 1
                } else {
                    // Counted from the end of what may be keys; -1 is the last one.
                    let left = argc.saturating_sub(begin) / usize::from(limit.max(1));
                    (begin + left + 1).saturating_sub(usize::from(last.unsigned_abs()))
                };
                (begin, behind, step)
            }
            Find::Count {
                number,
                first,
                step,
            } => {
                let number = begin + usize::from(number);
                if number >= argc {
                    return Err(KeyError);
                }
                let count = number::parse(arg(number)).ok_or(KeyError)?;
                if count == 0 && flags.has(Flags::NO_MANDATORY_KEYS) {
                    return Ok(());
                }
                let count = usize::try_from(count).map_err(|_| KeyError)?;
                let first = begin + usize::from(first);
                // No more than fit, and so no overflow.
                if count > argc {
                    return Err(KeyError);
                }
                let behind = first + count * usize::from(step);
                // The last key ends the range, not the last of what stands between two keys.
                (first, (behind + 1).saturating_sub(usize::from(step)), step)
            }
            Find::Unknown => return Err(KeyError),
        };
        if first >= behind || behind > argc {
            return Err(KeyError);
        }
        (first..behind)
            .step_by(usize::from(step.max(1)))
            .for_each(|key| visit(key, self.flags));
        Ok(())
    }

    /// The argument to begin at. A word looked for forwards is the first one found; looking backwards,
    /// the servers stop before they reach argument 1.
    fn begins<'a>(&self, argc: usize, arg: &impl Fn(usize) -> &'a [u8]) -> Result<usize, KeyError> {
        let (word, from) = match self.begin {
            Begin::Index(index) => return Ok(usize::from(index)),
            Begin::Keyword { word, from } => (word, from),
            Begin::Unknown => return Err(KeyError),
        };
        let away = usize::from(from.unsigned_abs());
        let found = if from > 0 {
            (away..argc).find(|&at| is_word(arg(at), word))
        } else {
            (2..(argc + 1).saturating_sub(away))
                .rev()
                .find(|&at| is_word(arg(at), word))
        };
        found.map(|at| at + 1).ok_or(KeyError)
    }
}

/// Whether an argument is this word (in lower case) to a server. The servers compare C strings, so
/// for them an argument ends at its first zero byte.
pub fn is_word(arg: &[u8], word: &[u8]) -> bool {
    match arg.split_at_checked(word.len()) {
        Some((start, rest)) => start.eq_ignore_ascii_case(word) && matches!(rest, [] | [0, ..]),
        None => false,
    }
}
