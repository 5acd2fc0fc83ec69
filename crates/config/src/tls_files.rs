//! Files with certificates and keys: read at the start, and again while respool runs.
//!
//! ```text
//!   every 5 s ──► read all files of a part ──► changed, and the same a second later
//!                                                   │
//!      the old ones stay, one warning ◄── wrong ────┴──── good ──► all workers
//! ```
//!
//! The files of all listeners are a set, as are those for the servers of a pool. A part of a set
//! is a certificate with its key, which are replaced together or not at all, or a file of CAs. A
//! wrong part keeps no other part of its set from being replaced. Contents are compared, not times:
//! Kubernetes replaces a directory by a symbolic link. A part must be the same in two looks,
//! because a file may be half-written in the first one. A reload of the configuration reads all
//! files once more, and applies them at once. Only a reload reads the CAs of the system again.
//!
//! A certificate that is not valid now, because it has expired or its time has not come, is no
//! mistake at the start: respool shows it, with a warning. It does not replace one that is valid.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use respool_driver::TlsUpdates;
use respool_driver::tls::{
    CertificateFacts, ClientAuth, ListenerTls, ListenerTlsSettings, MinVersion, Roots, ServerTls,
    ServerTlsSettings, SystemCas, TlsIdentity, TlsInput, TlsProblem,
};
use tracing::{info, warn};

use crate::plain::plain;
use crate::raw::read_file;

use expiry::{CertificateFile, ToldExpiries, shown_certificate};

mod expiry;

/// The most bytes of a file with certificates or a key. A longer one is refused: a device may never
/// end. The bundle of CAs of a system has less than 300 KiB.
const PEM_BYTES_MAX: u64 = 4 << 20;

/// The time between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The time after which files that have changed are looked at again.
const SETTLE: Duration = Duration::from_secs(1);

/// The hasher of contents, so that those of two configurations can be compared.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentityFiles {
    /// The certificate, and those between it and its CA.
    pub(crate) certificate: PathBuf,
    /// The private key.
    pub(crate) key: PathBuf,
}

/// The files and settings for the TLS of listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenerTlsFiles {
    /// The certificates; the first one is for clients that name no known host.
    pub(crate) identities: Vec<IdentityFiles>,
    /// The CAs of clients.
    pub(crate) client_ca: Option<PathBuf>,
    /// Whether clients have certificates.
    pub(crate) client_auth: ClientAuth,
    /// The oldest version of TLS.
    pub(crate) min_version: MinVersion,
}

/// The files and settings for the TLS to the servers of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerTlsFiles {
    /// The CAs of servers; `None`: those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// The certificate of respool.
    pub(crate) identity: Option<IdentityFiles>,
    /// The name in the certificates; `None`: the host that respool connects to.
    pub(crate) name: Option<String>,
    /// Whether certificates are checked.
    pub(crate) verify: bool,
}

/// The time at which a certificate of respool, or a CA that it trusts, expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateExpiry {
    /// The option that names its file.
    pub option: &'static str,
    /// Its file.
    pub path: PathBuf,
    /// The time.
    pub at: SystemTime,
}

/// Parts of sets with new contents that were refused, by their use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedSets {
    /// Of the listeners.
    pub listeners: u64,
    /// For the servers of a pool.
    pub servers: u64,
}

impl RefusedSets {
    /// Adds others.
    pub(crate) fn add(&mut self, other: RefusedSets) {
        self.listeners += other.listeners;
        self.servers += other.servers;
    }
}

/// A mistake in one file, or in the name of servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFileProblem {
    /// The option that names the file.
    pub(crate) option: &'static str,
    /// The index of the file in its set; `None`: the mistake is in no file.
    file: Option<usize>,
    /// The mistake.
    pub(crate) what: String,
}

/// A set of files that make one TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FileSet {
    /// Of all listeners with TLS.
    Listeners(ListenerTlsFiles),
    /// Of the servers of these pools.
    Servers(ServerTlsFiles, Vec<usize>),
}

/// The contents of a set.
#[derive(Clone)]
struct Contents {
    /// Of its files, in the order of [`FileSet::paths`].
    files: Vec<Vec<u8>>,
    /// The CAs of the system at the start or the last reload, if they count.
    cas: Option<SystemCas>,
}

// The debug format shows no key.
impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").finish_non_exhaustive()
    }
}

/// The hashes of the contents of files. `None`: the file cannot be read.
type FileHashes = Vec<Option<u64>>;

/// The hashes of the contents of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ContentHashes {
    /// Of its files, in the order of [`FileSet::paths`].
    files: FileHashes,
    /// Of the CAs of the system, if they count.
    cas: Option<u64>,
}

impl Contents {
    fn hashes(&self, unreadable: &[TlsFileProblem]) -> ContentHashes {
        let files = self.files.iter().enumerate();
        let files = files.map(|(index, file)| {
            let mut problems = unreadable.iter();
            let is_read = problems.all(|problem| problem.file != Some(index));
            is_read.then(|| HASHER.hash_one(file))
        });
        ContentHashes {
            files: files.collect(),
            cas: self.cas.as_ref().map(|cas| HASHER.hash_one(cas)),
        }
    }

    /// These contents, with those of `new` for some files.
    fn with(&self, new: &Contents, replaced: impl Iterator<Item = usize>) -> Contents {
        let mut mixed = self.clone();
        for file in replaced {
            mixed.files[file].clone_from(&new.files[file]);
        }
        mixed
    }
}

/// What the contents of a set make.
#[derive(Clone, Debug)]
enum MadeOfFiles {
    Listeners(ListenerTls),
    Servers(ServerTls),
}

impl MadeOfFiles {
    /// The certificates of respool, in the order of the parts.
    fn certificates(&self) -> &[CertificateFacts] {
        match self {
            MadeOfFiles::Listeners(tls) => tls.certificates(),
            MadeOfFiles::Servers(tls) => tls.certificate().map(slice::from_ref).unwrap_or_default(),
        }
    }

    /// When the first CA of the set expires. `None`: never, or there is none.
    fn ca_expiry(&self) -> Option<SystemTime> {
        match self {
            MadeOfFiles::Listeners(tls) => tls.ca_expiry(),
            MadeOfFiles::Servers(tls) => tls.ca_expiry(),
        }
    }
}

/// The result of a look at a set.
#[derive(Default)]
struct SetChange {
    /// Whether new TLS is made of new contents.
    is_taken: bool,
    /// The number of parts with new contents that are refused.
    refused: u64,
}

/// New contents of a part in the looks at it.
#[derive(Clone, Debug, Default)]
struct PartState {
    /// The hashes of other contents in the last look.
    seen: Option<FileHashes>,
    /// The contents that were refused, so that the log says it once.
    refused: Option<RefusedPart>,
}

/// Contents of a part that were refused.
#[derive(Clone, Debug)]
struct RefusedPart {
    hashes: FileHashes,
    /// The time from which on they are taken. `None`: never.
    good_at: Option<SystemTime>,
}

/// Contents of a part that are not taken.
struct PartRefusal {
    part: usize,
    /// The reason, which begins with the option.
    text: String,
    /// See [`RefusedPart::good_at`].
    good_at: Option<SystemTime>,
}

/// A set with its contents in use.
#[derive(Clone, Debug)]
struct LoadedSet {
    files: FileSet,
    made: MadeOfFiles,
    /// The contents in use.
    contents: Arc<Contents>,
    /// Their hashes.
    content: ContentHashes,
    /// New contents of each part, in the order of [`FileSet::parts`].
    parts: Vec<PartState>,
}

/// All sets. It is empty without TLS.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    sets: Vec<LoadedSet>,
    /// The time of the next look.
    next_look: Option<Instant>,
    /// The expiries of which the log has told.
    told: ToldExpiries,
}

/// Two are equal if they have the same files. Their contents may differ.
impl PartialEq for TlsFiles {
    fn eq(&self, other: &TlsFiles) -> bool {
        let files = |all: &TlsFiles| -> Vec<FileSet> {
            all.sets.iter().map(|set| set.files.clone()).collect()
        };
        files(self) == files(other)
    }
}

impl Eq for TlsFiles {}

impl TlsFiles {
    /// Reads the files of the listeners with TLS.
    ///
    /// # Errors
    /// Returns every file that cannot be read, and every mistake in the others.
    pub(crate) fn add_listeners(
        &mut self,
        files: ListenerTlsFiles,
    ) -> Result<(), Vec<TlsFileProblem>> {
        self.add(FileSet::Listeners(files))
    }

    /// Reads the files for the servers of a pool, by its place among all pools. Equal files are
    /// read once.
    ///
    /// # Errors
    /// As [`TlsFiles::add_listeners`].
    pub(crate) fn add_pool(
        &mut self,
        files: ServerTlsFiles,
        pool: usize,
    ) -> Result<(), Vec<TlsFileProblem>> {
        for set in &mut self.sets {
            if let FileSet::Servers(known, pools) = &mut set.files
                && *known == files
            {
                pools.push(pool);
                return Ok(());
            }
        }
        self.add(FileSet::Servers(files, vec![pool]))
    }

    fn add(&mut self, files: FileSet) -> Result<(), Vec<TlsFileProblem>> {
        let cas = files.uses_system_cas().then(SystemCas::read);
        let (contents, unreadable) = files.read(cas.as_ref());
        let content = contents.hashes(&unreadable);
        let made = files.make(&contents, unreadable)?;
        self.sets.push(LoadedSet {
            parts: vec![PartState::default(); files.parts().len()],
            files,
            made,
            contents: Arc::new(contents),
            content,
        });
        Ok(())
    }

    /// The TLS of the listeners.
    pub(crate) fn of_listeners(&self) -> Option<ListenerTls> {
        self.sets.iter().find_map(|set| match &set.made {
            MadeOfFiles::Listeners(tls) => Some(tls.clone()),
            MadeOfFiles::Servers(_) => None,
        })
    }

    /// The TLS to the servers of each pool.
    pub fn of_pools(&self, count: usize) -> Vec<Option<ServerTls>> {
        let mut of_pools = vec![None; count];
        for set in &self.sets {
            if let (MadeOfFiles::Servers(tls), FileSet::Servers(_, pools)) = (&set.made, &set.files)
            {
                for &pool in pools {
                    of_pools[pool] = Some(tls.clone());
                }
            }
        }
        of_pools
    }

    /// Whether there is a file to look at.
    pub(crate) fn has_files(&self) -> bool {
        self.sets.iter().any(|set| !set.files.paths().is_empty())
    }

    /// The paths of the private keys, with their options.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let paths = self.sets.iter().flat_map(|set| set.files.paths());
        paths.filter(|(option, _)| ["tls-key", "server-tls-key"].contains(option))
    }

    /// The certificates of respool that expire, and the CAs that it trusts.
    pub(crate) fn expiries(&self) -> Vec<CertificateExpiry> {
        let files = self.certificate_files().into_iter();
        let expiry = |file: CertificateFile<'_>| {
            Some(CertificateExpiry {
                option: file.option,
                path: file.path.to_owned(),
                at: file.expiry?,
            })
        };
        files.filter_map(expiry).collect()
    }

    /// The files with certificates in use, each once.
    fn certificate_files(&self) -> Vec<CertificateFile<'_>> {
        let mut all: Vec<_> = self
            .sets
            .iter()
            .flat_map(|set| set.certificate_files())
            .collect();
        // Pools with other settings may have the same certificate.
        let mut seen = HashSet::new();
        all.retain(|one| seen.insert((one.option, one.path)));
        all
    }

    /// Warnings about each certificate and CA that expires soon or has expired, and about each
    /// certificate that is not valid yet or that most clients refuse.
    pub(crate) fn warnings(&self, now: SystemTime) -> Vec<String> {
        let files = self.certificate_files();
        files.iter().flat_map(|file| file.warnings(now)).collect()
    }

    /// The time until the next look; `None` without a file.
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        let next = self
            .next_look
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        self.has_files().then_some(next)
    }

    /// A text for each set that names those of its files that have other contents than in use.
    /// Other files are a difference of their options.
    pub fn changes_since(&self, in_use: &TlsFiles) -> Vec<String> {
        let changed_files = |set: &LoadedSet| {
            let old = in_use.sets.iter();
            let mut same = old.filter(|old| {
                old.files.paths() == set.files.paths()
                    && old.files.uses_system_cas() == set.files.uses_system_cas()
            });
            let first = same.next()?;
            let is_changed =
                first.content != set.content && same.all(|old| old.content != set.content);
            is_changed.then(|| set.files.shown_changes(&first.content, &set.content))
        };
        self.sets.iter().filter_map(changed_files).collect()
    }

    /// Keeps each valid certificate in use with its key, where the new one in the same files is not
    /// valid now. Returns a text for each. Call it before the sets are compared.
    #[must_use]
    pub fn keep_valid(&mut self, in_use: &TlsFiles) -> Vec<String> {
        let now = SystemTime::now();
        let sets = self.sets.iter_mut();
        sets.flat_map(|set| set.keep_valid(in_use, now)).collect()
    }

    /// The set with a part that has these files, and the index of the part.
    fn part_with(&self, paths: &[(&'static str, &Path)]) -> Option<(&LoadedSet, usize)> {
        self.sets.iter().find_map(|set| {
            let (parts, of_set) = (set.files.parts(), set.files.paths());
            let index = parts.into_iter().position(|files| of_set[files] == *paths);
            Some((set, index?))
        })
    }

    /// Keeps the TLS in use of sets with the same settings and contents, so that clients and
    /// servers may resume their TLS sessions after a reload.
    pub fn keep_same(&mut self, in_use: &TlsFiles) {
        for set in &mut self.sets {
            let mut old = in_use.sets.iter();
            let same =
                old.find(|old| old.content == set.content && old.files.has_settings_of(&set.files));
            if let Some(old) = same {
                set.made = old.made.clone();
            }
        }
    }

    /// Looks at all files, if it is time. Passes sets with new contents to the workers, and warns
    /// of certificates that expire. Returns the number of parts that are refused and were not
    /// before.
    pub(crate) fn look(&mut self, updates: &TlsUpdates, now: Instant) -> RefusedSets {
        let mut refused = RefusedSets::default();
        let is_due = self.next_look.is_none_or(|at| now >= at);
        if !self.has_files() || !is_due {
            return refused;
        }
        let date = SystemTime::now();
        for set in &mut self.sets {
            let change = set.look(date);
            if change.is_taken {
                tell(updates, &set.files, &set.made);
            }
            match &set.files {
                FileSet::Listeners(_) => refused.listeners += change.refused,
                FileSet::Servers(..) => refused.servers += change.refused,
            }
        }
        let mut told = std::mem::take(&mut self.told);
        for warning in told.due_warnings(&self.certificate_files(), date) {
            warn!("{}", plain(&warning));
        }
        self.told = told;
        let mut parts = self.sets.iter().flat_map(|set| &set.parts);
        let is_settling = parts.any(|part| part.seen.is_some());
        self.next_look = Some(now + if is_settling { SETTLE } else { LOOK_EVERY });
        refused
    }
}

/// Passes new TLS to all workers.
fn tell(updates: &TlsUpdates, files: &FileSet, made: &MadeOfFiles) {
    match (files, made) {
        (FileSet::Listeners(_), MadeOfFiles::Listeners(tls)) => updates.replace_listeners(tls),
        (FileSet::Servers(_, pools), MadeOfFiles::Servers(tls)) => {
            for &pool in pools {
                updates.replace_pool(pool, tls);
            }
        }
        _ => unreachable!("a set makes the TLS of its own kind"),
    }
}

impl LoadedSet {
    /// Looks at the files, and makes new TLS of new contents. Wrong parts keep no other part back.
    fn look(&mut self, now: SystemTime) -> SetChange {
        let (contents, unreadable) = self.files.read(self.contents.cas.as_ref());
        let found = contents.hashes(&unreadable);
        let mut taken = self.settled_parts(&found, now);
        let mut change = SetChange::default();
        while !taken.is_empty() {
            let refusals = match self.make_with(&contents, &unreadable, &taken, now) {
                Ok((made, mixed)) => {
                    self.take(made, mixed);
                    change.is_taken = true;
                    break;
                }
                Err(refusals) => refusals,
            };
            for PartRefusal {
                part,
                text,
                good_at,
            } in refusals
            {
                warn!("{}; the certificates from before stay", plain(&text));
                // A part may have several mistakes.
                change.refused += u64::from(taken.contains(&part));
                taken.retain(|one| *one != part);
                let hashes = found.files[self.files.part(part)].to_vec();
                self.parts[part].refused = Some(RefusedPart { hashes, good_at });
            }
        }
        change
    }

    /// The parts with new contents that were the same in the last look, and are not refused.
    fn settled_parts(&mut self, found: &ContentHashes, now: SystemTime) -> Vec<usize> {
        let mut settled = Vec::new();
        for (index, files) in self.files.parts().into_iter().enumerate() {
            let (new, part) = (&found.files[files.clone()], &mut self.parts[index]);
            if *new == self.content.files[files] {
                *part = PartState::default();
                continue;
            }
            let is_refused = part.refused.as_ref().is_some_and(|refused| {
                refused.hashes == new && refused.good_at.is_none_or(|at| now < at)
            });
            if is_refused {
                part.seen = None;
            } else if part
                .seen
                .replace(new.to_vec())
                .is_some_and(|seen| seen == new)
            {
                part.seen = None;
                settled.push(index);
            }
        }
        settled
    }

    /// Makes TLS of the contents in use and the new ones of some parts. `Err`: the parts that are
    /// not taken, at least one.
    fn make_with(
        &self,
        new: &Contents,
        unreadable: &[TlsFileProblem],
        taken: &[usize],
        now: SystemTime,
    ) -> Result<(MadeOfFiles, Contents), Vec<PartRefusal>> {
        let part_of = |file: usize| {
            let mut parts = taken.iter().copied();
            parts.find(|part| self.files.part(*part).contains(&file))
        };
        let mixed = self
            .contents
            .with(new, taken.iter().flat_map(|part| self.files.part(*part)));
        let of_taken = unreadable.iter().cloned();
        let of_taken = of_taken.filter(|one| one.file.is_some_and(|file| part_of(file).is_some()));
        let refusal = |problem: TlsFileProblem| PartRefusal {
            // Parts that are in use have no problem, so without a file it is one of all.
            part: problem.file.and_then(part_of).unwrap_or(taken[0]),
            text: format!("--{}: {}", problem.option, problem.what),
            good_at: None,
        };
        let made = self.files.make(&mixed, of_taken.collect());
        let made =
            made.map_err(|problems| problems.into_iter().map(refusal).collect::<Vec<_>>())?;
        let files = self.files.certificate_files(&made);
        let in_use = self.made.certificates();
        let invalid = taken.iter().filter_map(|&part| {
            let old = in_use.get(part)?;
            invalidity(files.get(part)?, old, now).map(|(text, good_at)| PartRefusal {
                part,
                text,
                good_at: Some(good_at),
            })
        });
        let invalid: Vec<PartRefusal> = invalid.collect();
        match invalid.is_empty() {
            true => Ok((made, mixed)),
            false => Err(invalid),
        }
    }

    /// Takes new TLS, and says so.
    fn take(&mut self, made: MadeOfFiles, contents: Contents) {
        let hashes = contents.hashes(&[]);
        let files = self.files.shown_changes(&self.content, &hashes);
        let changed = |file: &CertificateFile<'_>| {
            let mut paths = self.files.paths().into_iter().enumerate();
            paths.any(|(index, path)| {
                path == (file.option, file.path) && self.content.files[index] != hashes.files[index]
            })
        };
        let new = self.files.certificate_files(&made).into_iter();
        let new: Vec<CertificateFile<'_>> = new.filter(changed).collect();
        let certificates = new.iter().filter_map(|file| file.own);
        let certificates: Vec<String> = certificates.map(shown_certificate).collect();
        info!(
            files = &*plain(&files),
            certificates = Some(certificates.join("; ")).filter(|shown| !shown.is_empty()),
            "there are new certificates: new connections use them, and those that are up stay"
        );
        for warning in new.iter().flat_map(CertificateFile::defects) {
            warn!("{}", plain(&warning));
        }
        (self.made, self.contents, self.content) = (made, Arc::new(contents), hashes);
    }

    /// See [`TlsFiles::keep_valid`].
    fn keep_valid(&mut self, in_use: &TlsFiles, now: SystemTime) -> Vec<String> {
        let (mut kept, mut texts) = (Contents::clone(&self.contents), Vec::new());
        let mut parts = self.parts.clone();
        let new_files = self.files.certificate_files(&self.made);
        for (part, new) in new_files.iter().enumerate() {
            let files = self.files.part(part);
            let hashes = &self.content.files[files.clone()];
            let Some((old, old_part)) = in_use.part_with(&self.files.paths()[files.clone()]) else {
                continue;
            };
            let old_files = old.files.part(old_part);
            let certificate = old.made.certificates().get(old_part);
            let invalidity = certificate
                .filter(|_| old.content.files[old_files.clone()] != *hashes)
                .and_then(|certificate| invalidity(new, certificate, now));
            if let Some((text, good_at)) = invalidity {
                texts.push(format!("{text}; the certificate in use stays"));
                parts[part].refused = Some(RefusedPart {
                    hashes: hashes.to_vec(),
                    good_at: Some(good_at),
                });
                for (file, old_file) in files.zip(old_files) {
                    kept.files[file].clone_from(&old.contents.files[old_file]);
                }
            }
        }
        if texts.is_empty() {
            return texts;
        }
        // All parts are good by themselves, so nothing but the system can refuse them.
        let Ok(made) = self.files.make(&kept, Vec::new()) else {
            return Vec::new();
        };
        self.content = kept.hashes(&[]);
        (self.made, self.contents, self.parts) = (made, Arc::new(kept), parts);
        texts
    }

    fn certificate_files(&self) -> Vec<CertificateFile<'_>> {
        self.files.certificate_files(&self.made)
    }
}

/// The reason why a new certificate does not replace a valid one, and the time from which on it
/// does: then it is valid, or neither of both is.
fn invalidity(
    new: &CertificateFile<'_>,
    in_use: &CertificateFacts,
    now: SystemTime,
) -> Option<(String, SystemTime)> {
    if !in_use.is_valid_at(now) {
        return None;
    }
    let (text, valid_at) = new.invalidity(now)?;
    let end = in_use.not_after + Duration::from_secs(1);
    Some((text, valid_at.map_or(end, |at| at.min(end))))
}

impl FileSet {
    /// Whether both make the same TLS of the same contents. Their pools may differ.
    fn has_settings_of(&self, other: &FileSet) -> bool {
        match (self, other) {
            (FileSet::Listeners(one), FileSet::Listeners(other)) => one == other,
            (FileSet::Servers(one, _), FileSet::Servers(other, _)) => one == other,
            _ => false,
        }
    }

    /// Its files, each with the option that names it.
    fn paths(&self) -> Vec<(&'static str, &Path)> {
        match self {
            FileSet::Listeners(files) => {
                let identities = files.identities.iter();
                let paths = identities.flat_map(|identity| {
                    [
                        ("tls-cert", identity.certificate.as_path()),
                        ("tls-key", identity.key.as_path()),
                    ]
                });
                let ca = files
                    .client_ca
                    .iter()
                    .map(|path| ("tls-ca", path.as_path()));
                paths.chain(ca).collect()
            }
            FileSet::Servers(files, _) => {
                let identity = files.identity.iter();
                let paths = identity.flat_map(|identity| {
                    [
                        ("server-tls-cert", identity.certificate.as_path()),
                        ("server-tls-key", identity.key.as_path()),
                    ]
                });
                let ca = files.ca.iter().filter(|_| files.verify);
                let ca = ca.map(|path| ("server-tls-ca", path.as_path()));
                paths.chain(ca).collect()
            }
        }
    }

    /// The files of each part, by their places in [`FileSet::paths`]: first those of each
    /// certificate with its key.
    fn parts(&self) -> Vec<Range<usize>> {
        let pairs = match self {
            FileSet::Listeners(files) => files.identities.len(),
            FileSet::Servers(files, _) => usize::from(files.identity.is_some()),
        };
        let pair = |index: usize| 2 * index..2 * index + 2;
        let cas = (2 * pairs..self.paths().len()).map(|file| file..file + 1);
        (0..pairs).map(pair).chain(cas).collect()
    }

    /// The files of a part.
    fn part(&self, index: usize) -> Range<usize> {
        self.parts().swap_remove(index)
    }

    /// The files with certificates, in the order of the parts. `made` is made of them.
    fn certificate_files<'a>(&'a self, made: &'a MadeOfFiles) -> Vec<CertificateFile<'a>> {
        let paths = self.paths();
        let parts = self.parts().into_iter().enumerate();
        let file = |(part, files): (usize, Range<usize>)| {
            let ((option, path), own) = (paths[files.start], made.certificates().get(part));
            CertificateFile {
                option,
                path,
                expiry: own.map_or_else(|| made.ca_expiry(), |own| own.chain_expiry),
                own,
            }
        };
        parts.map(file).collect()
    }

    /// Whether servers need a certificate from a CA that the system trusts.
    fn uses_system_cas(&self) -> bool {
        matches!(self, FileSet::Servers(files, _) if files.verify && files.ca.is_none())
    }

    /// The paths of the files with other contents, as the log has them, and the CAs of the system
    /// if they are others.
    fn shown_changes(&self, old: &ContentHashes, new: &ContentHashes) -> String {
        let mut shown: Vec<String> = Vec::new();
        for (index, (_, path)) in self.paths().into_iter().enumerate() {
            let path = path.display().to_string();
            // A certificate and its key may be one file.
            if old.files.get(index) != new.files.get(index) && !shown.contains(&path) {
                shown.push(path);
            }
        }
        if old.cas != new.cas {
            shown.push("the CAs of the system".to_owned());
        }
        shown.join(", ")
    }

    /// Reads all files. Those that cannot be read are problems, and have no bytes.
    fn read(&self, cas: Option<&SystemCas>) -> (Contents, Vec<TlsFileProblem>) {
        let (mut files, mut unreadable) = (Vec::new(), Vec::new());
        for (index, (option, path)) in self.paths().into_iter().enumerate() {
            files.push(read_file(path, PEM_BYTES_MAX).unwrap_or_else(|error| {
                unreadable.push(TlsFileProblem {
                    option,
                    file: Some(index),
                    what: format!("`{}` cannot be read: {error}", path.display()),
                });
                Vec::new()
            }));
        }
        let cas = cas.cloned();
        (Contents { files, cas }, unreadable)
    }

    /// Makes the TLS of these contents. `Err`: the files that are `unreadable`, and the mistakes in
    /// all others.
    fn make(
        &self,
        contents: &Contents,
        unreadable: Vec<TlsFileProblem>,
    ) -> Result<MadeOfFiles, Vec<TlsFileProblem>> {
        let mut problems = unreadable;
        let unreadable: Vec<Option<usize>> = problems.iter().map(|one| one.file).collect();
        let made = self.make_all(contents).map_err(|found| {
            let found = found.iter().map(|problem| self.problem(problem));
            let found = found.filter(|one| one.file.is_none() || !unreadable.contains(&one.file));
            problems.extend(found);
        });
        made.ok().filter(|_| problems.is_empty()).ok_or(problems)
    }

    fn make_all(&self, contents: &Contents) -> Result<MadeOfFiles, Vec<TlsProblem>> {
        let mut files = contents.files.iter().cloned();
        let mut next = || files.next().unwrap_or_default();
        let mut identity = |_: &IdentityFiles| TlsIdentity {
            certificate_pem: next(),
            key_pem: next(),
        };
        match self {
            FileSet::Listeners(files) => {
                let identities = files.identities.iter().map(&mut identity).collect();
                ListenerTls::new(&ListenerTlsSettings {
                    identities,
                    client_ca_pem: files.client_ca.as_ref().map(|_| next()),
                    client_auth: files.client_auth,
                    min_version: files.min_version,
                })
                .map(MadeOfFiles::Listeners)
            }
            FileSet::Servers(files, _) => {
                let identity = files.identity.as_ref().map(&mut identity);
                let roots = match &contents.cas {
                    Some(cas) => Roots::System(cas.clone()),
                    None if files.verify => Roots::Pem(next()),
                    None => Roots::Pem(Vec::new()),
                };
                ServerTls::new(&ServerTlsSettings {
                    roots,
                    identity,
                    server_name: files.name.clone(),
                    verify: files.verify,
                    // There is no option for it: the newest version that both sides have is used,
                    // so a server that wants 1.3 alone says so itself.
                    min_version: MinVersion::Tls12,
                })
                .map(MadeOfFiles::Servers)
            }
        }
    }

    /// The problem with its option and its file.
    fn problem(&self, problem: &TlsProblem) -> TlsFileProblem {
        let is_server = matches!(self, FileSet::Servers(..));
        let (option, place) = match (problem.input, is_server) {
            (TlsInput::Certificate(index), false) => ("tls-cert", index),
            (TlsInput::Certificate(index), true) => ("server-tls-cert", index),
            (TlsInput::Key(index), false) => ("tls-key", index),
            (TlsInput::Key(index), true) => ("server-tls-key", index),
            (TlsInput::ClientCa, _) => ("tls-ca", 0),
            (TlsInput::Roots, _) => ("server-tls-ca", 0),
            (TlsInput::ServerName, _) => ("server-tls-name", 0),
        };
        let paths = self.paths().into_iter().enumerate();
        let mut paths = paths.filter(|(_, (name, _))| *name == option);
        let (file, what) = match paths.nth(place) {
            Some((file, (_, path))) => (Some(file), format!("`{}`: {problem}", path.display())),
            None => (None, problem.to_string()),
        };
        TlsFileProblem { option, file, what }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use respool_testkit::certificates::{CertificateFiles, TestCa, Validity};

    use super::*;

    /// The certificates of a listener: two pairs of files, each for a host.
    struct TestPairs {
        ca: TestCa,
        pairs: [CertificateFiles; 2],
        /// A listener's TLS made of them.
        set: LoadedSet,
        _dir: tempfile::TempDir,
    }

    const HOSTS: [&str; 2] = ["a.example", "b.example"];

    impl TestPairs {
        /// Both certificates are valid until the year 2080.
        fn new() -> TestPairs {
            let dir = tempfile::tempdir().unwrap();
            let ca = TestCa::new(dir.path(), "own").unwrap();
            let until = Validity::UntilYear(2080);
            let pairs = HOSTS.map(|host| ca.sign_for(host, &[host], until).unwrap());
            let set = loaded(&pairs);
            TestPairs {
                ca,
                pairs,
                set,
                _dir: dir,
            }
        }

        fn renew(&self, pair: usize, validity: Validity) {
            let pem = self.ca.pem(&[HOSTS[pair]], validity).unwrap();
            fs::write(&self.pairs[pair].cert, pem.0).unwrap();
            fs::write(&self.pairs[pair].key, pem.1).unwrap();
        }

        /// Looks twice, as a set does whose files stay as they are.
        fn look(&mut self, year: u64) -> (bool, u64) {
            let first = self.set.look(year_of(year));
            assert!(
                !first.is_taken && first.refused == 0,
                "it may be half-written"
            );
            let change = self.set.look(year_of(year));
            (change.is_taken, change.refused)
        }

        /// The hashes of the certificates in use.
        fn in_use(&self) -> [Option<u64>; 2] {
            [self.set.content.files[0], self.set.content.files[2]]
        }

        /// The hashes of the certificates in their files.
        fn in_files(&self) -> [Option<u64>; 2] {
            let read = |pair: &CertificateFiles| HASHER.hash_one(fs::read(&pair.cert).unwrap());
            self.pairs.each_ref().map(|pair| Some(read(pair)))
        }
    }

    /// A listener's TLS made of these files.
    fn tls_of(pairs: &[CertificateFiles]) -> TlsFiles {
        let identity = |pair: &CertificateFiles| IdentityFiles {
            certificate: pair.cert.clone(),
            key: pair.key.clone(),
        };
        let mut files = TlsFiles::default();
        let added = files.add_listeners(ListenerTlsFiles {
            identities: pairs.iter().map(identity).collect(),
            client_ca: None,
            client_auth: ClientAuth::Off,
            min_version: MinVersion::Tls12,
        });
        added.unwrap();
        files
    }

    fn loaded(pairs: &[CertificateFiles]) -> LoadedSet {
        tls_of(pairs).sets.swap_remove(0)
    }

    /// A time in this year.
    fn year_of(year: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs((year - 1_970) * 31_556_952 + 86_400)
    }

    /// A wrong pair keeps its old certificate, and no other pair from being taken.
    #[test]
    fn wrong_pair_keeps_no_other_pair_back() {
        let mut test = TestPairs::new();
        let old = test.in_use();
        // Each pair is wrong by itself, in the order of the turns.
        let break_second = |test: &TestPairs, turn: usize| match turn {
            0 => test.renew(1, Validity::Past),
            1 => fs::write(&test.pairs[1].cert, "half").unwrap(),
            2 => fs::remove_file(&test.pairs[1].key).unwrap(),
            _ => {
                test.renew(1, Validity::Now);
                fs::copy(&test.pairs[0].key, &test.pairs[1].key).unwrap();
            }
        };
        for turn in 0..4 {
            test.renew(0, Validity::UntilYear(2081));
            break_second(&test, turn);
            let [first, second] = [test.in_files()[0], old[1]];
            assert_eq!(test.look(2026), (true, 1), "{turn}");
            assert_eq!(test.in_use(), [first, second], "{turn}");
            // The log says it once.
            assert_eq!(test.look(2026), (false, 0), "{turn}");
        }
        test.renew(1, Validity::UntilYear(2082));
        assert_eq!(test.look(2026), (true, 0));
        assert_eq!(test.in_use(), test.in_files());
    }

    /// A pair that has expired holds up no other one, be it there from the start on.
    #[test]
    fn expired_pair_in_use_keeps_no_other_pair_back() {
        let mut test = TestPairs::new();
        test.renew(1, Validity::Past);
        test.set = loaded(&test.pairs);
        test.renew(0, Validity::UntilYear(2081));
        assert_eq!(test.look(2026), (true, 0));
        assert_eq!(test.in_use(), test.in_files());
        // Neither of both is valid, so the new one counts.
        test.renew(1, Validity::Past);
        assert_eq!(test.look(2026), (true, 0));
        assert_eq!(test.in_use(), test.in_files());
    }

    /// A certificate that is not valid yet is taken when its time has come, or when the one in use
    /// has expired.
    #[test]
    fn certificate_is_taken_when_it_becomes_valid() {
        for end in [2_080, 2_095] {
            let mut test = TestPairs::new();
            test.renew(0, Validity::UntilYear(end));
            assert_eq!(test.look(2026), (true, 0));
            let old = test.in_use();
            // From 2090 on.
            test.renew(0, Validity::Future);
            assert_eq!(test.look(2026), (false, 1));
            let taken_at = match end {
                2_080 => 2_080,
                _ => 2_090,
            };
            assert_eq!(test.look(taken_at - 1), (false, 0));
            assert_eq!(test.in_use(), old);
            assert_eq!(test.look(taken_at), (true, 0));
            assert_eq!(test.in_use(), test.in_files());
        }
    }

    /// A reload keeps a valid certificate in use where the new one is not valid now, and takes it
    /// later. Other new ones are taken at once.
    #[test]
    fn reload_keeps_a_valid_certificate() {
        let mut test = TestPairs::new();
        let in_use = tls_of(&test.pairs);
        let old = test.in_use();
        test.renew(0, Validity::Future);
        test.renew(1, Validity::Now);
        let mut new = tls_of(&test.pairs);
        let texts = new.keep_valid(&in_use);
        let path = test.pairs[0].cert.display();
        let expected = format!(
            "--tls-cert: `{path}` (a.example) is not valid before 2090-01-01T00:00:00Z: it is taken \
             then, or when the one in use has expired; the certificate in use stays"
        );
        assert_eq!(texts, [expected]);
        test.set = new.sets.swap_remove(0);
        assert_eq!(test.in_use(), [old[0], test.in_files()[1]]);
        assert_eq!(test.look(2079), (false, 0));
        assert_eq!(test.look(2090), (true, 0));
        // Nothing valid is in use, so the new one counts.
        let expired = TestPairs::new();
        expired.renew(0, Validity::Past);
        let in_use = tls_of(&expired.pairs);
        expired.renew(0, Validity::Future);
        let mut new = tls_of(&expired.pairs);
        assert_eq!(new.keep_valid(&in_use), [""; 0]);
        test.set = new.sets.swap_remove(0);
        assert_eq!(test.in_use(), expired.in_files());
    }

    /// Only files with other contents are named, each once, and the CAs of the system if they are
    /// others.
    #[test]
    fn changed_files_of_a_set_are_named() {
        let set = FileSet::Servers(
            ServerTlsFiles {
                ca: Some("ca.crt".into()),
                identity: Some(IdentityFiles {
                    certificate: "a.pem".into(),
                    key: "a.pem".into(),
                }),
                name: None,
                verify: true,
            },
            vec![0],
        );
        let hashes = |files: [u64; 3], cas| ContentHashes {
            files: files.map(Some).to_vec(),
            cas,
        };
        let old = hashes([1, 2, 3], None);
        for (new, shown) in [
            (hashes([4, 5, 3], None), "a.pem"),
            (hashes([1, 2, 6], None), "ca.crt"),
            (hashes([1, 2, 3], Some(7)), "the CAs of the system"),
            (hashes([4, 5, 6], None), "a.pem, ca.crt"),
        ] {
            assert_eq!(set.shown_changes(&old, &new), shown);
        }
    }
}
