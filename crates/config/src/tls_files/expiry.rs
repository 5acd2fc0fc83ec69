//! Certificates that expire, or are not valid yet: warnings at the start and while respool runs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use respool_driver::tls::CertificateFacts;

use crate::plain::plain;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A certificate that expires earlier than this is warned of at the start, and by `respool check`.
/// A public CA that signs for 90 days expects a renewal a month before the end.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * DAY);

/// The times before an expiry at which the log warns of it while respool runs, in seconds.
const WARNED_BEFORE: [u64; 3] = [7 * DAY, DAY, HOUR];

/// The most names of a certificate that the log shows.
const NAMES_MAX: usize = 3;

/// The most characters of such a name.
const NAME_CHARS_MAX: usize = 80;

/// A file with certificates in use.
pub(super) struct CertificateFile<'a> {
    /// The option that names it.
    pub(super) option: &'static str,
    /// Its path.
    pub(super) path: &'a Path,
    /// The earliest expiry of a certificate in it. `None`: never.
    pub(super) expiry: Option<SystemTime>,
    /// The certificate of respool in it; `None`: it has CAs.
    pub(super) own: Option<&'a CertificateFacts>,
}

/// The certificate in a file that expires first, or that matters most.
struct Expiring {
    at: SystemTime,
    /// The words between the file and the time.
    what: &'static str,
    /// The effect if it has expired.
    effect: &'static str,
}

/// The expiries of which the log has told. `None`: those of the start.
#[derive(Clone, Debug, Default)]
pub(super) struct ToldExpiries(Option<HashMap<FileKey, ToldExpiry>>);

/// The option and the path of a file.
type FileKey = (&'static str, PathBuf);

/// An expiry, and how near it was in the last look: see [`nearness`].
type ToldExpiry = (SystemTime, usize);

impl CertificateFile<'_> {
    /// Warnings about the file at the start.
    pub(super) fn warnings(&self, now: SystemTime) -> Vec<String> {
        let expiring = self.expiring(now).filter(|one| {
            let left = one.at.duration_since(now);
            left.is_err() || left.is_ok_and(|left| left < EXPIRES_SOON)
        });
        let of_expiry = expiring.map(|one| self.expiry_warning(&one, now));
        let too_early = self.own.filter(|own| now < own.not_before).map(|own| {
            let (subject, peers) = (self.subject(), self.peers());
            let at = shown_time(own.not_before);
            format!(
                "{subject} is not valid before {at}: {peers} refuse it until then; is the clock \
                 right?"
            )
        });
        let warnings = of_expiry.into_iter().chain(too_early);
        warnings.chain(self.defects()).collect()
    }

    /// Warnings about a certificate that most clients refuse.
    pub(super) fn defects(&self) -> Vec<String> {
        let Some(own) = self.own.filter(|_| self.option == "tls-cert") else {
            return Vec::new();
        };
        let subject = self.subject();
        let usage = (!own.is_for_servers).then(|| {
            format!(
                "{subject} is not for servers: its extendedKeyUsage lacks serverAuth, and most \
                 clients refuse it"
            )
        });
        let names = own.names.is_empty().then(|| {
            format!("{subject} names no host: it has no subjectAltName, and most clients refuse it")
        });
        usage.into_iter().chain(names).collect()
    }

    fn expiring(&self, now: SystemTime) -> Option<Expiring> {
        let Some(own) = self.own else {
            return Some(Expiring {
                at: self.expiry?,
                what: " has a CA that",
                effect: "replace it. respool trusts it, and other programs refuse its certificates",
            });
        };
        let at = self.expiry?;
        if at < own.not_after && !own.has_expired_at(now) {
            return Some(Expiring {
                at,
                what: " has an intermediate certificate that",
                effect: match self.option {
                    "tls-cert" => "replace it, as clients may refuse the chain",
                    _ => "replace it, as servers may refuse the chain",
                },
            });
        }
        Some(Expiring {
            at: own.not_after,
            what: "",
            effect: match self.option {
                "tls-cert" => "replace it, as clients refuse it",
                _ => "replace it, as servers refuse it",
            },
        })
    }

    fn expiry_warning(&self, expiring: &Expiring, now: SystemTime) -> String {
        let Expiring { at, what, effect } = expiring;
        let (subject, time) = (self.subject(), shown_time(*at));
        if has_expired(*at, now) {
            return format!("{subject}{what} has expired at {time}: {effect}");
        }
        let left = shown_left(at.duration_since(now).unwrap_or_default());
        format!("{subject}{what} expires in {left}, at {time}: replace it before")
    }

    /// The reason why a certificate is not valid now, and the time from which on it is.
    pub(super) fn invalidity(&self, now: SystemTime) -> Option<(String, Option<SystemTime>)> {
        let (own, subject) = (self.own?, self.subject());
        if own.has_expired_at(now) {
            let time = shown_time(own.not_after);
            return Some((format!("{subject} has expired at {time}"), None));
        }
        (now < own.not_before).then(|| {
            let time = shown_time(own.not_before);
            let text = format!(
                "{subject} is not valid before {time}: it is taken then, or when the one in use \
                 has expired"
            );
            (text, Some(own.not_before))
        })
    }

    /// The option, the file and the names of the certificate, as warnings begin.
    fn subject(&self) -> String {
        let names = self.own.map(shown_names).unwrap_or_default();
        let names = match names.is_empty() {
            true => String::new(),
            false => format!(" ({names})"),
        };
        format!("--{}: `{}`{names}", self.option, self.path.display())
    }

    fn peers(&self) -> &'static str {
        match self.option {
            "tls-cert" => "clients",
            _ => "servers",
        }
    }
}

impl ToldExpiries {
    /// The warnings that are due: each time of [`WARNED_BEFORE`] has one, and the expiry itself.
    /// The first call has none, since the start has told of these files.
    pub(super) fn due_warnings(
        &mut self,
        files: &[CertificateFile<'_>],
        now: SystemTime,
    ) -> Vec<String> {
        let (mut told, mut warnings) = (HashMap::new(), Vec::new());
        for file in files {
            let Some(expiring) = file.expiring(now) else {
                continue;
            };
            let (key, at) = ((file.option, file.path.to_owned()), expiring.at);
            let level = nearness(at, now);
            if let Some(before) = &self.0 {
                let before = before.get(&key).filter(|(known, _)| *known == at);
                if level > before.map_or(0, |(_, level)| *level) {
                    warnings.push(file.expiry_warning(&expiring, now));
                }
            }
            told.insert(key, (at, level));
        }
        self.0 = Some(told);
        warnings
    }
}

/// How near an expiry is: the number of warnings about it that have been due.
fn nearness(at: SystemTime, now: SystemTime) -> usize {
    if has_expired(at, now) {
        return WARNED_BEFORE.len() + 1;
    }
    let left = at.duration_since(now).unwrap_or_default();
    let mut limits = WARNED_BEFORE
        .iter()
        .map(|limit| Duration::from_secs(*limit));
    limits.by_ref().filter(|limit| left <= *limit).count()
}

/// Whether the last second of a certificate is over.
fn has_expired(at: SystemTime, now: SystemTime) -> bool {
    now >= at + Duration::from_secs(1)
}

/// The time until an expiry, in the largest unit that fits.
fn shown_left(left: Duration) -> String {
    let left = left.as_secs();
    let units = [(DAY, "day"), (HOUR, "hour"), (MINUTE, "minute")];
    let Some((unit, name)) = units.into_iter().find(|(unit, _)| left >= *unit) else {
        return "less than a minute".to_owned();
    };
    match left / unit {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    }
}

/// The first names of a certificate; empty: it has none.
pub(super) fn shown_names(certificate: &CertificateFacts) -> String {
    let names = certificate.names.iter().take(NAMES_MAX);
    let mut shown: Vec<String> = names
        .map(|name| plain(name).chars().take(NAME_CHARS_MAX).collect())
        .collect();
    let others = certificate.names.len().saturating_sub(NAMES_MAX);
    if others > 0 {
        shown.push(format!("{others} more"));
    }
    shown.join(", ")
}

/// The names of a certificate and its end.
pub(super) fn shown_certificate(certificate: &CertificateFacts) -> String {
    let end = shown_time(certificate.not_after);
    match &*shown_names(certificate) {
        "" => format!("no name, until {end}"),
        names => format!("{names}, until {end}"),
    }
}

/// A time as `2026-11-29T16:30:00Z`.
fn shown_time(time: SystemTime) -> String {
    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since_1970.unwrap_or_default().as_secs();
    let (days, of_day) = (seconds / DAY, seconds % DAY);
    let (hour, minute, second) = (of_day / HOUR, of_day % HOUR / MINUTE, of_day % MINUTE);
    // A year that begins in March has its leap day at the end. Day 0 is 1 March of the year 0.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Times are those of the Gregorian calendar.
    #[test]
    fn times_are_shown_as_dates() {
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_401, "2000-02-29T00:00:01Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (2_524_607_999, "2049-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(shown_time(at(seconds)), shown);
        }
    }

    fn certificate(not_after: u64) -> CertificateFacts {
        CertificateFacts {
            not_before: at(0),
            not_after: at(not_after),
            chain_expiry: Some(at(not_after)),
            names: ["a", "b", "c\n", "d", "e"].map(str::to_owned).to_vec(),
            is_for_servers: true,
        }
    }

    fn file_of(own: &CertificateFacts) -> CertificateFile<'_> {
        CertificateFile {
            option: "tls-cert",
            path: Path::new("x.crt"),
            expiry: own.chain_expiry,
            own: Some(own),
        }
    }

    /// While respool runs, the log warns 7 days, a day and an hour before the expiry, and when the
    /// certificate has expired: once each. A new certificate begins anew.
    #[test]
    fn each_expiry_is_warned_of_four_times() {
        const END: u64 = 100 * DAY;
        let mut told = ToldExpiries::default();
        let own = certificate(END);
        let mut warn = |own: &CertificateFacts, now: u64| {
            let mut warnings = told.due_warnings(&[file_of(own)], at(now));
            assert!(warnings.len() <= 1, "{warnings:?}");
            warnings.pop()
        };
        let time = "1970-04-11T00:00:00Z";
        let due = |left: &str| {
            let text = format!(
                "--tls-cert: `x.crt` (a, b, c\\n, 2 more) expires in {left}, at {time}: replace it \
                 before"
            );
            Some(text)
        };
        assert_eq!(warn(&own, END - 8 * DAY), None);
        assert_eq!(warn(&own, END - 7 * DAY - 1), None);
        for (left, shown) in [
            (7 * DAY, "7 days"),
            (DAY - 5, "23 hours"),
            (HOUR - 5, "59 minutes"),
        ] {
            assert_eq!(warn(&own, END - left), due(shown), "{left}");
            assert_eq!(warn(&own, END - left + 5), None, "{left}");
        }
        assert_eq!(warn(&own, END), None);
        let expired = format!(
            "--tls-cert: `x.crt` (a, b, c\\n, 2 more) has expired at {time}: replace it, \
                     as clients refuse it"
        );
        assert_eq!(warn(&own, END + 1), Some(expired));
        assert_eq!(warn(&own, END + 6), None);
        let new = certificate(END + 2 * DAY);
        let text = warn(&new, END + 10).unwrap_or_default();
        assert!(text.contains("expires in 1 day, at 1970-04-13"), "{text}");
        assert_eq!(warn(&new, END + 15), None);
        // The start has told of the files that are there.
        let mut of_start = ToldExpiries::default();
        let none = of_start.due_warnings(&[file_of(&own)], at(END + 1));
        assert_eq!(none, [""; 0]);
    }

    /// The time left has a unit that says something until the end.
    #[test]
    fn time_left_has_a_fitting_unit() {
        for (left, shown) in [
            (13 * DAY + HOUR, "13 days"),
            (DAY, "1 day"),
            (DAY - 1, "23 hours"),
            (HOUR, "1 hour"),
            (HOUR - 1, "59 minutes"),
            (MINUTE, "1 minute"),
            (MINUTE - 1, "less than a minute"),
        ] {
            assert_eq!(shown_left(Duration::from_secs(left)), shown);
        }
    }
}
