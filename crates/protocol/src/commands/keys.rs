//! Finds the arguments of a request that are keys.
//!
//! The servers describe keys by key specs. A spec says where keys begin: at an index, or behind a
//! keyword. It also says which arguments to take: a range, or the number in an argument. No spec
//! finds the keys of a few commands. The servers have functions for these, and so has this module.

use super::{Command, CommandFlags, names_of_set};
use crate::number;

/// Finds some of a command's keys.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct KeySpec {
    /// The place of the first key.
    pub begin: Begin,
    /// The arguments to take from there.
    pub find: Find,
    /// The use of these keys by the command.
    pub flags: KeyFlags,
}

/// The place where a [`KeySpec`] begins.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Begin {
    /// At an argument with this index.
    Index(u8),
    /// Behind a keyword.
    Keyword {
        /// The keyword in lower case. Requests may write it in any case.
        word: &'static [u8],
        /// Index at which the search begins. Negative: counted from the end, and searched
        /// backwards.
        from: i8,
    },
    /// No spec describes it.
    Unknown,
}

/// The arguments that a [`KeySpec`] takes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Find {
    /// Every `step`th argument up to the last one.
    Range {
        /// The last argument, relative to the first; negative: counted from the end of the request.
        last: i8,
        /// Distance of two keys.
        step: u8,
        /// With a negative `last`: keys are in the first 1/`limit` of the arguments. 0 and 1: in
        /// all.
        limit: u8,
    },
    /// As many as an argument says.
    Count {
        /// The argument with the number of keys, relative to the beginning.
        number: u8,
        /// The first key, relative to the beginning.
        first: u8,
        /// Distance of two keys.
        step: u8,
    },
    /// No spec describes it.
    Unknown,
}

/// The rule to find the keys of a command.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum KeyScan {
    /// By its key specs.
    Specs,
    /// SORT, SORT_RO: the first argument and the argument of STORE.
    Sort,
    /// GEORADIUS, GEORADIUSBYMEMBER: the first argument and the argument of STORE or STOREDIST.
    GeoRadius,
    /// MIGRATE: the third argument, or if it is empty all arguments behind KEYS.
    Migrate,
    /// DEBUG: the argument behind OBJECT. The other subcommands have no key.
    DebugObject,
}

/// The keys cannot be found. The server will refuse the request, unless a spec is unknown
/// ([`Find::Unknown`]) and no rule `key_scan` replaces it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct KeyError;

/// The use of the keys of a spec.
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
    /// The command may have more keys than the spec finds.
    INCOMPLETE "incomplete" 9;
    /// The other flags depend on the arguments.
    VARIABLE_FLAGS "variable_flags" 10;
}

impl Command {
    /// Calls `visit` with the index and flags of each argument that routes the request. Arguments
    /// with [`KeyFlags::NOT_KEY`] are routed like keys, but are not keys.
    ///
    /// A request may have a key twice. A command that may have keys may have none.
    ///
    /// # Errors
    /// When the arguments are invalid, for example a number of keys beyond the end. The server will
    /// refuse such a request. Also when a spec is unknown ([`Find::Unknown`]): then the server may
    /// accept it. Discard the keys visited until then.
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

    /// The options of SORT may have any order and repeat. Of several STORE the last one counts. The
    /// patterns of BY and GET are not keys: the server derives keys from them and the data.
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

    /// STORE and STOREDIST may be among the options. Of several the last one counts.
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

    /// `MIGRATE host port key db timeout [options]`, or an empty key and `KEYS` as the last option.
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
        // As in the servers: the spec only says whether the word KEYS occurs. It may be a password.
        // The loop over the options finds the option itself.
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
    /// Steps and checks are those of the servers' `getKeysUsingKeySpecs` (db.c).
    fn keys<'a>(
        &self,
        flags: CommandFlags,
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
                    // Counted from the end of the possible keys; -1 is the last one.
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
                if count == 0 && flags.has(CommandFlags::NO_MANDATORY_KEYS) {
                    return Ok(());
                }
                let count = usize::try_from(count).map_err(|_| KeyError)?;
                let first = begin + usize::from(first);
                // This bound also prevents an overflow below.
                if count > argc {
                    return Err(KeyError);
                }
                let behind = first + count * usize::from(step);
                // The range ends behind the last key, not behind its values.
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

    /// The index of the first argument to take. A forward search finds the first keyword. A
    /// backward search stops before argument 1, as in the servers.
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

/// Whether a server reads an argument as this word, given in lower case. The servers compare C
/// strings, so an argument ends at its first zero byte.
pub fn is_word(arg: &[u8], word: &[u8]) -> bool {
    match arg.split_at_checked(word.len()) {
        Some((start, rest)) => start.eq_ignore_ascii_case(word) && matches!(rest, [] | [0, ..]),
        None => false,
    }
}
