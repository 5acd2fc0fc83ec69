//! Files with certificates and keys: read at the start, and again while respool runs.
//!
//! ```text
//!   every 5 s ──► read all files of a set ──► changed, and the same a second later
//!                                                   │
//!      the old ones stay, one warning ◄── wrong ────┴──── good ──► all workers
//! ```
//!
//! A set is a certificate with its key and its CA: they are replaced together or not at all. Its
//! contents are compared, not its times: Kubernetes replaces a directory by a symbolic link. A set
//! must be the same in two looks, because a file may be half-written in the first one. A reload of
//! the configuration reads all files once more, and applies them at once. Only a reload reads the
//! CAs of the system again.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use respool_driver::TlsUpdates;
use respool_driver::tls::{
    ClientAuth, ListenerTls, ListenerTlsSettings, MinVersion, Roots, ServerTls, ServerTlsSettings,
    SystemCas, TlsIdentity, TlsInput, TlsProblem,
};
use tracing::{info, warn};

use crate::plain::plain;
use crate::raw::read_file;

/// The most bytes of a file with certificates or a key. A longer one is refused: a device may never
/// end. The bundle of CAs of a system has less than 300 KiB.
const PEM_BYTES_MAX: u64 = 4 << 20;

/// The time between two looks at the files.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The time after which files that have changed are looked at again.
const SETTLE: Duration = Duration::from_secs(1);

/// A certificate that expires earlier than this is warned of at the start, and by `respool check`.
/// A public CA that signs for 90 days expects a renewal a month before the end.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 24 * 3_600);

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

/// Sets with new contents that were refused, by their use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedSets {
    /// Sets of the listeners.
    pub listeners: u64,
    /// Sets for the servers of a pool.
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

/// A set of files that are replaced together.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FileSet {
    /// Of all listeners with TLS.
    Listeners(ListenerTlsFiles),
    /// Of the servers of these pools.
    Servers(ServerTlsFiles, Vec<usize>),
}

/// The contents of a set.
struct Contents {
    /// Of its files, in the order of [`FileSet::paths`].
    files: Vec<Vec<u8>>,
    /// The CAs of the system, if they count.
    cas: Option<SystemCas>,
}

/// The hashes of the contents of a set. The default is that of files that cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ContentHashes {
    /// Of its files, in the order of [`FileSet::paths`].
    files: Vec<u64>,
    /// Of the CAs of the system, if they count.
    cas: Option<u64>,
}

impl Contents {
    fn hashes(&self) -> ContentHashes {
        ContentHashes {
            files: self
                .files
                .iter()
                .map(|file| HASHER.hash_one(file))
                .collect(),
            cas: self.cas.as_ref().map(|cas| HASHER.hash_one(cas)),
        }
    }
}

/// What the contents of a set make.
#[derive(Clone, Debug)]
enum MadeOfFiles {
    Listeners(ListenerTls),
    Servers(ServerTls),
}

/// The result of a look at a set.
enum SetChange {
    /// Its contents are those in use, or were seen before.
    None,
    /// New TLS is made of its new contents.
    Taken,
    /// Its new contents are refused.
    Refused,
}

/// A set with its contents in use.
#[derive(Clone, Debug)]
struct LoadedSet {
    files: FileSet,
    made: MadeOfFiles,
    /// The CAs of the system at the start or the last reload, if they count.
    cas: Option<SystemCas>,
    /// The hashes of the contents in use.
    content: ContentHashes,
    /// The hashes of other contents in the last look.
    seen: Option<ContentHashes>,
    /// The hashes of contents that were refused, so that the log says it once.
    refused: Option<ContentHashes>,
}

/// All sets. It is empty without TLS.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    sets: Vec<LoadedSet>,
    /// The time of the next look.
    next_look: Option<Instant>,
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
        let made = files.make(&contents, unreadable)?;
        self.sets.push(LoadedSet {
            files,
            made,
            cas,
            content: contents.hashes(),
            seen: None,
            refused: None,
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
        let of_set = |set: &LoadedSet| {
            let (times, ca_time) = match &set.made {
                MadeOfFiles::Listeners(tls) => (tls.expiries().to_vec(), tls.ca_expiry()),
                MadeOfFiles::Servers(tls) => (vec![tls.expiry()], tls.ca_expiry()),
            };
            let paths = set.files.paths().into_iter();
            let (cas, paths): (Vec<_>, Vec<_>) = paths
                .filter(|(option, _)| !option.ends_with("tls-key"))
                .partition(|(option, _)| option.ends_with("tls-ca"));
            let with_times = paths.into_iter().zip(times);
            let with_times = with_times.chain(cas.into_iter().map(|ca| (ca, ca_time)));
            let expiry = |((option, path), at): ((&'static str, &Path), Option<SystemTime>)| {
                let path = path.to_owned();
                Some(CertificateExpiry {
                    option,
                    path,
                    at: at?,
                })
            };
            with_times.filter_map(expiry).collect::<Vec<_>>()
        };
        let mut all: Vec<CertificateExpiry> = self.sets.iter().flat_map(of_set).collect();
        // Pools with other settings may have the same certificate.
        let mut seen = HashSet::new();
        all.retain(|one| seen.insert((one.option, one.path.clone())));
        all
    }

    /// A warning about each certificate and CA that expires within [`EXPIRES_SOON`].
    pub(crate) fn warnings(&self, now: SystemTime) -> Vec<String> {
        let expiries = self.expiries().into_iter();
        let warnings = expiries.filter_map(|CertificateExpiry { option, path, at }| {
            let path = path.display();
            let is_ca = option.ends_with("tls-ca");
            let Ok(left) = at.duration_since(now) else {
                if is_ca {
                    return Some(format!(
                        "--{option}: `{path}` has a CA that has expired: replace it. respool \
                         trusts it, and other programs refuse its certificates"
                    ));
                }
                // The certificate of respool is valid, or it would have been refused.
                return Some(format!(
                    "--{option}: `{path}` has an intermediate certificate that has expired: \
                     replace it, as clients may refuse the chain"
                ));
            };
            let hours = left.as_secs() / 3_600;
            let left_text = match hours / 24 {
                0 => format!("{hours} hours"),
                1 => "1 day".to_owned(),
                days => format!("{days} days"),
            };
            let what = if is_ca { " has a CA that" } else { "" };
            (left < EXPIRES_SOON).then(|| {
                format!("--{option}: `{path}`{what} expires in {left_text}: replace it before")
            })
        });
        warnings.collect()
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

    /// Looks at all files, if it is time. Passes sets with new contents to the workers. Returns the
    /// number of sets that are refused and were not before.
    pub(crate) fn look(&mut self, updates: &TlsUpdates, now: Instant) -> RefusedSets {
        let mut refused = RefusedSets::default();
        let is_due = self.next_look.is_none_or(|at| now >= at);
        if !self.has_files() || !is_due {
            return refused;
        }
        for set in &mut self.sets {
            match (set.look(), &set.files) {
                (SetChange::None, _) => {}
                (SetChange::Taken, _) => tell(updates, &set.files, &set.made),
                (SetChange::Refused, FileSet::Listeners(_)) => refused.listeners += 1,
                (SetChange::Refused, FileSet::Servers(..)) => refused.servers += 1,
            }
        }
        let is_settling = self.sets.iter().any(|set| set.seen.is_some());
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
    /// Looks at the files, and makes new TLS of new contents.
    fn look(&mut self) -> SetChange {
        let (contents, unreadable) = self.files.read(self.cas.as_ref());
        let found = match unreadable.is_empty() {
            true => contents.hashes(),
            false => ContentHashes::default(),
        };
        if found == self.content {
            (self.seen, self.refused) = (None, None);
            return SetChange::None;
        }
        if self.refused.as_ref() == Some(&found) {
            self.seen = None;
            return SetChange::None;
        }
        if self.seen.replace(found.clone()).as_ref() != Some(&found) {
            return SetChange::None;
        }
        self.seen = None;
        match self.files.make(&contents, unreadable) {
            Ok(made) => {
                let files = self.files.shown_changes(&self.content, &found);
                (self.made, self.content, self.refused) = (made, found, None);
                info!(
                    files = &*plain(&files),
                    "there are new certificates: new connections use them, and open ones stay"
                );
                SetChange::Taken
            }
            Err(problems) => {
                self.refused = Some(found);
                for TlsFileProblem { option, what, .. } in problems {
                    warn!(
                        "--{option}: {}; the certificates from before stay",
                        plain(&what)
                    );
                }
                SetChange::Refused
            }
        }
    }
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
    use super::*;

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
            files: files.to_vec(),
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
